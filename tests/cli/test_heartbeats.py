import json
import re
import socket
import subprocess
import time
from contextlib import ExitStack

import pytest

from stormkeeper.cli.options import normal_path
from stormkeeper.pacemaker.client import PacemakerClient
from stormkeeper.thrift import readable
from stormkeeper.thrift.records import (
    BoltStats,
    ClusterWorkerHeartbeat,
    ExecutorInfo,
    ExecutorSpecificStats,
    ExecutorStats,
    GlobalStreamId,
)
from stormkeeper.thrift.serialization import Compression, serialize
from support.certificates import certificates, tls_conf
from support.command import HEAVY, STORM, Running, imported_by
from support.scripted_pacemaker import JavaPacemaker, ScriptedConnection, ScriptedPacemaker
from support.storm_pacemaker import StormPacemaker

PATH = "/workerbeats/word-count-1-1700000000/node-6700"

#: Between pulses whose order matters.
APART_SECS = 1.5

#: Every Pacemaker that answers a command has then been there for long enough.
PATIENT = ("-c", "nimbus.task.timeout.secs=0.001")


def windows(value):
    return dict.fromkeys(("600", "10800", "86400", ":all-time"), value)


@pytest.fixture
def heartbeat():
    by_input = {GlobalStreamId(componentId="lines", streamId="default"): 5}
    stats = ExecutorStats(
        emitted=windows({"default": 17}),
        transferred=windows({"default": 17}),
        specific=ExecutorSpecificStats(
            bolt=BoltStats(
                acked=windows(by_input),
                failed=windows({}),
                process_ms_avg=windows({}),
                executed=windows(by_input),
                execute_ms_avg=windows({}),
            )
        ),
        rate=1.0,
    )
    return ClusterWorkerHeartbeat(
        storm_id="word-count-1-1700000000",
        executor_stats={ExecutorInfo(task_start=1, task_end=2): stats},
        time_secs=1700000300,
        uptime_secs=42,
    )


def is_shown(told, heartbeat, server):
    """Check that a heartbeat was printed as text, with its age and where it is."""
    (age,) = re.findall(r"(?m)^age-secs     (\d+\.\d)$", told.stdout)
    assert 0.0 <= float(age) < 60.0
    also = [("age-secs", age), ("server", server.address)]
    assert told.stdout == readable.render(heartbeat, also) + "\n"
    return True


@pytest.fixture
def client(pacemaker):
    client = PacemakerClient(pacemaker.address)
    yield client
    client.close()


@pytest.fixture
def ask(storm, pacemaker):
    """Runs ``storm heartbeats`` against a running Pacemaker."""
    servers = f"pacemaker.servers={pacemaker.address}"
    return lambda *arguments: storm("heartbeats", *arguments, "-c", servers)


@pytest.fixture
def closed_port():
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))  # and does not listen
        yield holder.getsockname()[1]


def test_list_walks_down_to_the_heartbeat(ask, client, pacemaker, heartbeat):
    client.send_pulse(PATH, serialize(heartbeat))
    client.send_pulse(PATH.replace("6700", "6701"), serialize(heartbeat))
    for path, names in [
        ("/", "workerbeats\n"),
        ("/workerbeats", "word-count-1-1700000000\n"),
        ("/workerbeats/word-count-1-1700000000", "node-6700\nnode-6701\n"),
    ]:
        told = ask("list", path)
        assert (told.returncode, told.stdout, told.stderr) == (0, names, "")
    told = ask("list", PATH)
    assert (told.returncode, told.stderr) == (0, "")
    assert is_shown(told, heartbeat, pacemaker)
    for part in ("word-count-1-1700000000", "[1-2]", "lines:default", "600", ":all-time", "42"):
        assert part in told.stdout


def test_list_as_json(ask, client, heartbeat):
    client.send_pulse(PATH, serialize(heartbeat))
    assert json.loads(ask("list", "/workerbeats", "--json").stdout) == ["word-count-1-1700000000"]
    assert json.loads(ask("list", PATH, "--json").stdout)["time_secs"] == 1700000300


