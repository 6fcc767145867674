"""Uploads, and every order of their steps: only whole blobs are ever seen."""

import tempfile
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    invariant,
    rule,
)

from stormkeeper.blobs.publisher import Publisher
from stormkeeper.blobs.store import BlobStore
from stormkeeper.blobs.sync import forget
from stormkeeper.blobs.transfers import Uploads
from stormkeeper.errors import (
    BlobExistsError,
    BlobNotFoundError,
    BlobStorageError,
    InvalidBlobKeyError,
    TransferEndedError,
)
from stormkeeper.paths import NimbusId
from stormkeeper.state.storm.blob_records import BlobRecord
from stormkeeper.state.storm.cluster import StormClusterState
from stormkeeper.thrift.serialization import Codec
from support.disks import files, room_for
from support.memory_state import MemoryEnsemble

ME = NimbusId("nimbus1.example", 6627, 0)


class World:
    """The uploads of one Nimbus, which can end without having time for anything."""

    def __init__(self, folder, clock):
        self.folder = folder
        self.clock = clock
        self.storm = StormClusterState(MemoryEnsemble(inline=True).session(), Codec())
        self.open()

    def open(self):
        self.store = BlobStore(self.folder)
        publisher = Publisher(self.storm, self.store, ME)
        self.uploads = Uploads(self.store, publisher, idle_secs=600, clock=self.clock)

    def crash(self):
        self.store.close()
        self.open()

    def upload(self, key, data, begin=None):
        session = (begin or self.uploads.begin_create)(key)
        self.uploads.chunk(session, data)
        return self.uploads.finish(session)

    def read(self, key):
        _, file = self.store.open(key)
        with file:
            return file.read()

    def close(self):
        self.uploads.close()
        self.store.close()
        self.storm.disconnect()


@pytest.fixture
def world(tmp_path, clock):
    world = World(tmp_path / "blobs", clock)
    yield world
    world.close()


def test_a_blob_is_there_when_it_is_finished_and_not_before(world):
    session = world.uploads.begin_create("a", b"settable")
    world.uploads.chunk(session, b"one")
    world.uploads.chunk(session, b"two")
    assert world.store.all() == {}
    assert world.storm.blobs() == {}
    record = world.uploads.finish(session)
    assert (record.version, record.size, record.settable) == (1, 6, b"settable")
    assert world.read("a") == b"onetwo"
    assert world.storm.blobs()["a"].record == record
    assert world.storm.blobs()["a"].alive == (str(ME),)


def test_an_update_is_the_next_version_and_keeps_what_is_set(world):
    first = world.uploads.begin_create("a", b"settable")
    assert world.uploads.finish(first).size == 0
    record = world.upload("a", b"two", world.uploads.begin_update)
    assert (record.version, record.settable) == (2, b"settable")
    assert world.read("a") == b"two"


def test_create_needs_a_new_key_and_update_a_known_one(world):
    with pytest.raises(BlobNotFoundError, match="no blob a to update: create it"):
        world.uploads.begin_update("a")
    world.upload("a", b"one")
    with pytest.raises(BlobExistsError, match="a blob a already: update it, or delete it"):
        world.uploads.begin_create("a")
    with pytest.raises(InvalidBlobKeyError):
        world.uploads.begin_create("../a")
    assert len(files(world.folder / "data")) == 1


def test_a_users_blob_cannot_have_the_name_of_code(world):
    with pytest.raises(InvalidBlobKeyError, match="give the blob another key"):
        world.uploads.begin_create("tool-stormjar.jar")
    assert not files(world.folder / "data")


def test_a_blob_that_is_too_large_gives_its_space_back(world):
    uploads = Uploads(
        world.store, Publisher(world.storm, world.store, ME), idle_secs=1, most_bytes=8
    )
    session = uploads.begin_create("a")
    uploads.chunk(session, b"8 bytes!")
    with pytest.raises(BlobStorageError, match=r"larger than 8 bytes.*nimbus\.upload\.max\.bytes"):
        uploads.chunk(session, b"9")
    assert not files(world.folder / "data")
    with pytest.raises(TransferEndedError):
        uploads.finish(session)
    assert uploads.finish(uploads.begin_create("a")).size == 0


@pytest.mark.parametrize("begin", ["begin_create", "begin_update"])
def test_the_first_of_several_uploads_to_finish_wins(world, begin):
    if begin == "begin_update":
        world.upload("a", b"zero")
    first, second = (getattr(world.uploads, begin)("a") for _ in range(2))
    world.uploads.chunk(first, b"first")
    world.uploads.chunk(second, b"second")
    world.uploads.finish(second)
    with pytest.raises(BlobExistsError, match="another upload of a finished since"):
        world.uploads.finish(first)
    assert world.read("a") == b"second"
    assert len(files(world.folder / "data")) == 1


def test_a_new_blob_does_not_replace_one_made_meanwhile(world):
    """Another Nimbus had counted it, and says only now, after a crash, that it is there."""
    world.storm.set_blob_key_sequence("a", 1, None)
    session = world.uploads.begin_create("a")
    world.storm.announce_blob("a", "nimbus2.example:6627:0", BlobRecord(1, "0" * 64, 3, 0, 1))
    with pytest.raises(BlobExistsError):
        world.uploads.finish(session)
    assert world.storm.blobs()["a"].record.version == 1


