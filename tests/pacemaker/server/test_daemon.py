"""The real daemon, over real sockets; what clients see of it, with both engines."""

import os
import re
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest

from stormkeeper.pacemaker.wire.decoder import decode
from stormkeeper.pacemaker.wire.encoder import encode
from stormkeeper.pacemaker.wire.messages import (
    RESERVED_PATH,
    ChangesRequest,
    Message,
    MessageType,
    Pulse,
)
from stormkeeper.thrift.pacemaker import ServerInfo
from stormkeeper.thrift.serialization import deserialize
from support.engines import ENGINES
from support.messages import field, golden_frames, i32
from support.pacemaker import PacemakerProcess
from support.plain_client import DEADLINE_SECS, Client
from support.waiting import until


@pytest.fixture(scope="module", params=ENGINES)
def server(request):
    with PacemakerProcess(conf={"pacemaker.engine": request.param}) as process:
        yield process


@pytest.fixture(params=ENGINES)
def fresh_server(request, start_pacemaker):
    return start_pacemaker(conf={"pacemaker.engine": request.param})


def descriptors(server):
    return len(os.listdir(f"/proc/{server.pid}/fd"))  # noqa: PTH208 - as quick as can be


def resident_bytes(server):
    return psutil.Process(server.pid).memory_info().rss


def test_storms_conversation_gets_storms_bytes(fresh_server):
    server = fresh_server
    golden = {golden.name: golden for golden in golden_frames()}
    verbs = [name.removeprefix("request.") for name in golden if name.startswith("request.")]
    exact = [verb for verb in verbs if verb not in ("get_all_pulse_for_path", "not_authorized")]
    assert len(exact) == 12
    with Client(server) as client:
        client.send("/workerbeats/t\u00f6p-\u6e2c-\U0001f600/a")
        client.socket.sendall(b"".join(golden[f"request.{verb}"].frame for verb in exact))
        expected = [golden[f"response.{verb}"].frame for verb in exact]
        received = b""
        while len(received) < sum(map(len, expected)):
            received += client.socket.recv(65_536)
        for verb, frame in zip(exact, expected, strict=True):
            got, received = received[: len(frame)], received[len(frame) :]
            if verb == "get_all_nodes_for_path":  # Storm's order is a hash set's
                assert sorted(decode(got[4:]).nodes) == sorted(decode(frame[4:]).nodes)
            else:
                assert got == frame, verb


@pytest.mark.parametrize("chunk", [1, 7, 1000])
def test_requests_in_pieces(server, chunk):
    requests = b"".join(
        encode(Message(MessageType.SEND_PULSE, n, pulse=Pulse(f"/pieces/{n}", b"v")))
        for n in range(20)
    )
    with Client(server) as client:
        for pos in range(0, len(requests), chunk):
            client.socket.sendall(requests[pos : pos + chunk])
        assert [client.receive().message_id for _ in range(20)] == list(range(20))


def type_field(kind):
    return field(8, 1, i32(kind))


def framed(payload):
    return i32(len(payload)) + payload


