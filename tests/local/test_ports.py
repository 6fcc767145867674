import contextlib
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from itertools import chain

import pytest

from stormkeeper.conf import Address
from stormkeeper.errors import LocalClusterError
from stormkeeper.local import reservations
from support.outgoing import connected_from
from support.pacemaker import nobody
from support.proxy import Proxy

HOLDER = """
import sys
from stormkeeper.local import reservations
print(*(reservations.reserve() for _ in range(int(sys.argv[1]))), flush=True)
sys.stdin.read()
"""


@contextlib.contextmanager
def holders(processes, each):
    """Processes that reserve ports at once, and hold them; and what they have."""
    with contextlib.ExitStack() as stack:
        started = [
            stack.enter_context(
                subprocess.Popen(
                    [sys.executable, "-c", HOLDER, str(each)],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                )
            )
            for _ in range(processes)
        ]
        for process in started:
            stack.callback(process.kill)
        yield {process: list(map(int, process.stdout.readline().split())) for process in started}


def is_held(port):
    with socket.socket() as plain:
        try:
            plain.bind(("127.0.0.1", port))
        except OSError:
            return True
        return False


def test_nobody_gets_what_another_process_or_thread_has():
    with holders(3, 40) as theirs:
        with ThreadPoolExecutor(4) as threads:
            mine = list(threads.map(lambda _: reservations.reserve(), range(40)))
        found = [*mine, *chain.from_iterable(theirs.values())]
        assert len(found) == 160
        assert len(set(found)) == 160


def test_those_of_a_process_that_was_killed_can_be_had_again():
    with holders(1, 1) as found:
        ((process, (port,)),) = found.items()
        assert is_held(port)
        process.kill()
        process.wait(60)
        assert not is_held(port)


def test_servers_come_and_go_on_a_reserved_port():
    port = reservations.reserve()
    for _ in range(2):
        with socket.create_server(("127.0.0.1", port)):
            assert not reservations.is_free("127.0.0.1", port)
        assert reservations.is_free("127.0.0.1", port)
        assert is_held(port)


def test_one_with_leftovers_of_connections_is_free():
    port = reservations.reserve()
    with (
        socket.create_server(("127.0.0.1", port)) as listener,
        socket.create_connection(("127.0.0.1", port)) as client,
    ):
        accepted, _ = listener.accept()
        accepted.close()  # first, so that it is this side that waits
        assert client.recv(1) == b""
    assert reservations.is_free("127.0.0.1", port)


def test_an_address_of_another_machine_is_said_at_once():
    with pytest.raises(LocalClusterError, match=r"no TCP port of 192\.0\.2\.1 .* \(Cannot"):
        reservations.reserve("192.0.2.1")


def test_a_port_that_is_given_needs_no_temporary_folder():
    program = (
        "import tempfile; tempfile._candidate_tempdir_list = list\n"
        "from stormkeeper.local import reservations; reservations.is_free('127.0.0.1', 0)"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program], check=False, capture_output=True, text=True
    )
    assert (ran.returncode, ran.stderr) == (0, "")


def test_outgoing_connections_never_get_a_reserved_port(start_pacemaker):
    pacemaker = start_pacemaker()
    wanted = [pacemaker.port, nobody().port]
    pacemaker.kill()
    with Proxy(Address("127.0.0.1", pacemaker.port)) as proxy:
        wanted.append(proxy.address.port)
        proxy.cut()
        with connected_from(wanted) as got:
            assert got == []
            proxy.mend()
            pacemaker.start()


def test_outgoing_connections_get_a_port_that_nobody_reserved():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with connected_from([port]) as got:
        assert got == [port]
