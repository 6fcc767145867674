"""What a crash, a lost answer or another Nimbus leaves of an upload."""

import pytest

from stormkeeper.blobs.publisher import Publisher, Upload
from stormkeeper.blobs.sync import forget
from stormkeeper.errors import BlobExistsError, BlobNotFoundError, StateUnavailableError


@pytest.fixture
def one(cluster):
    return cluster.start(1)


@pytest.fixture
def publisher(one):
    return Publisher(one.storm, one.code.store, one.id)


def upload(one, publisher, data=b"bytes", *, is_new=True):
    draft = one.code.store.draft()
    draft.write(data)
    draft.finish()
    return Upload("a", draft, publisher.base("a"), is_new)


@pytest.mark.parametrize("applied", [True, False, None])
def test_an_unknown_outcome_leaves_the_blob_and_allows_the_next(cluster, one, publisher, applied):
    first = publisher.publish(upload(one, publisher))
    lost = upload(one, publisher, b"lost", is_new=False)
    if applied is None:
        cluster.ensemble.suspend(one.storm.state)
    else:
        cluster.ensemble.lose_answer(one.storm.state, applied=applied)
    with pytest.raises(StateUnavailableError):
        publisher.publish(lost)
    lost.draft.discard()
    cluster.ensemble.resume(one.storm.state)
    assert one.code.store.get("a") == first
    assert publisher.known("a") == first
    one.code.sync.run_once()
    assert one.storm.blobs()["a"].record == first
    record = publisher.publish(upload(one, publisher, b"next", is_new=False))
    assert record.version == (3 if applied else 2)


def test_an_unused_number_is_followed_by_the_next(one, publisher):
    one.storm.set_blob_key_sequence("a", 1, None)
    assert publisher.publish(upload(one, publisher)).version == 2
    assert one.storm.blobs()["a"].record.version == 2


def test_the_second_of_two_new_blobs_comes_too_late(one, publisher):
    """Both began when a number was counted; the first has been published since."""
    one.storm.set_blob_key_sequence("a", 1, None)
    publisher.publish(upload(one, publisher))
    late = upload(one, publisher)
    with pytest.raises(BlobExistsError, match="is discarded: look at the blob"):
        publisher.publish(late)
    late.draft.discard()
    assert one.code.store.get("a").version == 2


def test_a_blob_that_was_deleted_meanwhile_is_not_updated(one, publisher):
    publisher.publish(upload(one, publisher))
    late = upload(one, publisher, is_new=False)
    one.code.delete("a")
    with pytest.raises(BlobExistsError):
        publisher.publish(late)
    late.draft.discard()
    assert publisher.known("a") is None


def test_a_blob_that_is_deleted_as_it_is_published_is_gone(one, publisher, monkeypatch):
    new = upload(one, publisher)
    put = one.code.store.put

    def put_and_delete(*args, **kwargs):
        forget(one.storm, "a")
        return put(*args, **kwargs)

    monkeypatch.setattr(one.code.store, "put", put_and_delete)
    with pytest.raises(BlobNotFoundError, match="a was deleted during the upload"):
        publisher.publish(new)
    assert one.code.store.all() == {}
    assert one.storm.blobstore() == []


def test_a_newer_version_that_was_fetched_meanwhile_stays(cluster, one, publisher, monkeypatch):
    publisher.publish(upload(one, publisher))
    late = upload(one, publisher, b"late", is_new=False)
    two = cluster.start(2)
    two.code.sync.run_once()
    get = one.code.store.get

    def get_and_be_overtaken(key):
        found = get(key)
        monkeypatch.undo()
        session = two.code.uploads.begin_update("a")
        two.code.uploads.chunk(session, b"newer")
        two.code.uploads.finish(session)
        one.code.sync.run_once()
        return found

    monkeypatch.setattr(one.code.store, "get", get_and_be_overtaken)
    with pytest.raises(BlobExistsError):
        publisher.publish(late)
    late.draft.discard()
    assert one.code.store.get("a").version == 3
    assert one.code.store.get("a") == two.code.store.get("a")


def test_each_life_of_a_key_is_another_blob(one, publisher):
    first = publisher.publish(upload(one, publisher))
    one.code.delete("a")
    second = publisher.publish(upload(one, publisher))
    assert (first.version, second.version) == (1, 1)
    assert first.born < second.born


def test_what_is_said_of_a_blob_is_a_version_with_the_same_bytes(cluster, one, publisher):
    first = publisher.publish(upload(one, publisher))
    two = cluster.start(2)
    two.code.sync.run_once()
    record = publisher.publish_settable("a", b"settable")
    assert (record.version, record.settable) == (2, b"settable")
    assert (record.sha256, record.crc32c, record.born) == (first.sha256, first.crc32c, first.born)
    assert one.code.store.open("a")[1].read() == b"bytes"
    two.code.sync.run_once()
    assert two.code.store.get("a") == record
    assert two.code.store.open("a")[1].read() == b"bytes"


def test_nothing_is_said_of_a_blob_that_is_not_here(cluster, one, publisher):
    with pytest.raises(BlobNotFoundError, match="there is no blob a"):
        publisher.publish_settable("a", b"")
    publisher.publish(upload(one, publisher))
    two = cluster.start(2)
    with pytest.raises(BlobNotFoundError, match="not here yet"):
        two.code.publisher.publish_settable("a", b"")
    assert publisher.known("a").version == 1
