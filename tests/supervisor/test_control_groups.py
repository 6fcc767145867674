"""Control groups: of the kernel's own where this machine has them, else of files in a folder."""

import contextlib
import os
import signal
import sys
import uuid
from pathlib import Path

import pytest

from stormkeeper.supervisor.process_table import LEAF, ControlGroups, NoControlGroupsError
from stormkeeper.supervisor.worker_processes import WorkerCommand, WorkerProcesses
from support.waiting import DEADLINE_SECS, until

MIB = 2**20
SLEEPS = "import time; time.sleep(600)"


@pytest.fixture
def above(tmp_path):
    """Looks like a group, and is a folder."""
    place = tmp_path / "above"
    place.mkdir()
    return place


@pytest.fixture
def real_above():
    """A group that the kernel has, for this test alone."""
    mounts = [line.split() for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    places = [Path(mount[4]) for mount in mounts if mount[mount.index("-") + 1] == "cgroup2"]
    if not places:
        pytest.skip("no cgroup v2 is mounted")
    place = places[0] / f"stormkeeper-test-{uuid.uuid4()}"
    try:
        place.mkdir()
    except OSError as error:
        pytest.skip(f"no control group can be made: {error}")
    yield place
    for group in (*place.iterdir(), place):
        if group.is_dir():
            with contextlib.suppress(FileNotFoundError):
                until(lambda group=group: not (group / "cgroup.procs").read_text())
                group.rmdir()


class Bench:
    """The workers of a supervisor with groups."""

    def __init__(self, folder, above):
        self.folder = folder
        self.groups = ControlGroups(above)
        self.processes = WorkerProcesses(str(folder), self.groups)

    def start(self, code=SLEEPS, memory_bytes=64 * MIB):
        command = WorkerCommand(
            argv=[sys.executable, "-c", code],
            folder=self.folder,
            log=self.folder / "worker.log",
            memory_bytes=memory_bytes,
        )
        return self.processes.start("w1", command)

    def ended(self):
        until(lambda: not self.processes.look()["w1"].members)
        return self.processes.look()["w1"]


@pytest.fixture
def started(tmp_path):
    """Makes benches."""
    made = []

    def make(above):
        made.append(Bench(tmp_path, above))
        return made[-1]

    yield make
    for bench in made:
        bench.processes.kill("w1")
        until(lambda bench=bench: not any(one.members for one in bench.processes.look().values()))


# --- where there can be some ---------------------------------------------------------------------


@pytest.fixture
def machine(tmp_path):
    """Makes what the kernel tells of a process; returns the group of it and its ``/proc``."""

    def make(own="/a.service/supervisor", root="/", kind="cgroup2", controllers="cpu memory"):
        place = tmp_path / "mounted"
        group = place / own.strip("/")
        group.mkdir(parents=True)
        (group.parent / "cgroup.controllers").write_text(controllers)
        (tmp_path / "self").mkdir()
        (tmp_path / "self" / "cgroup").write_text(f"4:memory:/x\n0::{own}\n")
        (tmp_path / "self" / "mountinfo").write_text(
            f"30 20 0:1 / / rw - ext4 /dev/sda rw\n41 31 0:38 {root} {place} rw - {kind} g rw\n"
        )
        return group, tmp_path

    return make


def test_groups_are_beside_the_supervisors_own(machine):
    group, proc = machine()
    assert ControlGroups.here(proc).above == group.parent
    assert (group.parent / "cgroup.subtree_control").read_text() == "+memory"


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ({"kind": "cgroup"}, "no cgroup v2"),
        ({"root": "/elsewhere"}, "no cgroup v2"),
        ({"own": "/../supervisor"}, "no cgroup v2"),
        ({"own": "/a.service"}, f"DelegateSubgroup={LEAF}"),
        ({"controllers": "cpu"}, "no controller of memory"),
    ],
)
def test_where_there_can_be_none_it_is_said_why(machine, how, said):
    _, proc = machine(**how)
    with pytest.raises(NoControlGroupsError, match=said):
        ControlGroups.here(proc)


def test_where_the_kernel_refuses_it_is_said_why(machine):
    group, proc = machine()
    (group.parent / "cgroup.subtree_control").mkdir()
    with pytest.raises(NoControlGroupsError, match="cannot be used: Is a directory"):
        ControlGroups.here(proc)


