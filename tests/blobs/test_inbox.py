import pytest

from stormkeeper.blobs.transfers import Inbox
from stormkeeper.errors import BlobStorageError, TransferEndedError
from support.disks import files, room_for


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "nimbus" / "inbox"


@pytest.fixture
def now():
    return [0.0]


@pytest.fixture
def inbox(folder, clock, now):
    inbox = Inbox(folder, idle_secs=600, kept_secs=3600, clock=clock, now=lambda: now[0])
    yield inbox
    inbox.close()


def upload(inbox, data=b"bytes"):
    location = inbox.begin()
    inbox.chunk(location, data)
    inbox.finish(location)
    return location


def test_a_file_is_there_when_it_is_finished(inbox, folder):
    location = inbox.begin()
    assert location.startswith(f"{folder}/stormjar-")
    inbox.chunk(location, b"one")
    with pytest.raises(TransferEndedError, match="no file was uploaded as"):
        inbox.take(location)
    inbox.chunk(location, b"two")
    inbox.finish(location)
    assert inbox.take(location).read_bytes() == b"onetwo"
    with pytest.raises(TransferEndedError):
        inbox.chunk(location, b"three")


def test_an_idle_upload_ends_and_an_unused_file_is_deleted(inbox, folder, clock, now):
    location = upload(inbox)
    inbox.chunk(inbox.begin(), b"half")
    written = inbox.take(location).stat().st_mtime
    clock.secs, now[0] = 601, written + 3599
    inbox.expire()
    assert files(folder) == {inbox.take(location).name}
    now[0] = written + 3601
    inbox.expire()
    assert files(folder) == set()


def test_what_an_earlier_process_had_not_finished_is_removed(inbox, folder):
    location = upload(inbox)
    inbox.chunk(inbox.begin(), b"half")
    again = Inbox(folder, idle_secs=600, kept_secs=3600)
    assert files(folder) == {again.take(location).name}


def test_no_location_leaves_the_folder(inbox, folder):
    location = upload(inbox)
    name = location.rpartition("/")[2]
    (folder.parent / name).touch()
    (folder / "stormjar-secret.jar").touch()
    for other in (
        str(folder.parent / name),
        f"{folder}/../{name}",
        f"{folder}/../inbox/{name}",
        "/etc/passwd",
        str(folder / "stormjar-secret.jar"),
        name,
        "",
    ):
        with pytest.raises(TransferEndedError):
            inbox.take(other)
        with pytest.raises(TransferEndedError):
            inbox.chunk(other, b"")


def test_a_full_disk_ends_the_upload_and_leaves_nothing(inbox, folder):
    location = inbox.begin()
    with room_for(1000), pytest.raises(BlobStorageError, match="make room"):
        inbox.chunk(location, bytes(2000))
    assert files(folder) == set()


def test_a_file_that_is_too_large_is_deleted(folder):
    inbox = Inbox(folder, idle_secs=600, kept_secs=3600, most_bytes=4)
    location = upload(inbox, b"four")
    assert inbox.take(location).read_bytes() == b"four"
    other = inbox.begin()
    inbox.chunk(other, b"four")
    with pytest.raises(BlobStorageError, match="larger than 4 bytes"):
        inbox.chunk(other, b"5")
    assert files(folder) == {inbox.take(location).name}
    with pytest.raises(TransferEndedError):
        inbox.chunk(other, b"")
    inbox.close()
