"""A machine's logs, read from a supervisor's real pages over a real folder."""

import itertools
import os
import socket

import pytest

from stormkeeper.client import log_reader
from stormkeeper.client.log_reader import END_BYTES, MachineLogs
from stormkeeper.client.log_server import LogServer
from stormkeeper.conf.address import Address
from stormkeeper.errors import LogsError
from support.logs import Log, serving
from support.rpc import scripted

ID = "word count-1-1700000000"


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "workers-artifacts"


@pytest.fixture
def server(folder):
    with serving(folder) as port:
        yield LogServer(Address("127.0.0.1", port))


class Shown(list):
    """What is shown, as (port, line)."""

    def __call__(self, port, line):
        self.append((port, line))

    def taken(self):
        """Return what has been shown since the last time."""
        taken, self[:] = [*self], []
        return taken


def test_a_log_is_followed_while_it_grows_and_is_renamed(folder, server):
    log, shown = Log(folder, ID, 6700), Shown()
    log.write("one", "two")
    logs = MachineLogs(server, ID)
    logs.read(shown)
    assert shown.taken() == [(6700, "one"), (6700, "two")]
    logs.read(shown)
    assert shown.taken() == []
    log.write("three")
    log.rename()
    log.write("four")
    log.rename()
    log.rename()
    log.write("five")
    logs.read(shown)
    assert shown.taken() == [(6700, "three"), (6700, "four"), (6700, "five")]
    log.path.write_text("")
    log.write("6")
    logs.read(shown)
    assert shown.taken() == [(6700, "6")]
    with log.path.open("a") as file:
        file.write("the end")
    logs.read(shown)
    assert shown.taken() == []
    logs.end(shown)
    assert shown.taken() == [(6700, "the end")]


@pytest.mark.parametrize("takes_out", [True, False])
@pytest.mark.parametrize("looks", [{0, 1, 2, 3, 4, 5}, {0, 3, 4}, {0, 5}, {5}])
def test_a_log_is_followed_through_what_is_put_aside(folder, server, monkeypatch, takes_out, looks):

    def take_out(descriptor, size):
        """Do what the file system of the tests may not be able to do."""
        if takes_out:
            left = os.pread(descriptor, os.fstat(descriptor).st_size, size)
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, left, 0)
        return takes_out

    monkeypatch.setattr("stormkeeper.worker.driver_log._take_out", take_out)
    monkeypatch.setattr(log_reader, "MOST_DOUBTFUL", 1_000_000)
    log, shown = Log(folder, ID, 6700), Shown()
    written = []

    def write(number):
        lines = [f"{number}: {line} {'x' * 80}" for line in range(100)]
        log.write(*lines)
        written.extend(lines)

    logs = MachineLogs(server, ID, since=0.0)
    for number in range(6):
        write(number)
        if number in looks:
            logs.read(shown)
        if number % 2:
            log.put_aside()
            write(f"{number}'")
    logs.read(shown)
    assert [line for _, line in shown] == written


def test_packed_files_have_lines_since_a_moment(folder, server):
    log, shown = Log(folder, ID, 6700), Shown()
    for minute in range(40):
        log.write(*[f"1970-01-01T00:{minute:02}:00.000Z INFO worker", "  of it"] * 50)
        if minute % 10 == 9:
            log.put_aside()
            for gz in log.path.parent.glob("*.1.gz"):
                os.utime(gz, (minute * 60, minute * 60))
    MachineLogs(server, ID, since=25 * 60).read(shown)
    lines = [line for _, line in shown.taken()]
    assert lines[0] == "1970-01-01T00:25:00.000Z INFO worker"
    assert len(lines) == 15 * 100
    next(log.path.parent.glob("*.1.gz")).write_bytes(b"\x1f\x8b no gzip")
    MachineLogs(server, ID, since=25 * 60).read(shown)
    assert 0 < len(shown) < len(lines)


def test_a_supervisor_that_was_away_is_read_from_where_it_was(folder):
    log, shown = Log(folder, ID, 6700), Shown()
    log.write("one")
    with serving(folder) as port:
        logs = MachineLogs(LogServer(Address("127.0.0.1", port)), ID)
        logs.read(shown)
    log.write("two")
    with pytest.raises(LogsError, match=f"127.0.0.1:{port}: connection refused"):
        logs.read(shown)
    log.rename()
    log.write("three")
    with serving(folder) as port:
        logs.server = LogServer(Address("127.0.0.1", port))
        logs.read(shown)
    assert shown.taken() == [(6700, "one"), (6700, "two"), (6700, "three")]


