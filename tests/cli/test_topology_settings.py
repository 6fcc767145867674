"""What is set for a topology that runs, with a small Nimbus."""

import json

import pytest
from click.testing import CliRunner

from stormkeeper.cli.commands import storm as command
from stormkeeper.thrift.nimbus import NotAliveException
from stormkeeper.thrift.records import LogConfig, LogLevelAction
from support.small_nimbus import SmallNimbus, serving


class Keeping(SmallNimbus):
    """Keeps the credentials and the log levels of one topology."""

    def __init__(self):
        super().__init__()
        self.given = None
        self.levels = {}

    def setLogConfig(self, storm_id, config):  # noqa: N802
        assert storm_id == self.topologies["wc"].id
        self.levels |= config.named_logger_level

    def getLogConfig(self, _):  # noqa: N802
        return LogConfig(self.levels)

    def uploadNewCredentials(self, name, credentials):  # noqa: N802
        if name != "wc":
            raise NotAliveException(f"{name} is not alive")
        self.given = (credentials.creds, credentials.topoOwner)


def _command(arguments):
    is_named = arguments and arguments[0] == "set_log_level"
    return [*([] if is_named else ["upload-credentials"]), *map(str, arguments)]


@pytest.fixture
def nimbus():
    return Keeping()


@pytest.fixture
def run(environ, nimbus):
    with serving(nimbus) as seed:

        def invoke(*arguments, given=None):
            return CliRunner(env=environ).invoke(
                command,
                [*_command(arguments), "-c", f"nimbus.seeds=[{seed}]"],
                input=given,
            )

        yield invoke


def test_as_json_without_values(run, tmp_path):
    file = tmp_path / "credentials"
    file.write_text("user=bob\npassword=hunter2\n")
    told = run("wc", "-f", file, "--json")
    assert json.loads(told.output) == {"name": "wc", "keys": ["password", "user"]}


def test_from_a_file(run, nimbus, tmp_path):
    file = tmp_path / "credentials"
    file.write_text("user=bob\npassword=hunter2\n")
    told = run("wc", "-f", file)
    assert (told.exit_code, told.output) == (
        0,
        "Uploaded new creds to topology: wc\nIts workers read them at their next start:"
        " `storm rebalance wc -w 0` restarts them\n",
    )
    assert nimbus.given == ({"user": "bob", "password": "hunter2"}, None)


def test_from_standard_input_and_the_command_line(run, nimbus):
    told = run("wc", "-f", "-", "-e", "user=eve", "-u", "alice", given='{"user": "bob", "k": "v"}')
    assert told.exit_code == 0, told.output
    assert nimbus.given == ({"user": "eve", "k": "v"}, "alice")


@pytest.mark.parametrize(
    ("arguments", "given", "code", "said"),
    [
        (["wc"], None, 2, "no credentials are given: name a file with -f FILE"),
        (["wc", "-f", "-"], "hunter2", 2, "line 1 of standard input is no KEY=VALUE"),
        (["wc", "-f", "-"], b"\xff\xfe", 2, "standard input is not UTF-8"),
        (["wc", "-e", "hunter2"], None, 2, "credential 1 of the command line is no KEY=VALUE"),
        (
            ["cw", "-e", "a=b"],
            None,
            1,
            "there is no topology cw; `storm list` shows all",
        ),
    ],
)
def test_what_cannot_be_done_is_said(run, nimbus, arguments, given, code, said):
    told = run(*arguments, given=given)
    assert (told.exit_code, told.stderr) == (code, f"storm: {said}\n")
    assert nimbus.given is None


def test_log_levels_are_set_removed_and_shown(run, nimbus):
    nimbus.has("wc")
    assert run("set_log_level", "wc").output == "no log level is set for wc\n"
    told = run("set_log_level", "wc", "-l", "ROOT=debug:30", "-l", "a.b=WARN", "-r", "c")
    assert told.exit_code == 0, told.output
    root, other, removed = (nimbus.levels[name] for name in ("ROOT", "a.b", "c"))
    assert (root.target_log_level, root.reset_log_level_timeout_secs) == ("DEBUG", 30)
    assert (other.target_log_level, other.reset_log_level_timeout_secs) == ("WARN", None)
    assert removed.action == LogLevelAction.REMOVE
    root.reset_log_level_timeout_epoch = 2**62
    del nimbus.levels["c"]
    lines = run("set_log_level", "wc").output.splitlines()
    assert [line.split(",")[0] for line in lines] == ["ROOT=DEBUG", "a.b=WARN"]
    root.reset_log_level_timeout_epoch = 1
    assert run("set_log_level", "wc", "--json").output == (
        '{"name": "wc", "levels": {"a.b": "WARN"}}\n'
    )
    told = run("set_log_level", "wc", "-l", "ROOT")
    assert told.exit_code == 2
    assert "'ROOT' is no LOGGER=LEVEL or LOGGER=LEVEL:SECS" in told.output
    told = run("set_log_level", "wc", "-l", "ROOT=LOUD")
    assert told.exit_code == 2
    assert "LOUD is none of ALL, TRACE, DEBUG, INFO, WARN, ERROR, FATAL, OFF" in told.output
