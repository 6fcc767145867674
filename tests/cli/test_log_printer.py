"""Following the logs of several machines, which move, die and come again; over real HTTP."""

import json
from contextlib import ExitStack

import pytest

from stormkeeper.cli import logs
from stormkeeper.cli.logs import LogPrinter
from stormkeeper.client.log_server import LogMachine
from stormkeeper.errors import LeaderNotFoundError
from support.logs import Log, serving

ID = "wc-1-1700000000"


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    """Let rounds follow each other at once, each with a look at where the workers are."""
    for period in ("_ROUND", "_AGAIN", "_LOOK"):
        monkeypatch.setattr(logs, period, 0.0)


@pytest.fixture
def machines(tmp_path):
    """Start machines; each has a folder, and a port for as long as it is not stopped."""

    class Machines:
        def __init__(self):
            self.folders, self.started, self.ports = {}, {}, {}

        def start(self, name):
            folder = self.folders.setdefault(name, tmp_path / name)
            self.started[name] = ExitStack()
            self.ports[name] = self.started[name].enter_context(serving(folder))

        def stop(self, name):
            self.started.pop(name).close()

        def machine(self, name, *ports):
            # (All of them are this one.)
            return LogMachine("127.0.0.1", self.ports[name], True, ports)

    machines = Machines()
    yield machines
    for name in [*machines.started]:
        machines.stop(name)


def follow(logs, steps, machines):
    """Follow while `steps` are made, one after each round; each yields the machines then."""
    logs.set_machines(machines)
    logs.follow(lambda: next(steps, None))


def test_two_machines_of_which_one_dies_and_comes_again(machines, tmp_path, capsys):
    for name in ("a", "b"):
        machines.start(name)
    first = Log(tmp_path / "a", ID, 6700)
    second = Log(tmp_path / "b", ID, 6701)
    first.write("a1")
    second.write("b1")

    def now():
        return {"a": machines.machine("a", 6700), "b": machines.machine("b", 6701)}

    told = []

    def steps():
        first.write("a2")
        yield now()
        yield now()
        machines.stop("b")
        second.write("b2")
        first.write("a3")
        yield now()
        yield now()
        told.append(capsys.readouterr())
        second.rename()
        second.write("b3")
        machines.start("b")
        yield now()
        yield now()
        second.path.write_text("")
        yield now()
        first.write("a4")
        second.write("b4")

    follow(LogPrinter(ID, since=None, as_json=False), steps(), now())
    before, after = told[0], capsys.readouterr()
    assert before.out.splitlines() == [
        "127.0.0.1:6700 | a1",
        "127.0.0.1:6701 | b1",
        "127.0.0.1:6700 | a2",
        "127.0.0.1:6700 | a3",
    ]
    (remark,) = before.err.splitlines()  # once, though it was asked again
    assert "no logs of 127.0.0.1:6701: 127.0.0.1:" in remark
    assert "connection refused: nothing listens there; check that `storm supervisor` runs" in remark
    assert after.out.splitlines() == [
        "127.0.0.1:6701 | b2",
        "127.0.0.1:6701 | b3",
        "127.0.0.1:6700 | a4",
        "127.0.0.1:6701 | b4",
    ]
    again, gone = after.err.splitlines()
    assert again.endswith("127.0.0.1 answers again")
    assert gone.endswith("the topology is gone")


def test_a_worker_that_moves_is_followed_to_where_it_goes(machines, tmp_path, capsys):
    for name in ("a", "b"):
        machines.start(name)
    Log(tmp_path / "a", ID, 6700).write("before")

    def steps():
        yield {"a": machines.machine("a", 6700)}
        yield {}
        Log(tmp_path / "b", ID, 6702).write("after")
        yield {"b": machines.machine("b", 6702)}

    follow(LogPrinter(ID, since=None, as_json=False), steps(), {"a": machines.machine("a", 6700)})
    assert capsys.readouterr().out.splitlines() == ["before", "after"]


def test_where_the_workers_are_may_be_unknown_for_a_while(machines, tmp_path, capsys):
    machines.start("a")
    log = Log(tmp_path / "a", ID, 6700)
    now = {"a": machines.machine("a", 6700)}
    looks = iter([now, None, None, now])

    def look():
        log.write("more")
        found = next(looks, StopIteration)
        if found is None:
            raise LeaderNotFoundError("nobody leads")
        return None if found is StopIteration else found

    logs = LogPrinter(ID, since=None, as_json=True)
    logs.set_machines(now)
    logs.follow(look)
    told = capsys.readouterr()
    lines = [json.loads(line) for line in told.out.splitlines()]
    assert lines == [{"host": "127.0.0.1", "port": 6700, "line": "more"}] * 5
    unknown, _gone = told.err.splitlines()
    assert unknown.endswith("the workers' machines are unknown at present: nobody leads")


def test_unreachable_machines_do_not_delay_the_others(machines, tmp_path, capsys):
    machines.start("a")
    Log(tmp_path / "a", ID, 6700).write("here")
    logs = LogPrinter(ID, since=None, as_json=False)
    logs.set_machines(
        {
            "gone": LogMachine("host-x", None, False, (6700, 6701)),
            "deaf": LogMachine("host-y", None, True, (6700,)),
            "a": machines.machine("a", 6700, 6709),
        }
    )
    assert logs.print_once()
    told = capsys.readouterr()
    assert told.out == "127.0.0.1:6700 | here\n"
    gone, deaf, none = told.err.splitlines()
    assert "no logs of host-x:6700, host-x:6701: no supervisor is registered there" in gone
    assert "no logs of host-y:6700: its supervisor has no HTTP" in deaf
    assert none == f"storm: 127.0.0.1:6709 has no log of {ID}"