@pytest.mark.slow
def test_list_goes_on_with_what_comes_and_goes(environ, start_pacemaker):
    servers = [start_pacemaker(), start_pacemaker()]
    both = f"pacemaker.servers=['{servers[0].address}', '{servers[1].address}']"
    list_ = ["heartbeats", "list", "/w", "--watch", "-c", both]
    with (
        ExitStack() as stack,
        PacemakerClient(servers[0].address) as one,
        PacemakerClient(servers[1].address) as other,
        Running([*list_, "--json"], environ) as as_json,
    ):
        assert json.loads(as_json.line()) == []
        one.send_pulse("/w/a", b"")
        assert json.loads(as_json.line()) == ["a"]
        listing = stack.enter_context(Running(list_, environ))
        assert listing.line() == "a"
        assert listing.remark().endswith(" watching /w")
        other.send_pulse("/w/b", b"")
        assert listing.line().split()[1:] == ["+b"]
        assert json.loads(as_json.line()) == ["a", "b"]
        other.delete_pulse("/w/b")
        assert listing.line().split()[1:] == ["-b"]
        # What a server has that does not answer is not gone.
        servers[1].kill()
        assert servers[1].address in listing.remark()
        one.send_pulse("/w/c", b"")
        assert listing.line().split()[1:] == ["+c"]
        assert listing.interrupt() == 0


def test_list_goes_on_when_nobody_answers_any_more(environ, client, pacemaker):
    client.send_pulse("/w/a", b"")
    servers = ["-c", f"pacemaker.servers={pacemaker.address}"]
    list_ = ["heartbeats", "list", "/w", "--watch", *servers, *PATIENT]
    with Running(list_, environ) as listing:
        assert listing.line() == "a"
        assert listing.remark().endswith(" watching /w")
        pacemaker.kill()
        assert "no Pacemaker answered" in listing.remark()
        pacemaker.start()
        assert listing.remark().endswith(" Every Pacemaker answers again")
        assert listing.line().split()[1:] == ["-a"]
        assert listing.interrupt() == 0


@pytest.mark.slow
def test_what_a_pacemaker_lost_as_it_started_again_is_not_gone(environ, start_pacemaker):
    one, other = start_pacemaker(), start_pacemaker()
    servers = ["-c", f"pacemaker.servers=['{one.address}', '{other.address}']"]
    list_ = ["heartbeats", "list", "/w", "--watch", *servers]
    # Beyond any test; a name that goes on one that was there all the time goes at once.
    list_ += ["-c", "nimbus.task.timeout.secs=3600"]
    with PacemakerClient(one.address) as stays, PacemakerClient(other.address) as goes:
        stays.send_pulse("/w/a", b"")
        stays.send_pulse("/w/b", b"")
        goes.send_pulse("/w/c", b"")
        with Running(list_, environ) as listing:
            assert [listing.line() for _ in range(3)] == ["a", "b", "c"]
            assert listing.remark().endswith(" watching /w")
            stays.delete_pulse("/w/b")
            assert listing.line().split()[1:] == ["-b"]
            other.kill()
            said = listing.remark()
            assert re.match(
                r"storm: \d\d:\d\d:\d\d 1 of 2 Pacemakers failed in the last read:", said
            )
            assert other.address in said
            other.start()
            assert listing.remark().endswith(" Every Pacemaker answers again")
            said = listing.remark()
            assert f" {other.address} has received heartbeats for only " in said
            assert said.endswith(" until it has for 3600 s")
            goes.send_pulse("/w/c", b"")
            goes.send_pulse("/w/d", b"")
            assert listing.line().split()[1:] == ["+d"]
            # All that is listed was there together; what goes now has gone.
            goes.delete_pulse("/w/d")
            assert listing.line().split()[1:] == ["-d"]
            assert listing.interrupt() == 0


def test_who_has_just_started_is_named_where_nothing_is_found(ask, pacemaker, client):
    for command, code in ((("list", "/"), 0), (("list", PATH), 1), (("get", PATH), 1)):
        told = ask(*command)
        assert (told.returncode, told.stdout) == (code, "")
        new, _ = told.stderr.splitlines()
        assert new.startswith(f"storm: {pacemaker.address} has received heartbeats for only ")
        assert new.endswith(" s: workers may not have sent one yet")
    client.send_pulse(PATH, b"x")
    assert ask("list", "/").stderr == ""


@pytest.mark.parametrize("compression", Compression)
def test_get(ask, client, pacemaker, heartbeat, compression):
    client.send_pulse(PATH, serialize(heartbeat, compression))
    told = ask("get", PATH)
    assert (told.returncode, told.stderr) == (0, "")
    assert is_shown(told, heartbeat, pacemaker)
    told = ask("get", "--json", PATH)
    shown = json.loads(told.stdout)
    assert 0.0 <= shown.pop("age_secs") < 60.0
    assert shown.pop("server") == pacemaker.address
    assert shown == readable.to_builtins(heartbeat)
    assert len(told.stdout.splitlines()) == 1


