"""``storm local`` as in a container: a nameless user, a read-only root, no home, no host name."""

import json
import os
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path
from subprocess import PIPE, STDOUT

import pytest

from support.command import STORM

#: A user id without a name.
USER = 12345

#: Mounts everything but $1 read-only, gives the host a name that does not resolve, and becomes a
#: user whom the system does not know. That user may read all files, as the Python that runs the
#: tests may belong to another one.
ENTER = """
set -e
writable=$1 user=$2; shift 2
hostname nowhere-at-all
mount --make-rprivate /
mount --bind "$writable" "$writable"
for place in $(awk '{print $5}' /proc/self/mountinfo | sort -u); do
    case $place in "$writable"|/proc*|/sys*|/dev*) ;; *) mount -o remount,bind,ro "$place" ;; esac
done
exec setpriv --reuid "$user" --regid "$user" --clear-groups \
    --inh-caps +dac_read_search --ambient-caps +dac_read_search -- "$@"
"""


def box(writable: Path, *command: object) -> list[str]:
    inside = ["sh", "-c", ENTER, "sh", str(writable), str(USER), *map(str, command)]
    return ["unshare", "--mount", "--uts", *inside]


@pytest.fixture
def writable():
    """The only folder that can be written to; pytest's own can be entered by its user alone."""
    if os.geteuid() != 0 or not (shutil.which("unshare") and shutil.which("setpriv")):
        pytest.skip("mounts of its own need root, and unshare and setpriv of util-linux")
    with tempfile.TemporaryDirectory() as name:
        os.chown(name, USER, USER)
        written = "touch /tmp/x 2>/dev/null && exit 3; touch $0/x && rm $0/x"
        entered = box(Path(name), "sh", "-c", written, name)
        tried = subprocess.run(entered, capture_output=True, text=True, check=False)
        if tried.returncode != 0:
            pytest.skip(f"this machine lets no process have mounts of its own: {tried.stderr}")
        yield Path(name)


@pytest.mark.spark
@pytest.mark.slow
def test_a_topology_runs_as_a_nameless_user_without_a_home(writable):
    kept = {name: os.environ[name] for name in ("PATH", "JAVA_HOME") if name in os.environ}
    script = Path("examples", "word_count.py").absolute()
    command = box(
        writable,
        *(STORM, "local", script, "--no-pipeline", "--report", writable / "report.json"),
    )
    environ = {**kept, "TMPDIR": str(writable), "SPARK_HOME": "/opt/another/spark"}
    lines, is_stopping = [], False
    with subprocess.Popen(
        command, cwd=writable, env=environ, stdout=PIPE, stderr=STDOUT, text=True
    ) as storm:
        for line in storm.stdout:
            lines.append(line)
            if "totals" in line and "nothing yet" not in line and not is_stopping:
                is_stopping = True
                storm.send_signal(signal.SIGINT)
    assert storm.returncode == 0, "".join(lines)
    assert lines[0].startswith("SPARK_HOME of the environment has no effect")
    report = json.loads((writable / "report.json").read_text())
    assert report["components"]["totals"]["executed"] > 0
    assert [path.name for path in writable.iterdir()] == ["report.json"]
