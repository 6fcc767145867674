"""What `make setup` says of a folder that it cannot use, and leaves as it is."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from support.waiting import DEADLINE_SECS

SCRIPT = Path(__file__).parents[1] / "scripts" / "setup"


@pytest.fixture
def setup(tmp_path):
    """Runs the script in a project of its own, so that it cannot harm this one."""
    script = tmp_path / "scripts" / "setup"
    script.parent.mkdir()
    shutil.copy(SCRIPT, script)

    def setup(venv):
        return subprocess.run(
            [script, venv], capture_output=True, text=True, timeout=DEADLINE_SECS, check=False
        )

    return setup


def contents(folder):
    return {path: path.read_text() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("version", ["2.7", "3.9", "3.10"])
def test_an_environment_of_an_older_python_is_named_and_kept(setup, tmp_path, version):
    venv = tmp_path / "older"
    (venv / "bin").mkdir(parents=True)
    (venv / "pyvenv.cfg").touch()
    python = venv / "bin" / "python"
    pretend = f"sys.version_info = ({version.replace('.', ', ')}); exec(sys.argv[2])"
    python.write_text(f"""#!/bin/sh
[ "$1" = -c ] && exec {sys.executable} -c 'import sys; {pretend}' "$@"
exit 1
""")
    python.chmod(0o755)
    before = contents(venv)
    ended = setup(venv)
    assert ended.returncode == 1
    assert f"has Python {version}, and 3.11 or newer is needed: remove it" in ended.stderr
    assert contents(venv) == before


def test_a_folder_that_is_something_else_is_kept(setup, tmp_path):
    folder = tmp_path / "photographs"
    folder.mkdir()
    (folder / "one").write_text("1")
    ended = setup(folder)
    assert ended.returncode == 1
    assert f"{folder} is no virtual environment" in ended.stderr
    assert contents(folder) == {folder / "one": "1"}