def test_of_this_machine_it_is_known_too():
    with contextlib.suppress(NoControlGroupsError):
        assert ControlGroups.here().above.is_dir()


# --- what is done with them ----------------------------------------------------------------------


def test_a_worker_is_in_its_group_before_it_begins(above, started):
    bench = started(above)
    process = bench.start()
    group = above / "worker-w1"
    until(lambda: (group / "cgroup.procs").exists() and (group / "cgroup.procs").read_text())
    assert (group / "cgroup.procs").read_text() == f"{process.pid}\n"
    assert (group / "memory.max").read_text() == str(64 * MIB)
    line = Path(f"/proc/{process.pid}/cmdline")
    until(lambda: line.read_text().split("\0")[:-1] == [sys.executable, "-c", SLEEPS])

    # The next supervisor sets its limit again.
    (group / "memory.max").write_text("max")
    successor = WorkerProcesses(str(bench.folder), bench.groups)
    successor.adopt("w1", process, 32 * MIB)
    successor.adopt("w2", None, 32 * MIB)
    assert (group / "memory.max").read_text() == str(32 * MIB)
    assert [each.name for each in above.iterdir()] == ["worker-w1"]


@pytest.mark.parametrize(
    ("events", "is_too_large"),
    [
        ("low 0\noom 1\noom_kill 1\n", True),
        ("low 0\noom 0\noom_kill 1\n", False),
        ("low 0\noom 1\noom_kill 0\n", False),
        (None, False),
    ],
    ids=["at its limit", "the machine had none left", "nobody was ended", "not known"],
)
def test_what_the_kernel_has_ended_is_told(above, started, events, is_too_large):
    bench = started(above)
    process = bench.start()
    if events is not None:
        (above / "worker-w1" / "memory.events").write_text(events)
    assert not bench.processes.look()["w1"].is_too_large, "it runs"
    os.kill(process.pid, signal.SIGKILL)
    assert bench.ended().is_too_large is is_too_large


def test_without_a_limit_there_is_no_group(above, started):
    started(above).start(memory_bytes=None)
    assert not [*above.iterdir()]


def test_worker_starts_without_a_group(above, started, caplog):
    bench = started(above / "gone")
    bench.start()
    assert bench.processes.look()["w1"].is_alive
    assert "the kernel will not limit the memory of w1" in caplog.text


# --- the kernel's --------------------------------------------------------------------------------


def test_group_holds_all_processes_and_goes_with_the_last(real_above, started, tmp_path):
    groups = ControlGroups(real_above)
    (real_above / "worker-w1").mkdir()
    (real_above / "worker-w2").mkdir()
    argv = ["/bin/sh", "-c", "cat /proc/self/cgroup; exec sleep 600"]
    command = WorkerCommand(
        argv=groups.into("w1", argv), folder=tmp_path, log=tmp_path / "worker.log"
    )
    bench = started(real_above)
    bench.processes.start("w1", command)
    own = f"0::/{real_above.name}/worker-w1"
    until(lambda: own in (tmp_path / "worker.log").read_text().splitlines())
    groups.remove("w1")
    assert (real_above / "worker-w1").exists(), "something is in it"
    assert bench.processes.look()["w1"].is_alive
    groups.remove_others(["w1"])
    assert not (real_above / "worker-w2").exists()
    bench.processes.kill("w1")
    bench.ended()
    bench.processes.forget("w1")
    assert not (real_above / "worker-w1").exists()


def test_kernel_ends_worker_over_its_limit(real_above, started):
    if "memory" not in (real_above / "cgroup.controllers").read_text().split():
        groups = ControlGroups(real_above)
        with pytest.raises(OSError, match=r"memory\.max"):
            groups.make("w1", MIB)
        assert not (real_above / "worker-w1").exists()
        pytest.skip("the machine's controller of memory is not that of cgroup v2")
    (real_above / "cgroup.subtree_control").write_text("+memory")
    bench = started(real_above)
    bench.start(f"import time; x = b'1' * {256 * MIB}; time.sleep({DEADLINE_SECS})")
    look = bench.ended()
    assert (look.exit_code, look.is_too_large) == (-signal.SIGKILL, True)
    bench.processes.forget("w1")
    assert not (real_above / "worker-w1").exists()
