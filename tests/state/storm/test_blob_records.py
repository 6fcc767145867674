import pytest

from stormkeeper import paths
from stormkeeper.errors import (
    BadVersionError,
    NodeExistsError,
    NoNodeError,
    NotLeaderError,
    OutcomeUnknownError,
    SerializationError,
)
from stormkeeper.paths import BlobHolder, NimbusId
from stormkeeper.state.storage import DIRECTORY
from stormkeeper.state.storm.blob_records import BlobEntry, BlobRecord
from support.memory_state import MemoryEnsemble

KEY = "wc-1-1700000000-stormcode.ser"
FIRST = NimbusId("nimbus1.example", 6627, 0)
SECOND = NimbusId("nimbus2.example", 6627, 6628)


@pytest.fixture
def ensemble():
    """Callbacks run in its `deliver`."""
    return MemoryEnsemble(inline=True)


def test_who_holds_a_blob_says_so(storm, memory):
    assert storm.blobstore() == []
    assert storm.blobstore_info(KEY) == []
    storm.setup_blob(KEY, FIRST, 1)
    storm.setup_blob(KEY, str(SECOND), 2)
    assert storm.blobstore() == [KEY]
    assert storm.blobstore_info(KEY) == [BlobHolder(str(FIRST), 1), BlobHolder(str(SECOND), 2)]
    assert memory.get_data(paths.blob(KEY)) == DIRECTORY
    assert memory.get_data(paths.blob_holder(KEY, str(FIRST), 1)) == b""


def test_a_newer_version_replaces_ones_own_and_nobody_elses(storm):
    storm.setup_blob(KEY, FIRST, 1)
    storm.setup_blob(KEY, SECOND, 1)
    storm.setup_blob(KEY, FIRST, 2)
    assert storm.blobstore_info(KEY) == [BlobHolder(str(FIRST), 2), BlobHolder(str(SECOND), 1)]


def test_a_version_that_is_said_to_be_held_stays_so(storm, memory):
    storm.setup_blob(KEY, FIRST, 1)
    made = memory.get_stat(paths.blob_holder(KEY, str(FIRST), 1)).created
    storm.setup_blob(KEY, FIRST, 1)
    assert memory.get_stat(paths.blob_holder(KEY, str(FIRST), 1)).created == made


def test_replaced_version_does_not_return_with_a_new_session(storm, ensemble, memory):
    storm.setup_blob(KEY, FIRST, 1)
    storm.setup_blob(KEY, FIRST, 2)
    ensemble.expire(memory)
    assert storm.blobstore_info(KEY) == [BlobHolder(str(FIRST), 2)]


def test_holders_and_keys_that_come_are_told(storm, ensemble):
    told = []
    storm.blobstore(callback=lambda: told.append("key"))
    storm.setup_blob(KEY, FIRST, 1)
    ensemble.deliver()
    assert told == ["key"]
    storm.blobstore_info(KEY, callback=lambda: told.append("holder"))
    storm.setup_blob(KEY, SECOND, 1)
    ensemble.deliver()
    assert told == ["key", "holder"]


@pytest.mark.parametrize("number", [2**31, -1, "1", None])
def test_a_number_that_four_bytes_do_not_hold(storm, number):
    with pytest.raises(ValueError, match="is no sequence number of a blob"):
        storm.set_blob_key_sequence(KEY, number, None)
    storm.set_blob_key_sequence(KEY, 2**31 - 1, None)
    assert storm.blob_key_sequence(KEY).number == 2**31 - 1


def record(version, content="a"):
    return BlobRecord(version, content * 64, 3, 7, 5, b"\x00")


def entry(storm, number, newest, held, alive):
    born = storm.state.get_stat(paths.blob_key_sequence(KEY)).created
    return BlobEntry(number, born, newest, held, alive)


