import hashlib

import google_crc32c
import pytest

from stormkeeper.blobs.drafts import Draft
from stormkeeper.errors import BlobStorageError
from support.disks import files, room_for


def test_what_was_written_is_what_is_there(tmp_path):
    draft = Draft(tmp_path / "draft")
    for part in (b"one", b"", b"two"):
        draft.write(part)
    draft.finish()
    assert draft.content() == (hashlib.sha256(b"onetwo").hexdigest(), 6)
    assert draft.crc32c == google_crc32c.value(b"onetwo")
    assert (tmp_path / "draft").read_bytes() == b"onetwo"


def test_a_draft_is_gone_on_with(tmp_path):
    draft = Draft(tmp_path / "draft")
    draft.write(b"one")
    draft.close()
    again = Draft(tmp_path / "draft")
    assert again.size == 3
    again.write(b"two")
    again.finish()
    assert again.content().sha256 == hashlib.sha256(b"onetwo").hexdigest()


def test_a_draft_that_is_discarded_is_gone(tmp_path):
    draft = Draft(tmp_path / "draft")
    draft.write(b"one")
    draft.discard()
    draft.discard()
    assert files(tmp_path) == set()


def test_a_full_disk_is_told_and_leaves_nothing(tmp_path):
    draft = Draft(tmp_path / "draft")
    with room_for(5000):
        draft.write(bytes(4000))
        with pytest.raises(BlobStorageError, match=r"bytes are free there: make room") as failure:
            draft.write(bytes(4000))
    assert str(tmp_path) in str(failure.value)
    assert files(tmp_path) == set()


def test_a_folder_that_is_not_there_is_named(tmp_path):
    with pytest.raises(BlobStorageError, match="No such file or directory; check the folder"):
        Draft(tmp_path / "absent" / "draft")
