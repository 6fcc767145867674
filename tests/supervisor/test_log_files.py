"""The logs of workers in a real folder, and that nothing else can be read."""

import os
from contextlib import suppress

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from stormkeeper.supervisor.http_pages import MOST_BYTES, LogFiles, LogName, is_topology

ID = "word count-1-1700000000"
SECRET = b"a secret of this machine\n"


@pytest.fixture(scope="module")
def machine(tmp_path_factory):
    """Make a folder with two workers' logs, among things that are nobody's business."""
    top = tmp_path_factory.mktemp("machine")
    (top / "secret").write_bytes(SECRET)
    (top / "worker.log").write_bytes(SECRET)
    folder = top / "workers-artifacts"
    for port in (6700, 6701, 10001):
        slot = folder / ID / str(port)
        slot.mkdir(parents=True)
        (slot / "worker.log").write_bytes(b"one\ntwo\n")
    slot = folder / ID / "6700"
    (slot / "worker.pid").write_bytes(SECRET)
    (slot / "worker.log.1").write_bytes(b"zero\n")
    os.utime(slot / "worker.log.1", (1, 1))
    (slot / "worker.log.2").symlink_to(top / "secret")
    (slot / "worker.log.3").mkdir()
    os.mkfifo(slot / "worker.log.4")
    (slot / "worker.log.new").write_bytes(SECRET)
    (folder / ID / "notes").mkdir()
    (folder / ID / "6702").symlink_to(top)
    (folder / ID / "6703").write_bytes(SECRET)
    (folder / "linked-1-1").symlink_to(folder / ID)
    return top


@pytest.fixture(scope="module")
def logs(machine):
    return LogFiles(machine / "workers-artifacts")


def test_the_files_of_a_topology_and_of_a_slot(logs):
    found = [each.file.removeprefix(ID) for each in logs.all(ID)]
    first = ["/6700/worker.log.1", "/6700/worker.log"]
    assert found == [*first, "/6701/worker.log", "/10001/worker.log"]
    assert [each.file.removeprefix(ID) for each in logs.all(ID, 6700)] == first
    assert (logs.all(ID, 6700)[0].size, logs.all(ID, 6700)[0].modified) == (5, 1)
    assert logs.all(ID, 6704) == logs.all(ID, 6702) == logs.all(ID, 6703) == []


@pytest.mark.parametrize("whose", ["", ".", "..", "nobody-1-1", "linked-1-1", f"{ID}/6700", "a\0b"])
def test_a_topology_that_is_not_there_has_no_files(logs, whose):
    assert logs.all(whose) == []


def test_a_folder_that_is_not_there_has_no_files(tmp_path):
    assert LogFiles(tmp_path / "none").all(ID) == []


def test_parts_of_a_file(logs):
    name = LogName(ID, 6701, "worker.log")
    (file,) = logs.all(ID, 6701)
    assert logs.read(name, 0, 100) == (file.identity, 0, 8, b"one\ntwo\n")
    assert logs.read(name, 4, 2) == (file.identity, 4, 8, b"tw")
    assert logs.read(name, None, 4) == (file.identity, 4, 8, b"two\n")
    assert logs.read(name, None, 100).start == 0
    assert logs.read(name, 8, 100).data == b""
    assert logs.read(name, 9, 100) == (file.identity, 9, 8, b"")


def test_one_answer_has_so_many_bytes_at_most(tmp_path):
    slot = tmp_path / ID / "6700"
    slot.mkdir(parents=True)
    (slot / "worker.log").write_bytes(bytes(MOST_BYTES + 10))
    piece = LogFiles(tmp_path).read(LogName(ID, 6700, "worker.log"), None, 10 * MOST_BYTES)
    assert (piece.start, len(piece.data)) == (10, MOST_BYTES)


def test_a_file_keeps_its_identity_when_it_gets_another_name(tmp_path):
    slot = tmp_path / ID / "6700"
    slot.mkdir(parents=True)
    (slot / "worker.log").write_bytes(b"old")
    logs = LogFiles(tmp_path)
    (before,) = logs.all(ID)
    (slot / "worker.log").rename(slot / "worker.log.1")
    (slot / "worker.log").write_bytes(b"new")
    renamed, current = logs.all(ID)
    assert (renamed.file, renamed.identity) == (f"{ID}/6700/worker.log.1", before.identity)
    assert current.identity != before.identity


NAMES = [
    "worker.log",
    "worker.log.2",
    "worker.log.3",
    "worker.log.4",
    "worker.log.new",
    "worker.pid",
    "secret",
]
ODD = ["..", ".", "", "%2e%2e", "..\\", "\0", "~", "\udcff", "\n"]
PARTS = st.sampled_from([ID, "linked-1-1", "6700", "6702", "6703", *NAMES, *ODD])


@given(st.one_of(st.lists(PARTS, max_size=6).map("/".join), st.text()))
@example(f"{ID}/6700/worker.log/../../../../secret")
@example(f"{ID}/6700/worker.log.2")
@example(f"{ID}/6702/worker.log")
@example(f"../workers-artifacts/{ID}/6700/worker.log")
@example(f"{ID}/6700/worker.log\n")
@example("/etc/passwd")
def test_whatever_is_asked_for_only_a_workers_log_is_read(logs, text):
    name = LogName.parse(text)
    if name is not None:
        assert str(name) == text
        with suppress(OSError):
            assert logs.read(name, 0, 100).data in (b"one\ntwo\n", b"zero\n")
            assert text.startswith(ID)


@given(st.one_of(PARTS, st.lists(PARTS, max_size=4).map("/".join), st.text()))
def test_whatever_is_asked_for_only_a_workers_logs_are_listed(logs, text):
    assert (logs.all(text) != []) is (text == ID)
    assert all(file.size in (5, 8) for file in logs.all(text))
    assert is_topology(text) or logs.all(text) == []