def test_workers_that_are_wanted_and_those_that_come(folder, server):
    shown = Shown()
    Log(folder, ID, 6700).write("a")
    Log(folder, ID, 6701).write("b")
    Log(folder, "another-1-1", 6702).write("c")
    some, every = MachineLogs(server, ID, ports=[6701]), MachineLogs(server, ID)
    some.read(shown)
    assert shown.taken() == [(6701, "b")]
    every.read(shown)
    assert shown.taken() == [(6700, "a"), (6701, "b")]
    Log(folder, ID, 6703).write("d")
    every.read(shown)
    assert shown.taken() == [(6703, "d")]


def test_of_a_long_log_the_end_is_shown(folder, server):
    log, shown = Log(folder, ID, 6700), Shown()
    log.write(*(f"line {number:>10}" for number in range(20_000)))
    MachineLogs(server, ID).read(shown)
    lines = [line for _, line in shown]
    assert lines[-1].endswith(" 19999")
    assert lines == [f"line {number:>10}" for number in range(20_000 - len(lines), 20_000)]
    assert END_BYTES - 16 <= sum(len(line) + 1 for line in lines) <= END_BYTES


@pytest.mark.parametrize("block", [100, 1_000, 256 * 1024])
def test_lines_since_a_moment_are_found_in_any_block(folder, server, monkeypatch, block):
    monkeypatch.setattr(log_reader, "_BLOCK", block)
    log, shown = Log(folder, ID, 6700), Shown()
    for minute, part in itertools.product(range(50), range(4)):
        log.write(f"1970-01-01T00:{minute:02}:00.000Z INFO worker {part}", "  of it")
        if (minute, part) == (30, 3):
            log.rename()
    MachineLogs(server, ID, since=20 * 60).read(shown)
    lines = [line for _, line in shown.taken()]
    assert lines[0] == "1970-01-01T00:20:00.000Z INFO worker 0"
    assert lines[-2:] == ["1970-01-01T00:49:00.000Z INFO worker 3", "  of it"]
    assert len(lines) == 30 * 4 * 2
    MachineLogs(server, ID, since=3_600).read(shown)
    assert shown == []


def test_a_log_that_was_not_written_to_since_has_nothing(folder, server):
    log, shown = Log(folder, ID, 6700), Shown()
    log.write("a print of long ago")
    os.utime(log.path, (1_000, 1_000))
    logs = MachineLogs(server, ID, since=2_000)
    logs.read(shown)
    assert shown.taken() == []
    log.write("a print of now")
    logs.read(shown)
    assert shown.taken() == [(6700, "a print of now")]


def test_file_renamed_after_the_listing_is_listed_again(folder, server, monkeypatch):
    log, shown = Log(folder, ID, 6700), Shown()
    log.write("one")
    logs = MachineLogs(server, ID)
    files = server.files

    def list_and_rename(storm_id):
        found = files(storm_id)
        log.rename()
        log.write("two")
        return found

    with monkeypatch.context() as patched:
        patched.setattr(server, "files", list_and_rename)
        logs.read(shown)
    assert shown.taken() == []
    logs.read(shown)
    assert shown.taken() == [(6700, "one"), (6700, "two")]


def test_what_is_no_supervisor_is_said():
    def answer(body):
        def play(connected):
            connected.recv(65536)
            connected.sendall(body)

        return play

    head = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\n"
    refused = head.replace(b"200 OK", b"500 No")
    with scripted(*map(answer, [head + b"{}", b"SSH-2.0\r\n", refused + b"no"])) as (host, port):
        server = LogServer(Address(host, port))
        for said in ["no supervisor of Stormkeeper's", "this is no HTTP", "no$"]:
            with pytest.raises(LogsError, match=said):
                server.files(ID)


def test_a_connection_whose_place_another_took_is_made_again():
    def drop(connected):
        connected.recv(65536)

    def answer(connected):
        connected.recv(65536)
        connected.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n[]")

    with scripted(drop, answer, drop, drop) as (host, port):
        server = LogServer(Address(host, port))
        assert server.files(ID) == []
        with pytest.raises(LogsError):
            server.files(ID)


def test_who_does_not_answer_is_given_up(monkeypatch):
    monkeypatch.setattr("stormkeeper.client.log_server._READ_SECS", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = LogServer(Address(*listener.getsockname()))
        with pytest.raises(LogsError, match="no answer in time"):
            server.files(ID)
