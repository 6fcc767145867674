"""A blob comes from a real second store, however the network cuts it."""

import tempfile
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stormkeeper.blobs import peers
from stormkeeper.errors import BlobStorageError, PeerError, PeerUnavailableError
from stormkeeper.paths import NimbusId
from support.code import WHOLE_BLOB, Other, StorePeer, cut_after, damages, hangs
from support.disks import files, room_for


@pytest.fixture
def other(tmp_path):
    other = Other(tmp_path / "other", WHOLE_BLOB)
    yield other
    other.close()


@pytest.fixture
def part(tmp_path):
    return tmp_path / "part"


def test_a_blob_comes_as_it_is(other, part):
    peer = other.peer()
    draft = peers.fetch(peer, "a", other.record, part)
    assert draft.content() == (other.record.sha256, len(WHOLE_BLOB))
    assert part.read_bytes() == WHOLE_BLOB
    assert len(other.downloads._sessions) == 0, "the peer has forgotten the download"


def test_an_interrupted_blob_is_gone_on_with(other, part):
    with pytest.raises(PeerUnavailableError, match="cut after 2300 bytes"):
        peers.fetch(other.peer(cut_after(2300)), "a", other.record, part)
    assert part.read_bytes() == WHOLE_BLOB[:2300]
    peer = other.peer()
    peers.fetch(peer, "a", other.record, part)
    assert peer.begun == [2300]
    assert part.read_bytes() == WHOLE_BLOB


def test_what_is_all_there_is_not_asked_for(other, part):
    part.write_bytes(WHOLE_BLOB)
    peer = other.peer()
    peers.fetch(peer, "a", other.record, part)
    assert peer.begun == []


@settings(max_examples=50)
@given(data=st.binary(max_size=6000), cuts=st.lists(st.integers(0, 3000), max_size=6))
def test_however_often_it_is_interrupted_the_bytes_are_the_same(data, cuts):
    with tempfile.TemporaryDirectory() as folder:
        other, part = Other(Path(folder) / "other", data), Path(folder) / "part"
        sent = 0
        for cut in cuts:
            peer = other.peer(cut_after(cut))
            with suppress(PeerError):
                peers.fetch(peer, "a", other.record, part)
            assert peer.begun in ([], [sent])
            sent = part.stat().st_size
            assert data[:sent] == part.read_bytes()
        peers.fetch(other.peer(), "a", other.record, part).close()
        assert part.read_bytes() == data
        other.close()


class FromTheBeginning(StorePeer):
    """A Nimbus of Storm's, which knows no offsets."""

    def begin_blob_download(self, key, offset, timeout_secs):  # noqa: ARG002
        return super().begin_blob_download(key, 0, timeout_secs)


def test_known_bytes_of_a_peer_without_offsets_are_skipped(other, part):
    part.write_bytes(WHOLE_BLOB[:2300])
    peer = FromTheBeginning(other.downloads)
    peers.fetch(peer, "a", other.record, part)
    assert peer.begun == [0], "what was there already was of use"
    assert part.read_bytes() == WHOLE_BLOB


def test_wrong_bytes_are_refused_and_leave_nothing(other, part):
    with pytest.raises(PeerError, match=f"the SHA-256 is not {other.record.sha256}"):
        peers.fetch(other.peer(damages), "a", other.record, part)
    assert not part.exists()


@pytest.mark.parametrize("begun", [b"what is it?", WHOLE_BLOB[:-1] + b"\0", WHOLE_BLOB + b"\0"])
def test_a_beginning_of_other_bytes_is_thrown_away(other, part, begun):
    part.write_bytes(begun)
    peers.fetch(other.peer(), "a", other.record, part)
    assert part.read_bytes() == WHOLE_BLOB


def test_too_many_bytes_are_refused(other, part):
    peer = other.peer(lambda chunk, _sent: chunk * 2)
    with pytest.raises(PeerError, match="other bytes of a than were uploaded"):
        peers.fetch(peer, "a", other.record, part)


def test_another_version_is_refused_before_a_byte_is_read(other, part):
    record = msgspec.structs.replace(other.record, size=len(WHOLE_BLOB) + 1)
    with pytest.raises(PeerError, match="the peer has another version of a: 5000 bytes"):
        peers.fetch(other.peer(), "a", record, part)


def test_a_peer_that_never_answers_is_left_at_its_deadline(other, part):
    with pytest.raises(PeerUnavailableError, match=r"no answer within 0\.01 s"):
        peers.fetch(other.peer(hangs), "a", other.record, part, peers.FetchLimits(0.01))


def test_a_peer_that_has_lost_the_blob_says_so(other, part):
    other.store.delete("a")
    with pytest.raises(PeerError, match="no blob a here"):
        peers.fetch(other.peer(), "a", other.record, part)


def test_a_peer_that_ends_too_early_is_gone_on_with(other, part):
    def end(chunk, sent):
        return chunk if sent < 2000 else b""

    with pytest.raises(PeerError, match="ended after 2000 of 5000 bytes"):
        peers.fetch(other.peer(end), "a", other.record, part)
    assert part.read_bytes() == WHOLE_BLOB[:2000]


def test_a_peer_that_is_too_slow_is_left(other, part, clock):
    def dribble(chunk, _sent):
        clock.secs += 40
        return chunk

    with pytest.raises(PeerError, match="a comes too slowly: 1000 bytes in 40 s"):
        peers.fetch(other.peer(dribble), "a", other.record, part, peers.FetchLimits(clock=clock))
    assert part.read_bytes() == WHOLE_BLOB[:1000]


def test_what_is_not_wanted_any_more_is_kept_for_later(other, part):
    wanted = [True, True, False]
    limits = peers.FetchLimits(is_wanted=lambda: wanted.pop(0))
    with pytest.raises(PeerError, match="a is not wanted any more"):
        peers.fetch(other.peer(), "a", other.record, part, limits)
    assert part.read_bytes() == WHOLE_BLOB[:2000]


def test_a_full_disk_is_told_and_leaves_nothing(other, part, tmp_path):
    with room_for(3000), pytest.raises(BlobStorageError, match="make room"):
        peers.fetch(other.peer(), "a", other.record, part)
    assert "part" not in files(tmp_path)


def test_who_is_no_nimbus_is_not_dialled(other, part):
    with pytest.raises(
        PeerUnavailableError, match="a is announced by 'what', which is not a host:port"
    ):
        peers.fetch_from(pytest.fail, "what", "a", other.record, part)


def test_a_nimbus_is_dialled_by_its_id(cluster, part):
    nimbus = cluster.start(1)
    upload = nimbus.code.uploads.begin_create("a")
    nimbus.code.uploads.chunk(upload, WHOLE_BLOB)
    record = nimbus.code.uploads.finish(upload)
    peers.fetch_from(cluster.peers, str(nimbus.id), "a", record, part)
    assert part.read_bytes() == WHOLE_BLOB
    absent = str(NimbusId("nimbus9.example", 6627, 0))
    with pytest.raises(PeerUnavailableError, match="connection refused"):
        peers.fetch_from(cluster.peers, absent, "a", record, part)
