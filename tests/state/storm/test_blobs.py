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
from stormkeeper.state.memory.ensemble import MemoryEnsemble
from stormkeeper.state.storage import DIRECTORY

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


def test_a_replaced_version_does_not_come_back_with_a_new_session(storm, ensemble, memory):
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
