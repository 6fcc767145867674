"""Child processes: ready lines, failures that explain themselves, and ends."""

import os
import re
import subprocess
import sys
import threading
import tracemalloc
import uuid

import psutil
import pytest

from stormkeeper.daemon import children
from stormkeeper.daemon.children import (
    LINE_BYTES,
    RUN_MARK,
    Child,
    Children,
    dying_with_us,
    end_marked,
    marked,
)
from stormkeeper.errors import ChildError
from support.processes import all_gone, has_ended
from support.waiting import DEADLINE_SECS, until

READY = re.compile(r"^ready at (\S+)$")


@pytest.fixture
def start(tmp_path):
    children = []
    run = uuid.uuid4().hex

    def start(code, name="thing"):
        child = Child(
            name,
            [sys.executable, "-u", "-c", code],
            log=tmp_path / f"{name}.log",
            env=os.environ | {RUN_MARK: run},
            ready=READY,
        )
        child.run = run
        children.append(child)
        return child

    yield start
    for child in children:
        child.stop(1.0)
    end_marked(run, settle_secs=0)


def wait_ready(child):
    # The end of a child that ends at once may be seen before its output.
    return until(lambda: child.ready_match)


def test_ready_line_is_matched_and_later_lines_are_kept(start):
    child = start("print('ready at here:1'); print('one'); print('two'); input()" + "\n")
    match = wait_ready(child)
    assert match.group(1) == "here:1"
    until(lambda: child.output() == (["one", "two"], 2))


def test_lines_and_their_number_are_of_one_moment(start):
    child = start("for number in range(3_000): print(number + 1)")
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)  # threads take turns as often as they can
    try:
        count = 0
        while count < 3_000:
            lines, count = child.output()
            assert not count or lines[-1] == str(count)
    finally:
        sys.setswitchinterval(interval)


def test_a_line_without_end_is_not_kept_whole(start):
    child = start(f"print('x' * {3 * LINE_BYTES})")
    until(lambda: child.output() == (["x" * LINE_BYTES] * 3 + [""], 4))


def test_not_ready_yet_is_none_not_an_error(start):
    child = start("import time; time.sleep(60)")
    assert child.ready_match is None
    assert child.state() == "starting"


def test_child_that_fails_to_start_shows_its_log(start):
    child = start("raise SystemExit('no such disk: buy one')")
    until(lambda: child.returncode is not None)
    assert child.state() == "ended with exit code 1"
    assert child.log_tail() == "no such disk: buy one"


def test_output_is_no_part_of_the_log(start):
    code = "import sys; print('ready at a'); print('rows 5'); print('late', file=sys.stderr)"
    child = start(code)
    until(lambda: child.output() == (["rows 5"], 1))
    until(lambda: child.returncode is not None)
    assert child.growing_log.new_lines() == ["late"]
    assert child.log_tail() == "late"


def test_tail_of_an_empty_log_is_the_output(start):
    child = start("print('no such disk'); raise SystemExit(1)")
    until(lambda: child.returncode is not None)
    until(lambda: child.log_tail() == "no such disk")


def test_tail_of_a_large_log_is_read_alone(start, tmp_path):
    child = start("")
    until(lambda: child.returncode is not None)
    log = tmp_path / "thing.log"
    os.truncate(log, 64 * 2**20)
    with log.open("a") as file:
        file.writelines(f"\n{number}" for number in range(100))
    tracemalloc.start()
    try:
        tail = child.log_tail()
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert tail.splitlines() == [str(number) for number in range(75, 100)]
    assert most < 4 * 2**20


def test_child_without_a_place_for_its_log_is_our_error(tmp_path):
    with pytest.raises(ChildError, match="cannot be started"):
        Child("x", [sys.executable], log=tmp_path / "no" / "x.log", env={}, ready=READY)


def test_command_that_does_not_exist_ends_at_once(tmp_path):
    child = Child("x", [str(tmp_path / "no")], log=tmp_path / "x.log", env={}, ready=READY)
    until(lambda: child.returncode is not None)
    assert child.returncode == 1
    assert "No such file or directory" in child.log_tail()
    child.stop(0)


