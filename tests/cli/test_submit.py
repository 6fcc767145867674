"""``storm submit``, with a small Nimbus."""

import json
import signal

import pytest
from click.testing import CliRunner

from stormkeeper.cli.commands import storm as command
from stormkeeper.client import topology_commands
from stormkeeper.topology.faults import crash
from support.command import Running
from support.packages import STREAMING, tree
from support.small_nimbus import SmallNimbus, serving

OWN_CONF = """
from stormkeeper.topology import Topology
topology = Topology("own", conf={"topology.worker": 2, "input": 1})

@topology.spout
def rows(spark):
    return spark

@topology.bolt(rows)
def out(rows):
    return rows.writeStream
"""


@pytest.fixture
def nimbus():
    return SmallNimbus()


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "plain_job.py"
    path.write_text(STREAMING)
    return path


@pytest.fixture
def named(script):
    """A script that names its checkpoint: there is nothing to warn of."""
    own = '.option("checkpointLocation", "/shared/plain").start()'
    script.write_text(STREAMING.replace(".start()", own))
    return script


@pytest.fixture
def submit(environ, nimbus, monkeypatch):
    """Submit to the cluster of the small Nimbus."""
    monkeypatch.setattr(topology_commands, "PERIOD_SECS", 0.01)
    with serving(nimbus) as seed:

        def invoke(*arguments, by="submit"):
            return CliRunner(env=environ).invoke(
                command, ["-c", f"nimbus.seeds=[{seed}]", by, *map(str, arguments)]
            )

        yield invoke


@pytest.mark.parametrize("by", ["submit", "jar"])
def test_it_waits_until_it_runs(submit, nimbus, named, by):
    nimbus.looks = 3
    told = submit(named, by=by)
    assert told.exit_code == 0, told.output
    assert told.stdout == "Finished submitting topology: plain-job\n"
    assert told.stderr.splitlines() == [
        "storm: plain-job: no worker is assigned yet",
        "storm: plain-job: no new pulse yet of node-1:6700",
        "storm: plain-job: it runs at node-1:6700",
    ]
    assert nimbus.topologies["plain-job"].conf == {"topology.checkpoint.scripts": False}


def test_name_conf_and_arguments(submit, nimbus, script):
    told = submit(
        script, "nightly", "-c", "topology.workers=2", "-c", "day=3", "--", "-x", "--", "y"
    )
    assert told.exit_code == 0, told.output
    assert nimbus.topologies["nightly"].conf == {"topology.workers": 2, "day": 3}
    assert nimbus.packages["nightly"].manifest.arguments == ("-x", "--", "y")


def test_a_mistyped_key_is_a_warning_or_an_error(submit, nimbus, named):
    says = "-c: unknown key topology.workrs; is topology.workers meant?"
    told = submit(named, "-c", "topology.workrs=2", "-c", "day=3", "--strict")
    assert (told.exit_code, told.stderr) == (2, f"storm: {says}\n")
    assert nimbus.uploads == {}
    told = submit(named, "-c", "topology.workrs=2", "-c", "day=3", "--no-wait")
    assert (told.exit_code, told.stderr) == (0, f"storm: warning: {says}\n")


def test_a_mistyped_key_is_told_before_a_faulty_script(submit, tmp_path):
    (tmp_path / "job.py").write_text("def f(:")
    told = submit(tmp_path / "job.py", "-c", "topology.workrs=2", "--strict")
    assert told.exit_code == 2
    assert "topology.workers meant?" in told.stderr


def test_a_mistyped_key_of_the_topologys_own_conf(submit, nimbus, tmp_path):
    (tmp_path / "job.py").write_text(OWN_CONF)
    told = submit(tmp_path / "job.py", "--strict")
    says = "the conf of the topology 'own': unknown key topology.worker; is topology.workers meant?"
    assert (told.exit_code, told.stderr) == (2, f"storm: {says}\n")
    assert nimbus.uploads == {}


def test_arguments_are_no_name(submit, nimbus, script):
    assert submit(script, "--", "y").exit_code == 0
    assert nimbus.packages["plain-job"].manifest.arguments == ("y",)


def test_files_that_come_along(submit, nimbus, script, tmp_path):
    tree(tmp_path, {"helper.py": "", "b.zip": b"PK", "c.jar": b"PK"})
    told = submit(
        script,
        *("--py-files", f"{tmp_path / 'helper.py'},{tmp_path / 'b.zip'}"),
        *("--jars", tmp_path / "c.jar", "--packages", "org.x:y:1.0,org.x:z:2"),
    )
    assert told.exit_code == 0, told.output
    manifest = nimbus.packages["plain-job"].manifest
    assert manifest.py_files == ("py-files/helper.py", "py-files/b.zip")
    assert manifest.jars == ("jars/c.jar",)
    assert manifest.jvm_packages == ("org.x:y:1.0", "org.x:z:2")


