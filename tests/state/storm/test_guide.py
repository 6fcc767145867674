"""docs/cluster-state.md: its tree is that of the code, its calls are all there are, it runs."""

import inspect
import re
import shlex
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from stormkeeper import conf as configuration
from stormkeeper import paths
from stormkeeper.cli.commands import storm as command
from stormkeeper.state.storm import cluster
from stormkeeper.state.storm.cluster import LeaderClusterState, StormClusterState
from stormkeeper.thrift import records
from stormkeeper.thrift.records import StormBase, TopologyStatus

PAGE = (Path(__file__).parents[3] / "docs" / "cluster-state.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"^```python\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)

#: What is typed in a shell and ends by itself.
COMMANDS = [line for line in re.findall(r"(?m)^storm state .*$", PAGE) if "watch" not in line]

#: The rows of the tree: node, value, written by, read by.
ROWS = [
    [cell.strip() for cell in line.removeprefix("| ").split(" | ")]
    for line in PAGE.partition("## The tree")[2].partition("## From")[0].splitlines()
    if line.startswith("| `/")
]

LAYOUT = {
    paths.storm("<id>"),
    paths.assignment("<id>"),
    paths.credentials("<id>"),
    paths.checkpoints("<id>"),
    paths.log_config("<id>"),
    paths.profiler_config("<id>", "<node>", "<port>", "<action>"),
    paths.supervisor("<supervisor>"),
    paths.nimbus("<host>"),
    f"{paths.LEADER_LOCK}/_c_<guid>-latch-<number>",
    paths.LEADER_INFO,
    paths.workerbeat("<id>", "<node>", "<port>"),
    paths.query_end("<id>", "<query>").replace("%3C", "<").replace("%3E", ">"),
    paths.query_claim("<id>", "<query>").replace("%3C", "<").replace("%3E", ">"),
    paths.error_prefix("<id>", "<component>").replace("%3C", "<").replace("%3E", ">") + "<number>",
    paths.last_error("<id>", "<component>").replace("%3C", "<").replace("%3E", ">"),
    paths.backpressure("<id>", "<node>", "<port>"),
    paths.blob_holder("<key>", "<nimbus>", "<version>"),
    paths.blob_key_sequence("<key>"),
    paths.blob_record("<key>", "<nimbus>", "<version>"),
    paths.task("<id>", "<task>"),
    paths.taskbeat("<id>", "<task>"),
    paths.task_error_prefix("<id>", "<task>") + "<number>",
    paths.SECRET_KEYS,
}


def named(text):
    """What stands between backticks."""
    return re.findall(r"`([^`]+)`", text)


def public(cls):
    return {name for name in dir(cls) if not name.startswith("_")}


def test_the_tree_is_the_codes():
    nodes = [named(row[0])[0] for row in ROWS]
    assert len(nodes) == len(set(nodes))
    assert set(nodes) == LAYOUT
    assert {paths.first_level(node) for node in nodes} == paths.FIRST_LEVEL


def test_the_directories_are_those_that_a_daemon_makes():
    [line] = [line for line in PAGE.splitlines() if "Each daemon makes" in line]
    assert {name for name in named(line) if name.startswith("/")} == set(paths.DIRECTORIES)


def test_every_record_of_the_tree_is_one():
    for row in ROWS:
        for name in named(row[1]):
            assert hasattr(records, name), name


def test_tree_table_names_every_call_and_who_has_it():
    for row in ROWS:
        for sentence in re.split(r"; |(?<=`), (?=the |each |who)", row[2]):
            calls = set(named(sentence))
            if sentence.startswith("the leader"):
                assert calls <= public(LeaderClusterState), sentence
                assert not calls & public(StormClusterState), sentence
            else:
                assert calls <= public(StormClusterState), sentence
        assert set(named(row[3])) <= public(StormClusterState) & public(LeaderClusterState), row[0]


def test_every_call_there_is_has_its_place():
    prose = re.sub(r"(?ms)^```.*?^```$", "", PAGE)
    told = {word for name in named(prose) for word in re.findall(r"\w+", name)}
    assert public(StormClusterState) | public(LeaderClusterState) <= told


def test_the_reads_that_have_a_callback_are_listed():
    [line] = [line for line in PAGE.splitlines() if line.startswith("These have a `callback`")]
    listed = named(line.partition(". For")[0])[1:]
    assert listed == [
        name
        for name in sorted(public(StormClusterState))
        if callable(call := getattr(StormClusterState, name))
        and "callback" in inspect.signature(call).parameters
    ]


@pytest.mark.zookeeper
def test_the_examples_run_one_after_the_other(zookeeper_settings, tmp_path, monkeypatch, capsys):
    (tmp_path / "storm.yaml").write_text(yaml.safe_dump(zookeeper_settings()))
    monkeypatch.setenv("STORM_CONF_DIR", str(tmp_path))
    before = cluster.connect(configuration.load())
    base = StormBase("wc", TopologyStatus.INACTIVE, 1)
    before.state.set_data(paths.storm("wc-0-1690000000"), before.codec.write(base))
    names = {}
    try:
        for example in EXAMPLES:
            exec(compile(example, "docs/cluster-state.md", "exec"), names)
        deactivated = before.storm_base("wc-1-1700000000").status
        shown = capsys.readouterr().out.splitlines()
        for line in COMMANDS:
            ran = CliRunner().invoke(command, shlex.split(line)[1:])
            assert ran.exit_code == 0, (line, ran.output)
    finally:
        if "storm" in names:
            names["storm"].disconnect()
        before.disconnect()
    first, assigned, unchanged, requested, ahead, epoch, *executors, refused = shown
    assert unchanged == "nothing has changed"
    assert executors == ["tasks 1 to 1 on supervisor-1:6700", "tasks 2 to 3 on supervisor-1:6700"]
    assert requested == "JSTACK_DUMP"
    assert first == "wc-0-1690000000 INACTIVE 0 workers"
    assert (assigned, ahead, epoch) == ("[]", "None", "True")
    assert "does not lead any more" in refused
    assert deactivated is TopologyStatus.ACTIVE
    assert [line.split()[2] for line in COMMANDS] == ["tree", "get", "check"]
