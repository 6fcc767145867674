import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

import stormkeeper
from stormkeeper.cli import main
from stormkeeper.cli.commands import storm
from stormkeeper.pacemaker.client import PacemakerClient
from support.command import HEAVY, STORM, imported_by

COMMANDS = {
    *("pacemaker", "dev-zookeeper", "pipeline", "local", "heartbeats", "state"),
    *("version", "localconfvalue", "remoteconfvalue", "nimbus"),
    *("logs", "monitor", "get-errors", "upload-credentials", "set_log_level", "blobstore"),
    *("submit", "jar", "list", "status", "kill", "activate", "deactivate", "rebalance"),
    *("supervisor", "kill_workers", "node-health-check"),
}

#: Needs no configuration.
UNCONFIGURED = {"completion", "config"}


def test_help_names_every_command(storm):
    told = storm("--help")
    assert told.returncode == 0
    assert {
        line.split()[0] for line in told.stdout.splitlines() if line.strip()
    } > COMMANDS | UNCONFIGURED


@pytest.mark.parametrize("group", [[], ["heartbeats"], ["state"], ["blobstore"]])
def test_summaries_of_commands_are_not_cut(storm, group):
    told = storm(*group, "--help").stdout
    table = told.partition("Commands:\n")[2].partition("\n\n")[0]
    assert "..." not in table
    # A line that names a command is the first of its summary, and what is before it ends one.
    names = re.findall(r"(?m)^  (\S+) ", table)
    ends = [line for line in re.split(r"(?m)^  (?=\S)", table) if line.strip()]
    assert len(ends) == len(names) > 2
    assert all(end.rstrip().endswith(".") for end in ends)


@pytest.mark.parametrize(
    ("given", "meant"),
    [(["locl"], "local"), (["hearbeats", "list"], "heartbeats"), (["state", "lst"], "list")],
)
def test_mistyped_command_gets_a_suggestion(storm, given, meant):
    told = storm(*given)
    assert told.returncode == 2
    assert told.stderr.endswith(f"Did you mean '{meant}'?\n")


def test_the_version_is_an_option_too(storm):
    told = storm("--version")
    assert (told.returncode, told.stdout) == (0, f"Stormkeeper {stormkeeper.__version__}\n")
    assert told.stdout == storm("version").stdout.splitlines(keepends=True)[0]


@pytest.mark.parametrize(
    "command",
    [
        *[[name] for name in COMMANDS],
        ["heartbeats", "list"],
        ["heartbeats", "get"],
        ["heartbeats", "top"],
        *[["state", name] for name in ("tree", "list", "get", "watch", "check")],
        *[["blobstore", name] for name in ("list", "cat", "create", "update", "delete")],
        ["blobstore", "replication"],
    ],
)
def test_every_command_has_help_with_examples(storm, command):
    told = storm(*command, "--help")
    assert told.returncode == 0
    assert f"  storm {' '.join(command)}" in told.stdout.partition("Examples:")[2]
    for option in ("-c KEY=VALUE", "--config FILE", "--strict"):
        assert option in told.stdout


@pytest.mark.parametrize("command", [["config", "check", "storm.yaml"], ["completion", "bash"]])
def test_readme_names_the_commands_without_configuration(storm, command):
    told = storm(*command, "-c", "pacemaker.port=0")
    assert told.returncode == 2
    assert "'-c'" in told.stderr
    readme = (Path(__file__).parents[2] / "README.md").read_text()
    (sentence,) = re.findall(r"takes `-c key=value` and `--config FILE`.*", readme)
    assert f"`storm {' '.join(command[:-1])}`" in sentence


def test_help_imports_nothing_heavy(environ):
    modules = imported_by(["--help"], environ)
    assert not modules & (HEAVY | {"yaml", "msgspec"})
    assert "click" in modules