def announce(storm, nimbus, version, content="a"):
    """What a Nimbus does that has stored an upload: a number, then its announcement."""
    counted = storm.blob_key_sequence(KEY)
    if counted is None or counted.number < version:
        storm.set_blob_key_sequence(KEY, version, counted and counted.version)
    storm.announce_blob(KEY, nimbus, record(version, content))


def test_who_has_held_a_blob_stays_written(open_storm, storm):
    assert storm.blobs() == {}
    gone = open_storm()
    announce(gone, FIRST, 1)
    announce(storm, SECOND, 1)
    both = tuple(sorted((str(FIRST), str(SECOND))))
    assert storm.blobs() == {KEY: entry(storm, 1, record(1), both, both)}
    gone.disconnect()
    assert storm.blobs() == {KEY: entry(storm, 1, record(1), both, (str(SECOND),))}
    assert storm.blobs([KEY, "another"]) == storm.blobs()


def test_the_newest_version_that_anybody_has_held_counts(storm):
    announce(storm, FIRST, 1)
    storm.set_blob_key_sequence(KEY, 2, 0)
    assert storm.blobs()[KEY] == entry(storm, 2, record(1), (str(FIRST),), (str(FIRST),))
    announce(storm, SECOND, 2, "b")
    second = (str(SECOND),)
    assert storm.blobs()[KEY] == entry(storm, 2, record(2, "b"), second, second)
    announce(storm, FIRST, 2, "b")
    assert storm.blobs()[KEY].alive == (str(FIRST), str(SECOND))
    assert storm.blobstore_info(KEY) == [BlobHolder(str(FIRST), 2), BlobHolder(str(SECOND), 2)]


def test_last_announcement_of_a_blob_counts(storm):
    announce(storm, FIRST, 1)
    announce(storm, FIRST, 1, "b")
    assert storm.blobs()[KEY].record == record(1, "b")


def test_a_blob_that_was_deleted_is_not_announced(storm, memory):
    announce(storm, FIRST, 1)
    storm.remove_blobstore_key(KEY)
    storm.remove_blob_key_sequence(KEY)
    with pytest.raises(NoNodeError):
        storm.announce_blob(KEY, FIRST, record(1))
    assert storm.blobs() == {}
    assert storm.blobstore() == []
    assert memory.get_children(paths.BLOB_KEY_SEQUENCES) == []


def test_who_has_lost_a_blob_withdraws_it_and_has_held_it(open_storm, storm):
    announce(storm, FIRST, 1)
    announce(storm, SECOND, 1)
    open_storm().withdraw_blob(KEY, FIRST)
    storm.withdraw_blob("another", FIRST)
    found = storm.blobs()[KEY]
    assert found.alive == (str(SECOND),)
    assert found.held == (str(FIRST), str(SECOND))


def test_last_holder_of_a_deleted_blob_leaves_nothing(open_storm, storm, ensemble):
    other = open_storm()
    announce(storm, FIRST, 1)
    announce(other, SECOND, 1)
    storm.remove_blob_key_sequence(KEY)
    storm.leave_blob(KEY, FIRST, 1)
    assert storm.blobstore_info(KEY) == [BlobHolder(str(SECOND), 1)]
    storm.remove_blobstore_key(KEY)
    other.leave_blob(KEY, SECOND, 1)
    ensemble.expire(other.state)
    assert storm.blobstore() == [], "a new session does not say again that it is there"
    storm.setup_blob(KEY, FIRST, 1)
    storm.leave_blob(KEY, FIRST, 1)
    assert storm.blobstore() == []


def test_a_new_version_and_a_new_key_are_told(storm, ensemble):
    told = []

    def look():
        return storm.blobs(callback=lambda: told.append("told"))

    assert look() == {}
    announce(storm, FIRST, 1)
    ensemble.deliver()
    assert told == ["told"]
    look()
    storm.set_blob_key_sequence(KEY, 2, 0)
    ensemble.deliver()
    assert told == ["told", "told"]
    ensemble.deliver()
    assert len(told) == 2, "it is told once"