def test_the_newest_of_several_pacemakers_is_shown(storm, start_pacemaker, heartbeat):
    servers = [start_pacemaker(), start_pacemaker()]
    for server, uptime in zip(servers, (41, 42), strict=True):
        heartbeat.uptime_secs = uptime
        with PacemakerClient(server.address) as client:
            client.send_pulse(PATH, serialize(heartbeat))
        # Ages come with answers, of which one may be late.
        time.sleep(APART_SECS if server is servers[0] else 0)
    both = f"pacemaker.servers=['{servers[0].address}', '{servers[1].address}']"
    told = storm("heartbeats", "get", PATH, "--json", "-c", both)
    assert json.loads(told.stdout)["uptime_secs"] == 42
    assert json.loads(told.stdout)["server"] == servers[1].address
    servers[1].kill()
    told = storm("heartbeats", "get", PATH, "--json", "-c", both)
    assert json.loads(told.stdout)["uptime_secs"] == 41
    assert json.loads(told.stdout)["server"] == servers[0].address


def test_what_some_pacemakers_do_not_say_has_an_exit_code(storm, start_pacemaker, heartbeat):
    servers = [start_pacemaker(), start_pacemaker()]
    with PacemakerClient(servers[0].address) as client:
        client.send_pulse(PATH, serialize(heartbeat))
    both = f"pacemaker.servers=['{servers[0].address}', '{servers[1].address}']"
    servers[1].kill()
    for command, path, shown in [
        ("list", "/workerbeats", '["word-count-1-1700000000"]\n'),
        ("list", PATH, '{"storm_id"'),
        ("get", PATH, '{"storm_id"'),
        ("get", "/.stormkeeper", f'{{"{servers[0].address}"'),
        ("list", "/nowhere", ""),
        ("get", "/workerbeats", ""),
    ]:
        told = storm("heartbeats", command, path, "--json", "-c", both)
        assert (told.returncode, told.stdout[: len(shown)]) == (3, shown)
        warning, *rest = told.stderr.splitlines()
        assert warning.startswith("storm: warning: ")
        assert servers[1].address in warning
        assert len(rest) == (0 if shown else 1)
        if not shown:
            assert told.stdout == ""
            assert f" at {path} on the Pacemakers that answered" in rest[0]
    told = storm("heartbeats", "get", "/.stormkeeper", "--json", "-c", both)
    one, other = (json.loads(told.stdout)[server.address] for server in servers)
    assert "instance" in one
    assert "did not answer" in other.pop("error")
    assert other == {}
    told = storm("heartbeats", "get", "/.stormkeeper", "-c", both)
    assert told.returncode == 3
    assert servers[1].address not in told.stdout


def test_a_java_pacemaker_tells_no_age(storm, heartbeat):
    java = JavaPacemaker()
    java.store[PATH] = serialize(heartbeat)
    with ScriptedPacemaker(java) as peer:
        get = ("heartbeats", "get", PATH, "-c", f"pacemaker.servers={peer.address}")
        told, as_json = storm(*get), storm(*get, "--json")
        server = peer.address
    assert told.stdout == readable.render(heartbeat, [("server", server)]) + "\n"
    shown = readable.to_builtins(heartbeat) | {"server": server}
    assert json.loads(as_json.stdout) == shown