def test_a_command_is_called_as_it_was_invoked(environ, tmp_path):
    both = [Path(sys.executable).with_name(name) for name in ("storm", "stormkeeper")]
    for command, name in [
        ([str(both[0])], "storm"),
        ([str(both[1])], "stormkeeper"),
        ([sys.executable, "-m", "stormkeeper"], "storm"),
    ]:
        told = subprocess.run(
            [*command, "--help"],
            env=environ,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
        assert told.stdout.startswith(f"Usage: {name} ")


@pytest.mark.parametrize(
    "arguments", [["nonsense"], ["version", "extra"], ["localconfvalue"], ["--nonsense"]]
)
def test_wrong_usage_is_exit_code_2(storm, arguments):
    told = storm(*arguments)
    assert told.returncode == 2
    assert told.stdout == ""
    assert "Usage: storm" in told.stderr


@pytest.fixture
def unwritable(environ, tmp_path):
    """Runs a command line of the shell, in which {storm} is the command; nothing is captured."""

    def run(line, **env):
        return subprocess.run(
            line.format(storm=STORM),
            shell=True,
            env=environ | env,
            cwd=tmp_path,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
            check=False,
        )

    return run


@pytest.mark.parametrize("env", [{}, {"PYTHONUNBUFFERED": "1"}])
@pytest.mark.parametrize(
    "command", ["--help", "version", "localconfvalue pacemaker.port", "pacemaker"]
)
def test_unwritable_output_ends_a_command_with_one_line(unwritable, command, env):
    options = "-c pacemaker.port=0 -c pacemaker.bind.host=127.0.0.1"
    told = unwritable(f"exec {{storm}} {options} {command} >/dev/full", **env)
    assert told.returncode == 74
    assert "Traceback" not in told.stderr
    last = told.stderr.splitlines()[-1]
    assert last == "storm: cannot write to standard output: No space left on device"


@pytest.mark.parametrize(
    "command", ["list /", "get /.stormkeeper", "top --once", "top --once --json"]
)
def test_heartbeats_that_cannot_be_written_end_with_one_line(unwritable, pacemaker, command):
    with PacemakerClient(pacemaker.address) as client:
        client.send_pulse("/w/x", b"1")
    servers = f"-c pacemaker.servers={pacemaker.address}"
    told = unwritable(f"exec {{storm}} heartbeats {command} {servers} >/dev/full")
    assert told.returncode == 74
    assert told.stderr == "storm: cannot write to standard output: No space left on device\n"


@pytest.mark.parametrize("command", ["version", "pacemaker"])
def test_an_output_that_is_closed_ends_a_command_with_one_line(unwritable, command):
    told = unwritable(f"exec {{storm}} {command} >&-")
    assert told.returncode == 74
    assert told.stderr == (
        "storm: standard output is closed; to discard the output, use >/dev/null\n"
    )


def interrupted(process):
    """Press Ctrl-C, and return the exit code and what was said."""
    process.send_signal(signal.SIGINT)
    try:
        _, said = process.communicate(timeout=60)
    finally:
        process.kill()
    return process.returncode, said


@pytest.mark.parametrize(
    "command", [["pacemaker"], ["state", "check"], ["state", "tree"], ["heartbeats", "list", "/"]]
)
def test_ctrl_c_ends_a_command_that_starts_without_a_word(environ, tmp_path, command):
    fifo = tmp_path / "storm.yaml"
    os.mkfifo(fifo)
    starting = subprocess.Popen(
        [STORM, *command, "--config", fifo], env=environ, stderr=subprocess.PIPE, text=True
    )
    with fifo.open("w"):  # as soon as it is read
        assert interrupted(starting) == (130, "")


@pytest.mark.parametrize(
    "command",
    [["heartbeats", "list", "/"], ["heartbeats", "get", "/"], ["state", "tree"]],
)
def test_ctrl_c_ends_a_waiting_command_silently(environ, command):
    with socket.create_server(("127.0.0.1", 0)) as hangs:
        hangs.settimeout(60)
        port = hangs.getsockname()[1]
        options = ["-c", f"pacemaker.servers=127.0.0.1:{port}"]
        options += [
            "-c",
            "storm.zookeeper.servers=[127.0.0.1]",
            "-c",
            f"storm.zookeeper.port={port}",
            # It waits for its server's first word for half of that.
            "-c",
            "storm.zookeeper.session.timeout=2000",
        ]
        waiting = subprocess.Popen(
            [STORM, *command, *options], env=environ, stderr=subprocess.PIPE, text=True
        )
        connection, _ = hangs.accept()
        with connection:
            code, said = interrupted(waiting)
    assert code == 130
    # If the machine stands still for a second, the try is over before the signal is taken.
    assert re.fullmatch(r"(storm: warning: no ZooKeeper server is reached, .* not answer\n)?", said)


def test_ctrl_c_while_it_is_loaded_ends_a_command_without_a_word(monkeypatch, capsys):
    def interrupt(name, *_):
        if name == "stormkeeper.cli.commands":
            raise KeyboardInterrupt

    monkeypatch.delitem(sys.modules, "stormkeeper.cli.commands")
    monkeypatch.setattr(sys, "meta_path", [SimpleNamespace(find_spec=interrupt)])
    monkeypatch.setattr(signal, "pthread_sigmask", lambda *_: set())  # not of the tests' process
    with pytest.raises(SystemExit) as ended:
        main()
    assert (ended.value.code, capsys.readouterr().err) == (130, "")


def test_an_error_of_another_file_is_not_put_down_to_the_output(monkeypatch, capsys):
    def fail(**_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(storm, "main", fail)
    monkeypatch.setattr(signal, "pthread_sigmask", lambda *_: set())  # not of the tests' process
    with pytest.raises(OSError, match="No space left"):
        main()
    assert capsys.readouterr().err == ""


def test_without_a_temporary_folder_it_says_what_to_do(monkeypatch, capsys):
    def fail(**_):
        raise FileNotFoundError(2, "No usable temporary directory found in ['/tmp']")

    monkeypatch.setattr(storm, "main", fail)
    monkeypatch.setattr(signal, "pthread_sigmask", lambda *_: set())  # not of the tests' process
    with pytest.raises(SystemExit) as ended:
        main()
    expected = "storm: there is no temporary folder: set TMPDIR to a folder that can be written\n"
    assert (ended.value.code, capsys.readouterr().err) == (74, expected)


def test_python_without_docstrings_is_refused(storm):
    told = storm("version", PYTHONOPTIMIZE="2")
    assert told.returncode == 1
    assert told.stderr.startswith("storm: PYTHONOPTIMIZE=2 (-OO) removes what this program needs")


def test_an_ascii_locale_does_no_harm(storm):
    told = storm(
        "status",
        "wörter→",
        "-c",
        "nimbus.seeds=[127.0.0.1]",
        "-c",
        "nimbus.thrift.port=1",
        "-c",
        "storm.nimbus.retry.times=0",
        LC_ALL="C",
        PYTHONIOENCODING="ascii",
    )
    assert told.returncode == 1
    assert told.stderr.startswith("storm: ")
    assert "Traceback" not in told.stderr


def test_java_home_without_java_is_reported_before_a_start(storm, tmp_path):
    for command in (["supervisor"], ["local", str(Path("examples", "word_count.py").absolute())]):
        told = storm(*command, JAVA_HOME=str(tmp_path))
        assert told.returncode == 1
        assert f"JAVA_HOME={tmp_path} has no bin/java that can be run" in told.stderr