#: What each of STORM's own daemon dies of, and more of the kind: the frame, and what the log says.
FAULTS = {
    "zero length": (i32(0), "empty frame"),
    "negative length": (i32(-1) + b"rest", "frame of -1 bytes"),
    "length above the limit": (i32(10_485_761), "frame of 10485761 bytes"),
    "absent type": (framed(field(12, 2, field(11, 1, i32(1) + b"/") + b"\0") + b"\0"), "type"),
    "unknown type": (encode(Message(42, 1, path="/a")), "unknown message type 42"),
    "absent data": (framed(type_field(4) + b"\0"), "SEND_PULSE without data"),
    "wrong member": (encode(Message(10, 1, boolval=True)), "GET_PULSE with a boolval"),
    "pulse without id": (
        framed(type_field(4) + field(12, 2, field(12, 2, b"\0") + b"\0") + b"\0"),
        "pulse without an id",
    ),
    "pulse without details": (encode(Message(4, 1, pulse=Pulse("/a", None))), "without details"),
    "garbage": (framed(b"GET / HTTP/1.1\r\n\r\n"), "garbage"),
    "an HTTP request": (b"GET / HTTP/1.1\r\n\r\n", "HTTP, which is answered on pacemaker.metrics"),
    "truncated Thrift": (framed(encode(Message(10, 1, path="/a"))[4:-12]), "truncated"),
    "control message": (encode(Message(16, blob=b"\xff\x36")), "pacemaker.auth.method"),
    "SASL token": (
        encode(Message(17, blob=b"\xfe\x0c" + i32(5) + b"token")),
        "pacemaker.auth.method",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_fault_ends_only_the_senders_connection(server, fault):
    frame, reason = FAULTS[fault]
    with Client(server) as other, Client(server) as sender:
        other.send("/other", fault.encode())
        sender.send("/before")
        host, port = sender.socket.getsockname()
        good = encode(Message(MessageType.GET_PULSE, 8, path="/before"))
        never = encode(Message(MessageType.SEND_PULSE, 9, pulse=Pulse("/never", b"x")))
        sender.socket.sendall(good + frame + never)
        assert sender.receive().message_id == 8
        assert sender.receive() is None
        lines = until(lambda: re.findall(rf".*{host}:{port}\b.*", server.log))
        assert len(lines) == 1
        assert reason in lines[0]
        assert " WARNING " in lines[0]
        assert other.get("/other") == fault.encode()
        assert other.get("/never") is None


def test_a_path_that_is_no_regular_expression_is_only_a_path(server):
    with Client(server) as client:
        client.send("/workerbeats/*[(/x")
        assert client.ask(MessageType.GET_ALL_NODES_FOR_PATH, path="/workerbeats/*[(").nodes == [
            "x"
        ]


def test_path_not_utf8_is_refused_and_connection_stays(server):
    with Client(server) as client:
        frame = encode(Message(MessageType.SEND_PULSE, 5, pulse=Pulse("/ab", b"x")))
        client.socket.sendall(frame.replace(b"/ab", b"/\xff\xfe"))
        assert client.receive() == Message(MessageType.NOT_AUTHORIZED, 5)
        client.send("/after")


def test_the_reserved_path_is_refused_with_a_line_in_the_log(server):
    with Client(server) as client:
        answer = client.ask(MessageType.SEND_PULSE, pulse=Pulse(RESERVED_PATH, b"x"))
        assert answer == Message(MessageType.NOT_AUTHORIZED, 1)
        host, port = client.socket.getsockname()
        until(lambda: re.search(rf"refused {host}:{port}: .*{RESERVED_PATH}", server.log))
        assert "changes" in client.info().extensions


def test_changes_over_the_wire(start_pacemaker):
    with Client(start_pacemaker()) as client:
        for n in range(5):
            client.send(f"/w/{n}")
        client.ask(MessageType.DELETE_PATH, path="/w/3")
        request = ChangesRequest("/w", 2, 2, client.info().instance)
        page = client.ask(MessageType.CHANGES, changes_request=request).changes
        assert page.columns.paths == ["/w/2", "/w/4"]
        assert (page.more, page.next, page.revision, page.reset) == (True, 5, 6, False)
        page = client.ask(MessageType.CHANGES, changes_request=request._replace(after=5)).changes
        assert (page.columns.paths, page.columns.details) == (["/w/3"], [None])


def test_a_frame_of_the_maximum_goes_in_and_out(server):
    pulse = Pulse("/largest", bytes(10_485_760 - 37 - len("/largest")))
    with Client(server) as client:
        frame = encode(Message(MessageType.SEND_PULSE, 1, pulse=pulse))
        assert len(frame) - 4 == 10_485_760
        client.send(*pulse)
        assert client.get(pulse.id) == pulse.details
        client.ask(MessageType.DELETE_PULSE_ID, path=pulse.id)


def test_a_client_that_reads_nothing_is_not_served_without_end(fresh_server):
    server = fresh_server
    with Client(server) as client, Client(server) as other:
        client.send("/large", bytes(2_000_000))
        client.get("/large")
        before = resident_bytes(server)
        wanted = 3_000  # 6 GB of answers
        requests = encode(Message(MessageType.GET_PULSE, 1, path="/large")) * wanted
        feeder = threading.Thread(target=_send_all, args=(client.socket, requests), daemon=True)
        feeder.start()
        for _ in range(10):
            assert other.get("/large") == bytes(2_000_000)
        assert resident_bytes(server) < before + 40_000_000
        # It goes on where it was when the client reads again.
        for _ in range(50):
            assert len(client.receive().pulse.details) == 2_000_000
        assert resident_bytes(server) < before + 40_000_000
    feeder.join(DEADLINE_SECS)


def _send_all(connection, data):
    try:
        connection.sendall(data)
    except OSError:
        assert connection.fileno() >= -1  # closed by the test's end


def test_a_client_that_ends_its_side_gets_its_answers(server):
    with Client(server) as client:
        client.send("/half-closed", bytes(500_000))
        client.socket.sendall(encode(Message(MessageType.GET_PULSE, 2, path="/half-closed")) * 10)
        client.socket.shutdown(socket.SHUT_WR)
        assert [len(client.receive().pulse.details) for _ in range(10)] == [500_000] * 10
        assert client.receive() is None


def test_two_thousand_connections_leave_no_descriptor(fresh_server):
    server = fresh_server
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 2_500:
        pytest.skip(f"only {hard} file descriptors allowed")
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    try:
        with Client(server) as client:
            client.info()
            before = descriptors(server)
        with ExitStack() as stack:
            clients = [stack.enter_context(Client(server)) for _ in range(2_000)]
            for n, client in enumerate(clients):
                client.send(f"/many/{n}")
            assert clients[0].info().connections == 2_000
            for client in clients[::2]:  # half of them end abruptly
                linger = b"\1\0\0\0\0\0\0\0"
                client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        until(lambda: descriptors(server) <= before)
        with Client(server) as client:
            assert client.info().connections == 1
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert "Traceback" not in server.log


def test_server_waits_for_free_descriptors(start_pacemaker):
    server = start_pacemaker()
    with Client(server) as first:
        first.info()
        process = psutil.Process(server.pid)
        limits = process.rlimit(psutil.RLIMIT_NOFILE)
        process.rlimit(psutil.RLIMIT_NOFILE, (descriptors(server), limits[1]))
        with Client(server) as waiting:
            waiting.socket.sendall(encode(Message(MessageType.EXISTS, 3, path="/x")))
            until(lambda: "cannot accept connections" in server.log)
            used = sum(process.cpu_times()[:2])
            first.send("/still-served")
            until(lambda: server.log.count("cannot accept connections") >= 2)
            assert sum(process.cpu_times()[:2]) - used < 0.5
            assert server.log.count("cannot accept connections") <= 4
            process.rlimit(psutil.RLIMIT_NOFILE, limits)
            assert waiting.receive() == Message(MessageType.EXISTS_RESPONSE, 3, boolval=False)
        # Who could not connect could not beat.
        assert first.info().horizon_ms < first.info().uptime_ms


def test_refused_pulse_of_full_store_resets_horizon(start_pacemaker):
    server = start_pacemaker(
        conf={"pacemaker.store.max.bytes": 2000, "pacemaker.max.connections": 1}
    )
    with Client(server) as client:
        client.send("/held", bytes(1_000))
        until(lambda: client.info().horizon_ms > 1_500)
        refused = client.ask(MessageType.SEND_PULSE, pulse=Pulse("/new", bytes(1_000)))
        assert refused.type == MessageType.NOT_AUTHORIZED
        info = client.info()
        assert info.horizon_ms < info.uptime_ms - 1_000
        until(lambda: client.info().horizon_ms > 1_500)
        with pytest.raises((OSError, AssertionError)), Client(server) as second:
            second.send("/held")
        info = client.info()
        assert info.horizon_ms < info.uptime_ms - 2_000


def test_full_store_drops_old_pulses(start_pacemaker):
    server = start_pacemaker(
        conf={"pacemaker.store.max.bytes": 2000, "pacemaker.pulse.ttl.secs": 1}
    )
    with Client(server) as client:
        client.send("/old", bytes(1_000))

        def is_taken():
            answer = client.ask(MessageType.SEND_PULSE, pulse=Pulse("/new", bytes(1_000)))
            return answer.type == MessageType.SEND_PULSE_RESPONSE

        until(is_taken)
        until(lambda: client.info().horizon_ms == 1_000)


def test_the_horizon_begins_anew_after_a_suspension(start_pacemaker):
    server = start_pacemaker()
    with Client(server) as client:
        client.send("/a")
        info = client.info()
        assert info.horizon_ms == pytest.approx(info.uptime_ms, abs=200)
        server.suspend()
        time.sleep(3.5)
        # Asked before its own timer can have noticed.
        client.socket.sendall(encode(Message(MessageType.GET_PULSE, 1, path=RESERVED_PATH)))
        server.resume()
        info = deserialize(ServerInfo, client.receive().pulse.details)
        assert info.uptime_ms > 3_500
        assert info.horizon_ms < info.uptime_ms - 3_000
        assert client.get("/a") == b"pulse"
        until(lambda: "was stopped for" in server.log)


@pytest.mark.parametrize(
    ("number", "engine"), [(signal.SIGTERM, ENGINES[-1]), (signal.SIGINT, ENGINES[0])]
)
def test_signal_stops_the_daemon_cleanly(start_pacemaker, number, engine):
    server = start_pacemaker(conf={"pacemaker.engine": engine})
    with Client(server) as client, Client(server) as deaf:
        client.send("/a", bytes(2_000_000))
        deaf.socket.sendall(encode(Message(MessageType.GET_PULSE, 1, path="/a")) * 20)
        client.get("/a")
        started = time.monotonic()
        os.kill(server.pid, number)
        assert client.receive() is None
        assert server.wait() == 0
        assert time.monotonic() - started < 30
    assert "Traceback" not in server.log
    server.start()  # the port is free again
    with Client(server) as client:
        assert client.get("/a") is None


def test_another_instance_after_every_start(start_pacemaker):
    server = start_pacemaker()
    instances = set()
    for _ in range(2):
        with Client(server) as client:
            info = client.info()
            instances.add(info.instance)
            assert (info.revision, info.keys, info.connections) == (0, 0, 1)
            client.send("/a")
            assert client.info().revision == 1
        server.restart()
    assert len(instances) == 2


def command(host, port):
    conf = [f"pacemaker.bind.host={host}", "-c", f"pacemaker.port={port}"]
    return [sys.executable, "-m", "stormkeeper", "pacemaker", "-c", *conf]


def test_port_in_use_ends_with_one_line_and_code_1(server):
    process = subprocess.run(
        command(server.host, server.port),
        capture_output=True,
        text=True,
        timeout=DEADLINE_SECS,
        check=False,
    )
    assert process.returncode == 1
    assert process.stdout == ""
    [line] = process.stderr.splitlines()
    assert f"cannot listen on {server.address}" in line
    assert "Address already in use: another Pacemaker may run there; stop it" in line


#: Runs a command that gets a SIGHUP when its first import that takes time begins.
HUNG_UP = """
import os, signal, sys
class Hangup:
    def find_spec(name, path=None, target=None):
        if name == "click":
            os.kill(os.getpid(), signal.SIGHUP)
sys.meta_path.insert(0, Hangup)
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # it may be ignored for the whole run, by nohup
from stormkeeper.cli import main
main()
"""


class FaultyPacemaker(PacemakerProcess):
    """A daemon with an error of ours in one verb."""

    program = (
        "-c",
        "from stormkeeper.pacemaker.server.pulse_store import PulseStore\n"
        "PulseStore.children = lambda self, path: 1 / 0\n"
        "from stormkeeper.cli import main; main()",
    )


class HungUpPacemaker(PacemakerProcess):
    """A daemon that gets a SIGHUP when its first import that takes time begins."""

    program = ("-c", HUNG_UP)


def test_hangup_during_the_start_reloads_afterwards():
    with HungUpPacemaker() as server, Client(server) as client:
        until(lambda: "reloaded: nothing has changed" in server.log)
        client.send("/a")
        os.kill(server.pid, signal.SIGHUP)
        until(lambda: server.log.count("reloaded: nothing has changed") == 2)
        assert server.stop() == 0


@pytest.mark.parametrize("arguments", [["version"], ["heartbeats", "list"], ["dev-zookeeper"]])
def test_a_hangup_ends_every_other_command(arguments):
    command = [sys.executable, "-c", HUNG_UP, *arguments]
    ended = subprocess.run(command, capture_output=True, timeout=DEADLINE_SECS, check=False)
    assert (ended.returncode, ended.stdout) == (-signal.SIGHUP, b"")


def test_the_log_says_which_engine_runs(request, server):
    engine = request.node.callspec.params["server"]
    assert re.search(rf"engine: {engine}[ ;]", server.log)


@pytest.mark.parametrize("engine", ENGINES)
def test_an_error_of_ours_ends_one_connection_with_a_traceback(engine):
    conf = {"pacemaker.engine": engine}
    with FaultyPacemaker(conf=conf) as server, Client(server) as other, Client(server) as unlucky:
        unlucky.send("/a")
        assert unlucky.ask(MessageType.GET_ALL_NODES_FOR_PATH, path="/") is None
        until(lambda: "ZeroDivisionError" in server.log)
        assert "an error of this server" in server.log
        assert other.get("/a") == b"pulse"
        assert other.info().connections == 1


def test_pulses_do_not_expire_soon_after_a_stop(start_pacemaker):
    server = start_pacemaker(conf={"pacemaker.pulse.ttl.secs": 2})
    with Client(server) as client:
        client.send("/silent")
        server.suspend()
        time.sleep(3.5)  # a suspension, older than which the pulse is now
        server.resume()
        client.send("/beating")
        assert client.get("/silent") == b"pulse"

        def is_only_beating_left():
            client.send("/beating")
            return client.get("/silent") is None

        until(is_only_beating_left)
        assert client.get("/beating") == b"pulse"
        assert client.info().horizon_ms >= 2_000


def test_idle_daemon_is_small_and_uses_no_cpu(start_pacemaker):
    server = start_pacemaker()
    process = psutil.Process(server.pid)
    maps = Path(f"/proc/{server.pid}/maps").read_text()
    for heavy in ("thriftpy2", "pyarrow", "numpy", "msgpack"):
        assert heavy not in maps
    assert resident_bytes(server) < 60_000_000
    before = sum(process.cpu_times()[:2])
    time.sleep(2.0)
    assert sum(process.cpu_times()[:2]) - before < 0.1


def test_ipv6_addresses_are_announced_in_brackets():
    if not socket.has_ipv6 or not Path("/proc/net/if_inet6").exists():
        pytest.skip("no IPv6 here")
    process = subprocess.Popen(command("::1", 0), stdout=subprocess.PIPE, text=True)
    try:
        line = process.stdout.readline()
        assert re.fullmatch(r"pacemaker listening on \[::1\]:\d+\n", line)
    finally:
        process.terminate()
        process.communicate(timeout=DEADLINE_SECS)