def test_no_command_ends_a_java_pacemaker_that_wants_a_password(
    storm, start_pacemaker, heartbeat, tmp_path
):
    jaas = tmp_path / "jaas.conf"
    jaas.write_text('PacemakerDigest { username="reader" password="one nobody guesses"; };\n')
    access = {"pacemaker.auth.method": "DIGEST", "java.security.auth.login.config": str(jaas)}
    ours = start_pacemaker(conf=access)
    with StormPacemaker("DIGEST", jaas) as java, PacemakerClient(ours.address) as worker:
        worker.send_pulse(PATH, serialize(heartbeat))
        java.store.pulses[PATH.replace("6700", "6701")] = serialize(heartbeat)
        options = [f"pacemaker.servers=['{ours.address}', '{java.address}']"]
        options += [f"{key}={value}" for key, value in access.items()]

        def ask(*arguments):
            given = [word for option in options for word in ("-c", option)]
            told = storm("heartbeats", *arguments, *given)
            assert java.ended_by is None
            return told.returncode, told.stdout, told.stderr

        assert ask("list", "/") == (0, "workerbeats\n", "")
        assert ask("list", PATH.rpartition("/")[0]) == (0, "node-6700\nnode-6701\n", "")
        for port, server in (("6700", ours), ("6701", java)):
            code, shown, _ = ask("get", PATH.replace("6700", port), "--json")
            assert (code, json.loads(shown)["server"]) == (0, server.address)
        code, about, _ = ask("get", "/.stormkeeper", "--json")
        assert (code, list(json.loads(about))) == (0, [ours.address, java.address])
        code, picture, _ = ask("top", "--once", "--json", "--interval", "0.2")
        assert (code, java.address in picture) == (0, True)
        code, _, told = ask("list", "/workerbeats/(")
        assert code == 3
        assert f"{java.address} is a Java Pacemaker" in told
        assert java.connections >= 2 * 7


def test_nothing_is_there(ask, client):
    for command, path, message in [
        ("list", "/workerbeats/word-count-1-1700000000", "nothing at {}"),
        ("list", "/nowhere", "nothing at {}"),
        ("get", PATH, "no heartbeat at {}"),
    ]:
        told = ask(command, path, *PATIENT)
        assert (told.returncode, told.stdout) == (1, "")
        assert told.stderr == f"storm: {message.format(path)}\n"
    client.send_pulse(PATH, b"x")
    told = ask("get", "/workerbeats")
    assert told.returncode == 1
    assert told.stderr.endswith("see `storm heartbeats list /workerbeats`\n")


@pytest.mark.parametrize("path", ["/", "/workerbeats"])
def test_a_cluster_without_heartbeats_is_no_failure(ask, path):
    told = ask("list", path, *PATIENT)
    assert (told.returncode, told.stdout) == (0, "")
    assert told.stderr == "storm: all Pacemakers answered, and hold no heartbeat\n"
    told = ask("list", path, "--json")
    assert (told.returncode, told.stdout) == (0, "[]\n")


def test_what_is_no_heartbeat_is_shown_in_hexadecimal(ask, client, pacemaker):
    client.send_pulse(PATH, bytes(range(40)))
    told = ask("get", PATH)
    assert told.returncode == 0
    assert told.stdout == f"{bytes(range(32)).hex()}\n{bytes(range(32, 40)).hex()}\n"
    assert told.stderr.startswith("storm: not a heartbeat (")
    assert f" s old, on {pacemaker.address}; shown in hexadecimal" in told.stderr
    shown = json.loads(ask("list", PATH, "--json").stdout)
    assert shown.keys() == {"hex", "age_secs", "server"}
    assert shown["hex"] == bytes(range(40)).hex()


def test_what_a_pacemaker_says_of_itself(ask, client, pacemaker):
    client.send_pulse(PATH, b"x")
    info = client.server_info()
    told = json.loads(ask("get", "/.stormkeeper", "--json").stdout)
    assert told[pacemaker.address]["instance"] == info.instance
    assert "changes" in told[pacemaker.address]["extensions"]
    told = ask("get", ".stormkeeper")
    assert told.stdout.startswith(f"{pacemaker.address}:\n  instance: {info.instance}\n")


@pytest.mark.parametrize("path", ["/", "/.stormkeeper"])
def test_no_pacemaker_answers(storm, closed_port, path):
    told = storm("heartbeats", "get", path, "-c", f"pacemaker.servers=127.0.0.1:{closed_port}")
    assert (told.returncode, told.stdout) == (3, "")
    assert f"127.0.0.1:{closed_port}" in told.stderr
    assert "start one with `storm pacemaker`" in told.stderr
    assert len(told.stderr.splitlines()) == 1


def test_a_script_reads_of_each_pacemaker_why_it_did_not_answer(storm, closed_port):
    servers = f"pacemaker.servers=[127.0.0.1:{closed_port}, no-such-host.invalid]"
    told = storm("heartbeats", "get", "/.stormkeeper", "--json", "-c", servers)
    assert told.returncode == 3
    shown = json.loads(told.stdout)
    assert shown.keys() == {f"127.0.0.1:{closed_port}", "no-such-host.invalid:6699"}
    assert all(one.keys() == {"error"} for one in shown.values())
    assert "start one with `storm pacemaker`" in told.stderr