@pytest.mark.parametrize("data", [b"", b"what", b'{"version": 0}', b"\xff"])
def test_a_record_that_is_none_is_left_out_and_counted(storm, memory, data):
    announce(storm, FIRST, 1)
    memory.set_data(paths.blob_record(KEY, str(FIRST), 1), data)
    assert storm.blobs()[KEY] == entry(storm, 1, None, (str(FIRST),), ())
    assert storm.unreadable == 1
    memory.set_data(paths.blob_key_sequence(KEY), b"what is it")
    assert storm.blobs()[KEY].number == 0


@pytest.mark.parametrize("sha256", ["", "a" * 63, "A" * 64, "../" + "a" * 61, "a" * 64 + "\n"])
def test_a_checksum_that_is_none_is_no_record(sha256):
    data = record(1).encode().replace(b"a" * 64, sha256.replace("\n", "\\n").encode())
    with pytest.raises(SerializationError, match="not a record of a blob"):
        BlobRecord.decode(data)


def test_a_sequence_number_is_storms_four_bytes(storm, memory):
    assert storm.blob_key_sequence(KEY) is None
    storm.set_blob_key_sequence(KEY, 1, None)
    assert memory.get_data(paths.blob_key_sequence(KEY)) == bytes.fromhex("00000001")
    assert storm.blob_key_sequence(KEY) == (1, 0)
    storm.set_blob_key_sequence(KEY, 2, 0)
    assert storm.blob_key_sequence(KEY) == (2, 1)


def test_only_who_has_seen_the_number_sets_it(storm):
    with pytest.raises(NoNodeError):
        storm.set_blob_key_sequence(KEY, 1, 0)
    storm.set_blob_key_sequence(KEY, 1, None)
    with pytest.raises(NodeExistsError):
        storm.set_blob_key_sequence(KEY, 1, None)
    storm.set_blob_key_sequence(KEY, 2, 0)
    with pytest.raises(BadVersionError):
        storm.set_blob_key_sequence(KEY, 2, 0)
    assert storm.blob_key_sequence(KEY).number == 2


def test_a_number_whose_answer_was_lost_is_read_again(storm, ensemble, memory):
    storm.set_blob_key_sequence(KEY, 1, None)
    ensemble.lose_answer(memory, applied=True)
    with pytest.raises(OutcomeUnknownError):
        storm.set_blob_key_sequence(KEY, 2, 0)
    ensemble.resume(memory)
    assert storm.blob_key_sequence(KEY) == (2, 1)


@pytest.mark.parametrize("data", [b"", b"\x00\x01", bytes(8)])
def test_what_is_no_number_is_said_to_be_none(storm, memory, data):
    memory.set_data(paths.blob_key_sequence(KEY), data)
    with pytest.raises(SerializationError, match=f"^/blobstoremax.*{len(data)} bytes instead of 4"):
        storm.blob_key_sequence(KEY)


def test_keys_and_numbers_are_removed_by_anybody(storm, leader):
    for remover in (storm, leader):
        storm.setup_blob(KEY, FIRST, 1)
        remover.set_blob_key_sequence(KEY, 1, None)
        for _ in range(2):
            remover.remove_blobstore_key(KEY)
            remover.remove_blob_key_sequence(KEY)
        assert storm.blobstore() == []
        assert storm.blob_key_sequence(KEY) is None


def test_a_leaders_number_is_fenced(storm, leader, memory):
    leader.set_blob_key_sequence(KEY, 1, None)
    memory.delete_node(paths.LEADER_LOCK)
    with pytest.raises(NotLeaderError):
        leader.set_blob_key_sequence(KEY, 2, 0)
    with pytest.raises(NotLeaderError):
        leader.remove_blob_key_sequence(KEY)
    assert storm.blob_key_sequence(KEY).number == 1
