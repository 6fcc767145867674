import errno
import hashlib
import logging
import os
import shutil

import pytest

from stormkeeper.blobs.store import BlobStore
from stormkeeper.errors import BlobNotFoundError, BlobStorageError, InvalidBlobKeyError
from stormkeeper.state.storm.blob_records import BlobRecord
from support.disks import files, room_for


@pytest.fixture
def store(tmp_path):
    with BlobStore(tmp_path / "blobs") as store:
        yield store


def record(data, version=1):
    return BlobRecord(version, hashlib.sha256(data).hexdigest(), len(data), 0, 1)


def put(store, key, data, version=1, **expected):
    draft = store.draft()
    draft.write(data)
    draft.finish()
    return store.put(key, record(data, version), draft, **expected)


def read(store, key):
    _, file = store.open(key)
    with file:
        return file.read()


def names(*datas):
    return {record(data).sha256 for data in datas}


def test_a_blob_is_there_with_its_record_and_after_a_restart(store):
    assert store.get("a") is None
    assert put(store, "a", b"bytes")
    store.close()
    with BlobStore(store.folder) as again:
        assert again.all() == {"a": record(b"bytes")}
        assert read(again, "a") == b"bytes"


def test_nobody_else_may_look_into_the_folder(store):
    assert store.folder.stat().st_mode & 0o077 == 0


def test_a_newer_version_replaces_a_blob_and_frees_its_space(store):
    put(store, "a", b"old")
    put(store, "a", b"new", 2)
    assert store.get("a") == record(b"new", 2)
    assert files(store.folder / "data") == names(b"new")


def test_who_reads_goes_on_with_what_it_began_with(store):
    put(store, "a", b"old")
    _, file = store.open("a")
    put(store, "a", b"new", 2)
    store.delete("a")
    with file:
        assert file.read() == b"old"
    with pytest.raises(BlobNotFoundError, match="no blob a here"):
        store.open("a")


def test_bytes_of_two_blobs_are_stored_once_until_both_are_gone(store):
    put(store, "a", b"same")
    put(store, "b", b"same")
    assert store.put("c", record(b"same", 3), None)
    assert files(store.folder / "data") == names(b"same")
    assert store.delete("a")
    assert store.delete("b")
    assert read(store, "c") == b"same"
    assert store.delete("c")
    assert not store.delete("c")
    assert files(store.folder) == {"lock"}


def test_bytes_that_are_not_those_of_the_record_are_refused(store):
    draft = store.draft()
    draft.write(b"other")
    with pytest.raises(ValueError, match="not the bytes of a"):
        store.put("a", record(b"bytes"), draft)
    with pytest.raises(ValueError, match="not the bytes of a"):
        store.put("a", record(b"bytes"), None)
    assert store.all() == {}


def test_what_has_changed_meanwhile_stays(store):
    put(store, "a", b"old")
    put(store, "a", b"new", 2)
    assert not put(store, "a", b"late", 2, expected=record(b"old"))
    assert not put(store, "a", b"late", 2, expected=None)
    assert not store.delete("a", expected=record(b"old"))
    assert read(store, "a") == b"new"
    assert files(store.folder / "data") == names(b"new")
    assert put(store, "a", b"newest", 3, expected=record(b"new", 2))
    assert store.delete("a", expected=record(b"newest", 3))


@pytest.mark.parametrize("key", ["../a", "/a", ".."])
def test_no_key_leaves_the_folder(store, key):
    before = files(store.folder.parent)
    with pytest.raises(InvalidBlobKeyError):
        store.put(key, record(b"a"), None)
    assert files(store.folder.parent) == before


def test_a_start_deletes_uploads_and_keeps_partial_fetches(store):
    put(store, "a", b"bytes")
    store.draft().write(b"half")
    part = store.part("0" * 64)
    part.write_bytes(b"half")
    (store.folder / "keys" / "b.new").touch()
    (store.folder / "data" / ("1" * 64)).write_bytes(b"nobody's")
    store.close()
    with BlobStore(store.folder) as again:
        assert files(store.folder / "data") == {part.name} | names(b"bytes")
        assert files(store.folder / "keys") == {"a.json"}
        again.drop_parts({"0" * 64})
        assert part.exists()
        again.drop_parts(())
        assert not part.exists()
        assert read(again, "a") == b"bytes"


