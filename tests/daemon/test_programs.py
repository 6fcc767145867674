"""Programs that are run to their end."""

import os
import sys
import threading

import pytest

from stormkeeper.daemon import programs
from stormkeeper.errors import ChildError
from support.processes import has_ended
from support.waiting import DEADLINE_SECS, until


@pytest.fixture
def run(tmp_path):
    def run(code, *, secs=DEADLINE_SECS, cancelled=lambda: False, progress=lambda _: None):
        programs.run(
            "thing",
            [sys.executable, "-c", code],
            log=tmp_path / "log",
            env=os.environ,
            secs=secs,
            cancelled=cancelled,
            progress=progress,
        )

    return run


def test_one_that_ends_well(run, tmp_path):
    run(f"open({str(tmp_path / 'done')!r}, 'w')")
    assert (tmp_path / "done").exists()


def test_each_line_of_its_output_is_passed_on_while_it_runs(run):
    lines = []
    run("import time; print(1, flush=True); time.sleep(0.3); print(2)", progress=lines.append)
    assert lines == ["1", "2"]


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("raise SystemExit('so it is')", r"^thing ended with exit code 1:\nso it is$"),
        ("print(1); raise SystemExit('2')", r"^thing ended with exit code 1:\n1\n2$"),
        ("print('printed'); raise SystemExit(3)", r"^thing ended with exit code 3:\nprinted$"),
        ("import os; os.kill(os.getpid(), 9)", r"^thing ended by SIGKILL:"),
    ],
)
def test_one_that_fails(run, code, said):
    with pytest.raises(ChildError, match=said):
        run(code)


def test_one_that_cannot_be_started(tmp_path):
    with pytest.raises(ChildError, match="thing ended with exit code 1:"):
        programs.run(
            "thing", [str(tmp_path / "none")], log=tmp_path / "log", env=os.environ, secs=60.0
        )


WAITING = """
import os, subprocess, sys, time
inner = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3600)"])
print("waits", file=sys.stderr, flush=True)
with open({place!r} + ".new", "w") as file:
    file.write(f"{{os.getpid()}} {{inner.pid}}")
os.rename({place!r} + ".new", {place!r})
time.sleep(3600)
"""


def test_one_that_takes_too_long(run):
    with pytest.raises(ChildError, match=r"^thing was ended after 1 s:"):
        run("import time; time.sleep(3600)", secs=1.0)


def test_one_that_is_cancelled_ends_with_all_that_it_has_started(run, tmp_path):
    place = tmp_path / "pids"
    cancelled = threading.Event()
    threading.Thread(target=lambda: (until(place.exists), cancelled.set()), daemon=True).start()
    with pytest.raises(ChildError, match=r"^thing was ended when it was cancelled:\nwaits$"):
        run(WAITING.format(place=str(place)), cancelled=cancelled.is_set)
    for pid in map(int, place.read_text().split()):
        until(lambda pid=pid: has_ended(pid))
