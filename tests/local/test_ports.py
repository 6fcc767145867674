import contextlib
import socket
import subprocess
import sys
import tempfile
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
few = range(9_000, 9_200)
print(*(reservations.reserve(among=few) for _ in range(int(sys.argv[1]))), flush=True)
sys.stdin.read()
"""


@contextlib.contextmanager
def holders(processes, each):
    """Processes that reserve ports of the same few at once, and hold them; and what they have."""
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


needs_linux = pytest.mark.skipif(
    not reservations.OUTGOING.exists(), reason="only Linux says it there"
)


@needs_linux
def test_they_are_below_those_of_outgoing_connections():
    first = int(reservations.OUTGOING.read_text().split()[0])
    assert all(1_024 <= reservations.reserve() < first for _ in range(20))


@pytest.mark.parametrize(
    ("first", "expected"),
    [
        (32_768, range(10_000, 32_768)),
        (49_152, range(10_000, 49_152)),
        (10_001, range(10_000, 10_001)),
        # None is left below, so any.
        (10_000, range(10_000, 65_536)),
        (1_024, range(10_000, 65_536)),
    ],
)
def test_where_outgoing_connections_begin_elsewhere(first, expected):
    assert reservations.outside(first) == expected


def test_a_system_that_does_not_say_where_they_begin(monkeypatch, tmp_path):
    monkeypatch.setattr(reservations, "OUTGOING", tmp_path / "ip_local_port_range")
    assert 10_000 <= reservations.reserve() < 32_768


def test_nobody_gets_what_another_process_or_thread_has():
    with holders(3, 40) as theirs:
        with ThreadPoolExecutor(4) as threads:
            mine = list(
                threads.map(lambda _: reservations.reserve(among=range(9_000, 9_200)), range(40))
            )
        found = [*mine, *chain.from_iterable(theirs.values())]
        assert len(found) == 160
        assert len(set(found)) == 160


def test_those_of_a_process_that_was_killed_can_be_had_again():
    with holders(1, 1) as found:
        ((process, (port,)),) = found.items()
        with pytest.raises(LocalClusterError):
            reservations.reserve(among=[port])
        process.kill()
        process.wait(60)
        assert reservations.reserve(among=[port]) == port


def test_one_on_which_somebody_listens_is_passed_over():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        taken = listener.getsockname()[1]
        assert reservations.reserve(among=[taken, 9_200]) == 9_200
        with pytest.raises(LocalClusterError, match=r"none of 1 TCP ports .* is free: end what"):
            reservations.reserve(among=[taken])


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
    with pytest.raises(LocalClusterError, match=r"cannot listen on 192\.0\.2\.1:\d+ \(Cannot"):
        reservations.reserve("192.0.2.1")


@pytest.fixture
def unwritable(monkeypatch, tmp_path):
    monkeypatch.setattr(reservations, "_file", [])
    monkeypatch.setattr(reservations, "FOLDER", tmp_path / "a")


@pytest.mark.usefixtures("unwritable")
def test_where_nothing_can_be_written(monkeypatch, tmp_path):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "b"))
    with pytest.raises(LocalClusterError, match=r"reserved \(.*No such file .*/b/.*TMPDIR"):
        reservations.reserve()


@pytest.mark.usefixtures("unwritable")
def test_where_there_is_no_temporary_folder(monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setattr(tempfile, "_candidate_tempdir_list", list)
    with pytest.raises(LocalClusterError, match=r"reserved \(.*No usable temporary .*TMPDIR"):
        reservations.reserve()


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
            assert not set(got) & set(wanted)
            proxy.mend()
            pacemaker.start()