def test_secrets_go_as_credentials_and_nowhere_else(submit, nimbus, script, tmp_path):
    file = tmp_path / "secrets.txt"
    file.write_text("# of the store\ndb.password=hunter2\n")
    told = submit(script, "--credentials", file)
    assert told.exit_code == 0, told.output
    assert nimbus.credentials == {"plain-job": {"db.password": "hunter2"}}
    assert nimbus.topologies["plain-job"].conf == {}
    assert submit(script, "another").exit_code == 0
    assert nimbus.credentials["another"] is None


def test_invalid_credentials_are_reported_before_an_upload(submit, nimbus, script, tmp_path):
    file = tmp_path / "secrets.txt"
    file.write_text("hunter2\n")
    told = submit(script, "--credentials", file)
    assert told.exit_code == 2
    assert f"line 1 of {file}" in told.stderr
    assert "hunter2" not in told.output
    assert nimbus.uploads == {}


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (("--jars", "a.zip"), "a.zip is no .jar file"),
        (("--jars", "a.jar"), "there is no file a.jar"),
        (("--packages", "y:1.0"), "y:1.0 is no GROUP:NAME:VERSION"),
        (("--day", "3"), "Options of the script follow --"),
    ],
)
def test_wrong_usage(submit, nimbus, script, wrong, said):
    told = submit(script, *wrong)
    assert told.exit_code == 2
    assert said in " ".join(told.stderr.split())
    assert nimbus.uploads == {}


def test_a_fault_is_said_with_its_line(submit, nimbus, script):
    script.write_text("x = 1\ndef f(:\n")
    told = submit(script)
    assert told.exit_code == 1
    assert told.stderr.startswith(f"storm: {script}, line 2: invalid syntax")
    assert nimbus.uploads == {}


def test_what_is_not_there(submit, tmp_path):
    told = submit(tmp_path / "gone.py")
    assert told.exit_code == 1
    assert "gone.py" in told.stderr


def test_a_name_that_is_taken(submit, nimbus, script):
    nimbus.has("plain-job")
    told = submit(script)
    assert told.exit_code == 1
    assert "end it with `storm kill plain-job`" in told.stderr


def test_without_waiting_as_json(submit, nimbus, script):
    told = submit(script, "--no-wait", "--json")
    assert told.exit_code == 0, told.output
    printed = json.loads(told.stdout)
    assert printed.pop("package_bytes") > 0
    assert printed == {
        "name": "plain-job",
        "id": nimbus.topologies["plain-job"].id,
        "done": False,
        "text": "Nimbus has accepted it; the command did not wait",
    }


def test_one_that_does_not_run_in_time_is_submitted_all_the_same(submit, nimbus, script):
    nimbus.looks = 1_000_000
    told = submit(script, "--timeout", "0.1", "--json")
    assert told.exit_code == 4
    assert json.loads(told.stdout)["text"] == "no worker is assigned yet"
    assert "Nimbus has accepted the command, and continues" in told.stderr


def test_the_first_crash_is_said_at_once(submit, nimbus, script):
    text = crash(6700, 1, "it ended with exit code 1")
    nimbus.fails_with = f"{text}:\nTraceback (most recent call last):\n  …\nKeyError: 'day'\x1b"
    told = submit(script, "--json")
    assert told.exit_code == 4
    assert told.stderr.splitlines()[-6:] == [
        "storm: plain-job: the worker in slot 6700 crashed (1 in a row): it ended with exit code"
        " 1:",
        "Traceback (most recent call last):",
        "  …",
        "KeyError: 'day'\\x1b",
        "",
        "plain-job stays submitted, and its supervisor starts it again, unless topology.restart is"
        " never. `storm logs plain-job` shows its output, and `storm kill plain-job` ends it",
    ]
    printed = json.loads(told.stdout)
    assert (printed["done"], printed["text"]) == (False, nimbus.fails_with)


def test_ctrl_c_leaves_it_submitted_and_says_so(environ, nimbus, named):
    nimbus.looks = 1_000_000
    with serving(nimbus) as seed:
        options = ["-c", f"nimbus.seeds=[{seed}]"]
        with Running(["submit", str(named), *options], environ) as running:
            assert running.line() == "Finished submitting topology: plain-job"
            assert running.remark() == "storm: plain-job: no worker is assigned yet"
            assert running.interrupt() == 128 + signal.SIGINT
            stays = f"storm: plain-job stays submitted, as {nimbus.topologies['plain-job'].id}; see"
            assert running.remark().startswith(stays)