def test_the_remedy_fits_the_failure(storm, closed_port):
    start = "start one with `storm pacemaker`"
    hangs, name = "the Pacemaker or the network hangs", "how pacemaker.servers writes the host"
    port = "give its pacemaker.port"

    def web(connection):
        connection.send(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        connection.wait_for_end()

    with ScriptedPacemaker(ScriptedConnection.wait) as peer, ScriptedPacemaker(web) as website:
        for servers, remedies in [
            (f"127.0.0.1:{closed_port}", {start}),
            (str(peer.address), {hangs}),
            (website.address, {port}),
            ("no-such-host.invalid", {name}),
            (f"[127.0.0.1:{closed_port}, no-such-host.invalid]", {start, name}),
        ]:
            told = storm("heartbeats", "list", "/", "-c", f"pacemaker.servers={servers}")
            assert told.returncode == 3
            known = (start, hangs, name, port)
            assert {words for words in known if words in told.stderr} == remedies
            assert told.stderr.endswith("or name another with -c pacemaker.servers=HOST:PORT\n")


def test_no_pacemaker_is_configured(storm):
    for path in ("/", "/.stormkeeper"):
        told = storm("heartbeats", "get", path)
        assert (told.returncode, told.stdout) == (2, "")
        assert told.stderr == (
            "storm: no Pacemaker is configured; name one with -c pacemaker.servers=HOST:PORT\n"
        )


@pytest.mark.parametrize("arguments", [["list"], ["get"], ["list", "/", "/"], ["put", "/"]])
def test_wrong_usage(storm, arguments):
    assert storm("heartbeats", *arguments).returncode == 2


@pytest.mark.parametrize(
    ("path", "shown"),
    [
        ("/a\nb", r"'/a\nb'"),
        ("/a\x1b[31m", r"'/a\x1b[31m'"),
        ("/a\x9b31m", r"'/a\x9b31m'"),
        (b"/a\xff", r"'/a\udcff'"),
    ],
)
@pytest.mark.parametrize("command", ["list", "get"])
def test_what_is_no_path_is_wrong_usage(storm, closed_port, command, path, shown):
    told = storm("heartbeats", command, path, "-c", f"pacemaker.servers=127.0.0.1:{closed_port}")
    assert (told.returncode, told.stdout) == (2, "")
    assert f"Usage: storm heartbeats {command}" in told.stderr
    assert f"the path {shown} has the forbidden character" in told.stderr


@pytest.mark.parametrize(
    ("given", "path"),
    [
        ("/", "/"),
        ("", "/"),
        ("workerbeats", "/workerbeats"),
        ("/workerbeats/", "/workerbeats"),
        ("//a///b", "/a/b"),
    ],
)
def test_paths_are_taken_as_people_write_them(given, path):
    assert normal_path(given) == path


def test_a_reader_that_goes_away_is_no_failure_to_talk_of(environ, pacemaker, client):
    for n in range(2000):
        client.send_pulse(f"/workerbeats/a-topology-with-a-name-that-takes-room-{n:05}/n-1", b"x")
    command = f"{STORM} heartbeats list /workerbeats -c pacemaker.servers={pacemaker.address}"
    told = subprocess.run(
        f"{command} | head -n 1",
        shell=True,
        env=environ,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert told.stdout == "a-topology-with-a-name-that-takes-room-00000\n"
    assert told.stderr == ""


def test_list_imports_nothing_heavy(environ, pacemaker, client):
    client.send_pulse(PATH, b"x")
    servers = f"pacemaker.servers={pacemaker.address}"
    modules = imported_by(["heartbeats", "list", "/workerbeats", "-c", servers], environ)
    assert not modules & (HEAVY - {"asyncio"})
    assert "yaml" in modules


# --- Pacemakers that ask who we are ---------------------------------------------------------------


@pytest.fixture
def jaas(tmp_path):
    def write(name, password):
        path = tmp_path / name
        path.write_text(f'PacemakerDigest {{ username="reader" password="{password}"; }};\n')
        return f"java.security.auth.login.config={path}"

    return write


def test_refusal_names_the_options_for_a_secured_pacemaker(storm, start_pacemaker, heartbeat, jaas):
    login = jaas("jaas.conf", "pw-of-the-reader")
    key, _, file = login.partition("=")
    pacemaker = start_pacemaker(conf={"pacemaker.auth.method": "DIGEST", key: file})
    with PacemakerClient(pacemaker.address) as worker:
        worker.send_pulse(PATH, serialize(heartbeat))
    get = ("heartbeats", "get", PATH, "-c", f"pacemaker.servers={pacemaker.address}")
    refused = storm(*get)
    assert refused.returncode == 3
    assert "set pacemaker.auth.method to the server's own" in refused.stderr
    assert "java.security.auth.login.config to the file" in refused.stderr
    assert refused.stderr.endswith("; keys are set with -c KEY=VALUE or in storm.yaml\n")
    itself = storm("heartbeats", "get", "/.stormkeeper", *get[3:])
    assert itself.returncode == 3
    assert "pacemaker.auth.method" in itself.stderr
    assert "-c KEY=VALUE" in itself.stderr
    assert "start one" not in itself.stderr + refused.stderr
    digest = ("-c", "pacemaker.auth.method=DIGEST", "-c")
    assert is_shown(storm(*get, *digest, login), heartbeat, pacemaker)
    wrong = storm(*get, *digest, jaas("wrong.conf", "pw-of-another"))
    assert wrong.returncode == 3
    assert "wrong.conf" in wrong.stderr
    assert "pw-of" not in wrong.stderr + refused.stderr + pacemaker.log
    absent = storm(*get, *digest, "java.security.auth.login.config=/nowhere/jaas.conf")
    assert absent.returncode == 2
    assert "/nowhere/jaas.conf" in absent.stderr


def test_every_pacemaker_that_refuses_is_named(storm, start_pacemaker, jaas):
    key, _, file = jaas("jaas.conf", "pw-of-the-reader").partition("=")
    servers = [
        start_pacemaker(conf={"pacemaker.auth.method": "DIGEST", key: file}) for _ in range(2)
    ]
    both = f"pacemaker.servers=['{servers[0].address}', '{servers[1].address}']"
    wrong = ("-c", "pacemaker.auth.method=DIGEST", "-c", jaas("wrong.conf", "pw-of-another"))
    for command in (("list", "/"), ("get", PATH), ("get", "/.stormkeeper"), ("top", "--once")):
        told = storm("heartbeats", *command, "-c", both, *wrong)
        assert (told.returncode, told.stdout) == (3, "")
        assert all(server.address in told.stderr for server in servers)
        assert len(told.stderr.splitlines()) == 1


@pytest.mark.parametrize("path", ["/a" * 17, "/" + "a" * 1_100])
def test_a_refused_path_is_not_put_down_to_authentication_alone(ask, path):
    told = ask("get", path)
    assert told.returncode == 3
    assert "the path or the answer exceeds a limit" in told.stderr
    assert "the server's log has the reason" in told.stderr


def test_pacemakers_with_other_auth_methods_are_reported_missing(storm, start_pacemaker, jaas):
    key, _, file = jaas("jaas.conf", "pw-of-the-reader").partition("=")
    asking = start_pacemaker(conf={"pacemaker.auth.method": "DIGEST", key: file})
    open_to_all = start_pacemaker()
    servers = f"pacemaker.servers=['{asking.address}', '{open_to_all.address}']"
    list_ = ("heartbeats", "list", "/workerbeats", "-c", servers)
    digest = ("-c", "pacemaker.auth.method=DIGEST", "-c", f"{key}={file}")
    for options, missing in ((digest, open_to_all), ((), asking)):
        told = storm(*list_, *options)
        assert (told.returncode, told.stdout) == (3, "")
        warning, nothing = told.stderr.splitlines()
        assert warning.startswith("storm: warning: 1 of 2 Pacemakers failed in the last read")
        assert missing.address in warning
        assert nothing == "storm: nothing at /workerbeats on the Pacemakers that answered"


def test_a_pacemaker_with_tls_is_read_by_who_trusts_it(storm, start_pacemaker):
    pacemaker = start_pacemaker(conf=tls_conf())
    list_ = ("heartbeats", "list", "/", "-c", f"pacemaker.servers={pacemaker.address}")
    encrypted = ("-c", "pacemaker.tls.enable=true", "-c")
    authority = f"pacemaker.tls.ca.file={certificates().server.authority}"
    assert storm(*list_, *encrypted, authority).returncode == 0
    for values in ((), (*encrypted, "pacemaker.tls.ca.file=null")):
        failed = storm(*list_, *values)
        assert failed.returncode == 3
        assert "pacemaker.tls." in failed.stderr
        assert failed.stderr.count("-c KEY=VALUE") == 1
        assert "start one" not in failed.stderr
