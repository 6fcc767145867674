"""``storm monitor``, ``get-errors`` and ``remoteconfvalue`` with a small Nimbus."""

import json
import os
import pty
import subprocess

import pytest
from click.testing import CliRunner

from stormkeeper.cli.commands import storm as command
from stormkeeper.thrift.nimbus import (
    ExecutorSummary,
    NotAliveException,
    NumErrorsChoice,
    TopologyInfo,
)
from stormkeeper.thrift.records import (
    BoltStats,
    ErrorInfo,
    ExecutorInfo,
    ExecutorSpecificStats,
    ExecutorStats,
)
from support.command import STORM, Running
from support.small_nimbus import SmallNimbus, serving
from support.waiting import DEADLINE_SECS


class Informed(SmallNimbus):
    """Knows one topology, whose one bolt emits ten tuples between two looks."""

    def __init__(self):
        super().__init__()
        self.emitted = 0
        self.conf = {}
        #: How often it fails before it answers.
        self.fails = 0

    def getNimbusConf(self):  # noqa: N802
        return json.dumps(self.conf)

    def getTopologyInfoByNameWithOpts(self, name, options):  # noqa: N802
        if name != "wc":
            raise NotAliveException(f"{name} is not alive")
        errors = {}
        if options.num_err_choice == NumErrorsChoice.ONE:
            errors = {"counts": [ErrorInfo("java.lang.Oops\n\tat x", 17)], "words": []}
        if self.emitted and self.fails:
            self.fails -= 1
            raise ValueError("an error of this Nimbus")
        self.emitted += 10
        windows = {":all-time": {"default": self.emitted, "late": 1}}
        specific = ExecutorSpecificStats(bolt=BoltStats({}, {}, {}, {}, {}))
        stats = ExecutorStats(windows, {}, specific, 1.0)
        executors = [
            ExecutorSummary(ExecutorInfo(1, 1), "counts", "node-1", 6700, 5, stats),
            ExecutorSummary(ExecutorInfo(2, 2), "words", "node-1", 6700, 5),
        ]
        return TopologyInfo("wc-1-17", "wc", 5, executors, "ACTIVE", errors)


@pytest.fixture
def nimbus():
    return Informed()


@pytest.fixture
def options(nimbus):
    with serving(nimbus) as seed:
        yield ["-c", f"nimbus.seeds=[{seed}]"]


@pytest.fixture
def run(environ, options):
    return lambda *arguments: CliRunner(env=environ).invoke(command, [*arguments, *options])


def test_the_newest_errors_in_storms_shape(run):
    told = run("get-errors", "wc")
    assert told.exit_code == 0, told.output
    assert json.loads(told.stdout) == {
        "Topology Name": "wc",
        "Comp-Errors": {"counts": "java.lang.Oops\n\tat x"},
    }
    told = run("get-errors", "cw")
    assert told.exit_code == 1
    assert json.loads(told.stdout) == {"Failure": "No topologies running with name cw"}


def test_the_newest_errors_on_a_terminal(environ, options):
    screen, terminal = pty.openpty()
    with os.fdopen(screen, "rb", buffering=0) as shown, os.fdopen(terminal, "wb") as stdout:
        command_line = [STORM, "get-errors", "wc", *options]
        subprocess.run(command_line, env=environ, stdout=stdout, check=True, timeout=DEADLINE_SECS)
        lines = shown.read(4096).decode().splitlines()
    assert lines[0].startswith("counts, ")
    assert lines[1:] == ["  java.lang.Oops", "          at x"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["cw"], "there is no topology cw; `storm list` shows all"),
        (["wc", "-m", "sums"], "wc has no component sums; it has counts, words"),
        (
            ["wc", "-m", "counts", "-s", "early"],
            "counts has emitted nothing on a stream early; there are default, late",
        ),
        (
            ["wc", "-s", "early"],
            "no component has emitted anything on a stream early; there are default, late",
        ),
    ],
)
def test_what_is_not_there_is_said(run, arguments, said):
    told = run("monitor", *arguments)
    assert (told.exit_code, told.stdout, told.stderr) == (1, "", f"storm: {said}\n")


def test_rows_of_all_components_until_ctrl_c(environ, options):
    with Running(["monitor", "wc", "-i", "1", *options], environ) as running:
        assert running.line().split("  ")[0] == "TIME"
        rows = [running.line().split()[1:] for _ in range(4)]
        assert running.interrupt() == 0
    assert rows[:2] == [
        ["counts", "1", "default", "10", "so", "far", "-"],
        ["words", "1", "default", "0", "so", "far", "-"],
    ]
    *what, rate = rows[2]
    assert what == ["counts", "1", "default", "10"]
    assert 0 < float(rate) <= 10
    assert rows[3] == ["words", "1", "default", "0", "0.0"]


def test_rows_as_json_go_on_when_nimbus_answers_again(environ, options, nimbus):
    arguments = ["monitor", "wc", "-m", "words", "-i", "1", "--json", *options]
    nimbus.fails = 1
    with Running(arguments, environ) as running:
        assert json.loads(running.line()) == {
            **{"topology": "wc", "component": "words", "executors": 1, "stream": "default"},
            **{"ms": 0, "emitted": 0, "per_ms": 0.0},
        }
        assert "Nimbus does not answer: " in running.remark()
        assert running.remark().endswith("Nimbus answers again")
        assert json.loads(running.line())["ms"] >= 1_000
        assert running.interrupt() == 0


def test_a_value_of_nimbus(run, nimbus):
    nimbus.conf = {"storm.zookeeper.servers": ["a", "b"], "my.key": True}
    told = run("remoteconfvalue", "storm.zookeeper.servers")
    assert (told.exit_code, told.stdout) == (0, "storm.zookeeper.servers: [a, b]\n")
    assert run("remoteconfvalue", "my.key", "--json").stdout == '{"my.key": true}\n'
    assert run("remoteconfvalue", "ui.port").stdout == "ui.port: null\n"
    told = run("remoteconfvalue", "storm.zookeeper.server")
    assert (told.exit_code, told.stderr) == (
        1,
        "storm: there is no configuration key storm.zookeeper.server; is storm.zookeeper.servers"
        " meant?\n",
    )