@pytest.mark.parametrize("damage", ["changed", "cut", "gone", "record"])
def test_a_damaged_blob_is_not_there_after_a_start(store, damage, caplog):
    put(store, "a", b"bytes")
    put(store, "b", b"others")
    path = store.folder / "data" / record(b"bytes").sha256
    if damage == "changed":
        path.write_bytes(b"bytez")
    elif damage == "cut":
        path.write_bytes(b"byte")
    elif damage == "gone":
        path.unlink()
    else:
        (store.folder / "keys" / "a.json").write_bytes(b"{")
    store.close()
    with caplog.at_level(logging.WARNING), BlobStore(store.folder) as again:
        assert again.all() == {"b": record(b"others")}
    assert "removed the damaged blob a" in caplog.text
    assert files(store.folder / "data") == names(b"others")
    assert files(store.folder / "keys") == {"b.json"}


def test_a_check_changes_the_revision_only_for_lost_blobs(store):
    put(store, "a", b"data")
    revision = store.revision
    assert (store.verify(), store.revision) == ([], revision)
    shutil.rmtree(store.folder / "data")
    assert (store.verify(), store.revision) == (["a"], revision + 1)


def test_a_folder_has_one_process_at_a_time(store):
    with pytest.raises(BlobStorageError, match=r"another process keeps its blobs.*blobstore\.dir"):
        BlobStore(store.folder)
    store.close()
    BlobStore(store.folder).close()


def test_a_replaced_folder_of_another_process_stays_its_own(store):
    shutil.rmtree(store.folder)
    with BlobStore(store.folder):
        for _ in range(2):
            with pytest.raises(BlobStorageError, match="another process keeps its blobs"):
                store.verify()
    store.verify()
    with pytest.raises(BlobStorageError, match="another process keeps its blobs"):
        BlobStore(store.folder)


def test_a_folder_that_cannot_be_is_told(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(BlobStorageError, match="cannot keep blobs in"):
        BlobStore(tmp_path / "file")


def test_a_disk_full_at_the_last_write_leaves_the_old_blob(store):
    put(store, "a", b"old")
    draft = store.draft()
    draft.write(b"new")
    draft.finish()
    with room_for(10), pytest.raises(BlobStorageError, match="make room"):
        store.put("a", record(b"new", 2), draft)
    assert read(store, "a") == b"old"
    assert files(store.folder / "data") == names(b"old")
    assert files(store.folder / "keys") == {"a.json"}


def break_reads(monkeypatch, code):
    """Have the system refuse to read files, with an errno."""

    def refuse(*_):
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(hashlib, "file_digest", refuse)
    monkeypatch.setattr(os, "posix_fadvise", refuse)


def test_a_file_that_cannot_be_read_is_not_there_and_stays(store, monkeypatch, caplog):
    put(store, "a", b"bytes")
    with monkeypatch.context() as broken:
        break_reads(broken, errno.EIO)
        assert store.scrub() == ["a"]
    assert "lost the blob a" in caplog.text
    assert "cannot be read (Input/output error)" in caplog.text
    assert store.get("a") is None
    assert store.put("a", record(b"bytes"), None, expected=None)
    assert store.scrub() == []


def test_a_process_with_too_many_files_loses_nothing(store, monkeypatch):
    put(store, "a", b"bytes")
    with monkeypatch.context() as broken:
        break_reads(broken, errno.EMFILE)
        assert store.scrub() == []
    assert read(store, "a") == b"bytes"


def test_bytes_that_were_replaced_meanwhile_stay(store):
    put(store, "a", b"bytes")
    assert store.drop_damaged(record(b"bytes")) == []
    assert read(store, "a") == b"bytes"
