import json

import pytest


@pytest.fixture
def check(storm, tmp_path):
    def check(text, *options):
        file = tmp_path / "storm.yaml"
        file.write_text(text)
        told = storm("config", "check", "storm.yaml", *options)
        assert "Traceback" not in told.stderr
        return told

    return check


def test_all_that_is_wrong_is_told_at_once(check):
    told = check(
        "pacemaker.port: 70000\n"
        "nimbus.seeds: [a, b]\n"
        "pacemaker.prot: 1\n"
        "nimbus.task.timeout.secs: soon\n"
        "storm.zookeeper.auth.payload: {hush: hush}\n"
    )
    assert told.returncode == 1
    assert told.stdout.splitlines()[:3] == [
        "error: storm.yaml: pacemaker.port: expected a whole number from 0 to 65535; got 70000",
        "warning: storm.yaml: unknown key pacemaker.prot; is pacemaker.port meant?",
        "error: storm.yaml: nimbus.task.timeout.secs: expected a number of seconds above 0;"
        " got the text soon",
    ]
    assert "hush" not in told.stdout
    assert told.stderr == "storm: storm.yaml: 5 keys, 3 errors, 1 warning\n"


def test_levels_in_place_of_dots(check):
    told = check("ui.port: 1\npacemaker:\n  port: 7000\n  tls: {enable: true}\n")
    assert (told.returncode, told.stdout) == (
        1,
        "error: storm.yaml: pacemaker: keys are written flat: pacemaker.port: 7000\n",
    )


def test_a_file_that_is_right(check):
    told = check("pacemaker.servers: [a, 'b:7000']\nstorm.scheduler: org.x.Y\n")
    assert (told.returncode, told.stdout) == (0, "")
    assert told.stderr == "storm: storm.yaml: 2 keys, all well\n"


def test_a_warning_is_an_error_where_that_is_asked_for(check):
    assert check("my.own: 1\n").returncode == 0
    told = check("my.own: 1\n", "--strict")
    assert (told.returncode, told.stdout) == (1, "error: storm.yaml: unknown key my.own\n")


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("a: [", "storm.yaml: "),
        ("- a\n", "must hold `key: value` lines"),
        ("pacemaker.servers: a\npacemaker.port: 0\n", "pacemaker.port is 0"),
        ("a: 1\na: 2\n", "twice"),
        ('pacemaker.childopts: "-Da=\'b"\n', "pacemaker.childopts has a quote without"),
    ],
)
def test_what_is_wrong_with_the_whole_file(check, text, what):
    told = check(text)
    assert told.returncode == 1
    assert told.stdout.startswith("error: storm.yaml: ")
    assert what in told.stdout
    assert len(told.stdout.splitlines()) == 1


def test_what_nothing_switches_on_is_a_warning(check):
    told = check(
        "java.security.auth.login.config: none.conf\npacemaker.tls.key.file: a\n", "--strict"
    )
    assert told.returncode == 0
    login, tls = told.stdout.splitlines()
    assert login.startswith("warning: storm.yaml: the JAAS file none.conf cannot be read: No such")
    assert tls.startswith("warning: storm.yaml: pacemaker.tls.key.file has no effect")


def test_as_json(check):
    told = json.loads(check("pacemaker.port: x\nmy.own: 1\n", "--json").stdout)
    assert (told["file"], told["keys"]) == ("storm.yaml", 2)
    port, own = told["findings"]
    assert (port["key"], port["error"]) == ("pacemaker.port", True)
    assert (own["key"], own["error"]) == ("my.own", False)


def test_there_is_no_such_file(storm):
    told = storm("config", "check", "none.yaml")
    assert told.returncode == 2
    assert "none.yaml" in told.stderr


def test_what_a_command_says_of_a_file_is_what_check_says(check, storm):
    said = check("pacemaker.port: 70000\n").stdout.removeprefix("error: ")
    assert storm("localconfvalue", "pacemaker.port", "--config", "storm.yaml").stderr == (
        f"storm: {said}"
    )


SECURE = (
    "storm.thrift.transport: org.apache.storm.security.auth.kerberos.KerberosSaslTransportPlugin\n"
    "supervisor.run.worker.as.user: true\n"
    "topology.priority: 3\n"
)


def test_access_control_is_named_and_starts_no_daemon(check, storm):
    told = check(SECURE)
    assert told.returncode == 1
    first, second = told.stdout.splitlines()
    assert first.startswith("error: storm.yaml: line 1: storm.thrift.transport: asks for access")
    assert second.startswith("error: storm.yaml: line 2: supervisor.run.worker.as.user: asks")
    for daemon in ("nimbus", "supervisor"):
        ended = storm(daemon, "--config", "storm.yaml")
        assert ended.returncode == 2
        assert "storm.thrift.transport (storm.yaml, line 1)" in ended.stderr
        assert "supervisor.run.worker.as.user (storm.yaml, line 2)" in ended.stderr
    told = check(SECURE + "stormkeeper.ignore.security.keys: true\n")
    assert told.returncode == 0
    assert len(told.stdout.splitlines()) == 2


def test_servers_without_effect_are_warned_of(check):
    told = check("nimbus.host: a\nnimbus.seeds: [b]\ndrpc.servers: [c]\n")
    assert (told.returncode, told.stdout) == (
        0,
        "warning: storm.yaml: drpc.servers (storm.yaml, line 3) has no effect: there is no DRPC"
        " here\nwarning: storm.yaml: nimbus.host (storm.yaml, line 1) has no effect: nimbus.seeds"
        " is set, to b\n",
    )