PARENT = """
import sys, time
from pathlib import Path
from stormkeeper.daemon.children import Child
code = "import time; time.sleep(600)"
child = Child("x", [sys.executable, "-c", code], log=Path(sys.argv[1]), env={})
print(child.pid, flush=True)
time.sleep(600)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a child of this")
def test_a_killed_parent_takes_its_children_along(tmp_path):
    command = [sys.executable, "-c", PARENT, str(tmp_path / "log")]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as parent:
        child = psutil.Process(int(parent.stdout.readline()))
        assert child.is_running()
        parent.kill()
    all_gone([child])


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a child of this")
def test_a_parent_that_is_gone_already_is_noticed():
    command = dying_with_us([sys.executable, "-c", "print('ready')"])
    command[command.index(str(os.getpid()))] = "999999999"
    ran = subprocess.run(command, stdout=subprocess.PIPE, check=False)
    assert (ran.returncode, ran.stdout) == (1, b"")


def test_stubborn_child_is_ended_by_force(start):
    ignore = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
    child = start(ignore + "print('ready at a'); time.sleep(60)")
    wait_ready(child)
    assert child.stop(0.2) is False
    assert child.state() == "ended by SIGKILL"


def test_suspended_child_is_ended(start):
    child = start("import time; print('ready at a'); time.sleep(60)")
    wait_ready(child)
    psutil.Process(child.pid).suspend()
    assert child.stop(DEADLINE_SECS) is True
    assert child.state() == "ended by SIGTERM"


def test_orphan_in_the_session_is_ended_later(start):
    orphan = (
        "import subprocess, sys; p = subprocess.Popen([sys.executable, '-c', "
        "'import time; time.sleep(60)']); print('ready at', p.pid)"
    )
    child = start(orphan)
    pid = int(wait_ready(child).group(1))
    until(lambda: child.returncode is not None)
    assert psutil.pid_exists(pid)
    child.stop(DEADLINE_SECS)
    until(lambda: not psutil.pid_exists(pid) or psutil.Process(pid).status() == "zombie")


def test_stranger_with_the_former_process_id_is_left_alone(start):
    child = start("")
    until(lambda: child.returncode is not None)
    former = child.pid
    with subprocess.Popen(["sleep", "60"], process_group=0) as stranger:
        child._process.pid = stranger.pid
        assert child.memory_mib() == 0
        child.stop(DEADLINE_SECS)
        with pytest.raises(subprocess.TimeoutExpired):
            stranger.wait(0.5)
        stranger.kill()
    child._process.pid = former


def test_orphan_that_holds_the_output_open_is_ignored(start, recwarn):
    orphan = (
        "import subprocess, sys; p = subprocess.Popen([sys.executable, '-u', '-c', "
        "'import time\\nfor n in range(600): print(n); time.sleep(0.1)'], start_new_session=True); "
        "print('ready at', p.pid)"
    )
    child = start(orphan)
    wait_ready(child)
    child.stop(DEADLINE_SECS)
    before = child.output()[1]
    until(lambda: child.output()[1] > before + 3)
    assert not recwarn.list


def test_memory_counts_what_the_child_started(start):
    grandchild = (
        "import subprocess, sys; p = subprocess.Popen([sys.executable, '-u', '-c', "
        "'x = bytearray(b\"1\" * 80_000_000); print(1); import time; time.sleep(60)'], "
        "stdout=subprocess.PIPE); p.stdout.readline(); print('ready at a'); p.wait()"
    )
    child = start(grandchild)
    wait_ready(child)
    assert child.memory_mib() > 80
    (started,) = psutil.Process(child.pid).children()
    assert 0 < child.memory_mib(without=[started.pid]) < 80


class TestChildren:
    def start(self, children, code, **environment):
        children.start("thing 1", [sys.executable, "-u", "-c", code], READY, environment)

    @pytest.fixture
    def said(self):
        return []

    @pytest.fixture
    def children(self, tmp_path, said):
        children = Children(tmp_path, said.append)
        yield children
        children.stop(["thing 1"], 0.0)

    def test_a_child_has_the_environment_and_its_log_the_name(self, children, tmp_path):
        code = "import os, sys; print('ready at', os.environ['A']); print('x', file=sys.stderr)"
        self.start(children, code, A="here")
        assert wait_ready(children.by_name["thing 1"]).group(1) == "here"
        until(lambda: (tmp_path / "thing-1.log").read_text() == "x\n")

    def test_its_end_is_said_once(self, children, said):
        self.start(children, "raise SystemExit(3)")
        child = children.by_name["thing 1"]
        until(lambda: child.returncode is not None)
        for _ in range(2):
            children.note_ends()
        assert said == [f"thing 1 (process {child.pid}) ended with exit code 3"]

    def test_force_is_said(self, children, said):
        ignore = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
        self.start(children, ignore + "print('ready at a'); time.sleep(60)")
        wait_ready(children.by_name["thing 1"])
        children.stop(["thing 1", "never started"], 0.1)
        assert said == ["thing 1 did not end in 0 s: ended by force"]


@pytest.fixture
def run(tmp_path):
    def run(code, *, secs=DEADLINE_SECS, cancelled=lambda: False, progress=lambda _: None):
        children.run(
            "thing",
            [sys.executable, "-c", code],
            log=tmp_path / "log",
            env=os.environ,
            secs=secs,
            cancelled=cancelled,
            progress=progress,
        )

    return run


def test_program_that_succeeds(run, tmp_path):
    run(f"open({str(tmp_path / 'done')!r}, 'w')")
    assert (tmp_path / "done").exists()


def test_output_is_passed_on_while_a_program_runs(run):
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
def test_program_that_fails(run, code, said):
    with pytest.raises(ChildError, match=said):
        run(code)


def test_program_that_cannot_be_started(tmp_path):
    with pytest.raises(ChildError, match="thing ended with exit code 1:"):
        children.run(
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


def test_program_that_takes_too_long(run):
    with pytest.raises(ChildError, match=r"^thing was ended after 1 s:"):
        run("import time; time.sleep(3600)", secs=1.0)


def test_cancelled_program_ends_with_its_children(run, tmp_path):
    place = tmp_path / "pids"
    cancelled = threading.Event()
    threading.Thread(target=lambda: (until(place.exists), cancelled.set()), daemon=True).start()
    with pytest.raises(ChildError, match=r"^thing was ended when it was cancelled:\nwaits$"):
        run(WAITING.format(place=str(place)), cancelled=cancelled.is_set)
    for pid in map(int, place.read_text().split()):
        until(lambda pid=pid: has_ended(pid))


def test_orphan_in_its_own_session_is_found_by_mark_and_ended():
    orphan = (
        "import subprocess, sys; p = subprocess.Popen([sys.executable, '-c', "
        "'import time; time.sleep(60)'], start_new_session=True, stdout=subprocess.DEVNULL); "
        "print(p.pid)"
    )
    run = uuid.uuid4().hex
    code = [sys.executable, "-c", orphan]
    parent = subprocess.run(
        code, env=os.environ | {RUN_MARK: run}, stdout=subprocess.PIPE, text=True, check=True
    )
    pid = int(parent.stdout)
    assert [p.pid for p in marked(run)] == [pid]
    assert end_marked(run, settle_secs=0) == 1
    until(lambda: not psutil.pid_exists(pid) or psutil.Process(pid).status() == "zombie")
    assert end_marked(run, settle_secs=0) == 0


def test_process_of_another_run_is_left_alone():
    other = subprocess.Popen(
        [sys.executable, "-c", "import time; time.sleep(60)"],
        env=os.environ | {RUN_MARK: "another"},
    )
    try:
        assert end_marked(uuid.uuid4().hex, settle_secs=0) == 0
        assert other.poll() is None
    finally:
        other.kill()
        other.wait()