def test_uploads_on_two_nimbuses_have_one_winner(cluster):
    one, two = cluster.start(1), cluster.start(2)
    first = one.code.uploads.begin_create("a")
    second = two.code.uploads.begin_create("a")
    one.code.uploads.chunk(first, b"first")
    two.code.uploads.chunk(second, b"second")
    two.code.uploads.finish(second)
    with pytest.raises(BlobExistsError):
        one.code.uploads.finish(first)
    assert one.code.store.all() == {}
    assert one.storm.blobs()["a"].alive == (str(two.id),)


def test_a_cancelled_upload_leaves_nothing(world):
    session = world.uploads.begin_create("a")
    world.uploads.chunk(session, b"one")
    world.uploads.end(session)
    assert files(world.folder / "data") == set()
    with pytest.raises(TransferEndedError):
        world.uploads.chunk(session, b"two")


def test_an_idle_upload_ends_and_gives_its_space_back(world, clock):
    session = world.uploads.begin_create("a")
    clock.secs = 590
    world.uploads.chunk(session, b"one")
    clock.secs = 1180
    assert world.uploads.expire() == 0
    clock.secs = 1191
    assert world.uploads.expire() == 1
    assert files(world.folder / "data") == set()
    with pytest.raises(TransferEndedError, match="begin again"):
        world.uploads.finish(session)


def test_a_full_disk_ends_the_upload_and_leaves_nothing(world):
    session = world.uploads.begin_create("a")
    with room_for(1000), pytest.raises(BlobStorageError, match="make room, and try again"):
        world.uploads.chunk(session, bytes(2000))
    assert files(world.folder / "data") == set()
    with pytest.raises(TransferEndedError):
        world.uploads.finish(session)
    assert world.upload("a", bytes(2000)).version == 1


def test_the_version_that_clients_see_is_that_of_the_bytes(world):
    assert world.upload("a", b"123456789").crc32c == 0xE3069283


CHUNKS = st.binary(max_size=300)
KEYS = st.sampled_from(["a", "b"])


class Interleavings(RuleBasedStateMachine):
    """Uploads of two keys in any order, with crashes, idle times and deletions."""

    sessions = Bundle("sessions")

    def __init__(self):
        super().__init__()
        self.temporary = tempfile.TemporaryDirectory()
        self.now = 0.0
        self.world = World(Path(self.temporary.name) / "blobs", lambda: self.now)
        #: What should be there, and how its number stands: its value, and how often it was set.
        self.blobs = {}
        self.numbers = {}
        #: Of each upload its key, base, bytes, whether it creates, and when it was last used.
        self.open = {}

    def teardown(self):
        self.world.close()
        self.temporary.cleanup()

    @rule(target=sessions, key=KEYS, is_new=st.booleans())
    def begins(self, key, is_new):
        begin = self.world.uploads.begin_create if is_new else self.world.uploads.begin_update
        if is_new is (key in self.blobs):
            with pytest.raises(BlobExistsError if is_new else BlobNotFoundError):
                begin(key)
            return "none"
        session = begin(key)
        self.open[session] = [key, self.numbers.get(key), b"", is_new, self.now]
        return session

    @rule(session=sessions, data=CHUNKS)
    def sends(self, session, data):
        if session in self.open:
            self.world.uploads.chunk(session, data)
            self.open[session][2] += data
            self.open[session][4] = self.now
        else:
            with pytest.raises(TransferEndedError):
                self.world.uploads.chunk(session, data)

    @rule(session=consumes(sessions))
    def finishes(self, session):
        if session not in self.open:
            with pytest.raises(TransferEndedError):
                self.world.uploads.finish(session)
            return
        key, base, data, is_new, _ = self.open.pop(session)
        if self.numbers.get(key) != base or (is_new and key in self.blobs):
            with pytest.raises(BlobExistsError):
                self.world.uploads.finish(session)
            return
        value, version = base or (0, -1)
        self.numbers[key] = (value + 1, version + 1)
        self.blobs[key] = data
        assert self.world.uploads.finish(session).version == value + 1

    @rule(session=consumes(sessions))
    def cancels(self, session):
        if self.open.pop(session, None):
            self.world.uploads.end(session)
        else:
            with pytest.raises(TransferEndedError):
                self.world.uploads.end(session)

    @rule(secs=st.sampled_from([1, 400, 601]))
    def waits(self, secs):
        self.now += secs
        self.world.uploads.expire()
        self.open = {s: up for s, up in self.open.items() if self.now - up[4] <= 600}

    @rule()
    def crashes(self):
        self.open.clear()
        self.world.crash()

    @rule(key=KEYS)
    def deletes(self, key):
        forget(self.world.storm, key)
        self.world.store.delete(key)
        self.blobs.pop(key, None)
        self.numbers.pop(key, None)

    @invariant()
    def only_whole_blobs_are_seen(self):
        store = self.world.store
        assert store.all().keys() == self.blobs.keys()
        for key, data in self.blobs.items():
            assert self.world.read(key) == data
        data = files(store.folder / "data")
        assert sum(name.endswith(".new") for name in data) == len(self.open)
        assert len(data) == len(self.open) + len(set(self.blobs.values()))
        assert {name.removesuffix(".json") for name in files(store.folder / "keys")} == set(
            self.blobs
        )


Interleavings.TestCase.settings = settings(max_examples=40, stateful_step_count=25, deadline=None)
TestInterleavings = Interleavings.TestCase
