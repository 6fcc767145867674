"""``storm upload-credentials`` with a small Nimbus."""

import json

import pytest
from click.testing import CliRunner

from stormkeeper.cli.commands import storm as command
from stormkeeper.thrift.nimbus import NotAliveException
from support.small_nimbus import SmallNimbus, serving


class Keeping(SmallNimbus):
    """Keeps the credentials of one topology."""

    def __init__(self):
        super().__init__()
        self.given = None

    def uploadNewCredentials(self, name, credentials):  # noqa: N802
        if name != "wc":
            raise NotAliveException(f"{name} is not alive")
        self.given = (credentials.creds, credentials.topoOwner)


@pytest.fixture
def nimbus():
    return Keeping()


@pytest.fixture
def run(environ, nimbus):
    with serving(nimbus) as seed:

        def invoke(*arguments, given=None):
            return CliRunner(env=environ).invoke(
                command,
                ["upload-credentials", *map(str, arguments), "-c", f"nimbus.seeds=[{seed}]"],
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
    assert (told.exit_code, told.output) == (0, "Uploaded new creds to topology: wc\n")
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
        (["cw", "-e", "a=b"], None, 1, "cw is not alive; `storm list` names those that are"),
    ],
)
def test_what_cannot_be_done_is_said(run, nimbus, arguments, given, code, said):
    told = run(*arguments, given=given)
    assert (told.exit_code, told.stderr) == (code, f"storm: {said}\n")
    assert nimbus.given is None
