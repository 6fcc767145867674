"""A blob comes over the Thrift service of a Nimbus, from real sockets."""

import pytest

from stormkeeper import conf
from stormkeeper.blobs.peers import FetchLimits, fetch_from, peer_connector
from stormkeeper.errors import BlobNotFoundError, PeerError, PeerUnavailableError
from stormkeeper.paths import NimbusId
from stormkeeper.thrift.nimbus import BeginDownloadResult, KeyNotFoundException, Nimbus
from support.code import WHOLE_BLOB, Other
from support.rpc import scripted, served


class Handler:
    """A Nimbus that knows two methods."""

    def __init__(self, downloads):
        self._downloads = downloads
        self.offsets = []

    def __getattr__(self, name):
        def refuse(*_):
            raise NotImplementedError(name)

        return refuse

    def beginBlobDownload(self, key, offset):  # noqa: N802
        self.offsets.append(offset)
        try:
            begun = self._downloads.begin(key, offset or 0)
        except BlobNotFoundError as error:
            raise KeyNotFoundException(str(error)) from error
        return BeginDownloadResult(begun.version, begun.session, begun.size, begun.offset)

    def downloadBlobChunk(self, session):  # noqa: N802
        return self._downloads.chunk(session)


class StormsHandler(Handler):
    """One that skips what it does not know, and says nothing of it."""

    def beginBlobDownload(self, key, offset):  # noqa: N802
        self.offsets.append(offset)
        begun = self._downloads.begin(key)
        return BeginDownloadResult(begun.version, begun.session, begun.size)


@pytest.fixture
def other(tmp_path):
    other = Other(tmp_path / "other", WHOLE_BLOB)
    yield other
    other.close()


@pytest.fixture
def connect():
    return peer_connector(conf.defaults())


def id_of(place):
    return str(NimbusId(place[0], place[1], 0))


@pytest.mark.parametrize("kind", [Handler, StormsHandler])
def test_a_blob_comes_from_where_it_was_interrupted(other, connect, tmp_path, kind):
    part = tmp_path / "part"
    part.write_bytes(WHOLE_BLOB[:2300])
    handler = kind(other.downloads)
    with served(handler, Nimbus) as (_, place):
        fetch_from(connect, id_of(place), "a", other.record, part)
    assert part.read_bytes() == WHOLE_BLOB
    assert handler.offsets == [2300]


def test_what_a_nimbus_has_lost_or_fails_at_is_told_in_its_words(other, connect, tmp_path):
    handler = Handler(other.downloads)
    with served(handler, Nimbus) as (_, place):
        with pytest.raises(PeerError, match="beginBlobDownload: there is no blob b here"):
            fetch_from(connect, id_of(place), "b", other.record, tmp_path / "part")
        other.downloads._chunk_bytes = 2_000_000  # more than a message may have
        del handler._downloads
        with pytest.raises(PeerError, match="Internal error processing beginBlobDownload") as no:
            fetch_from(connect, id_of(place), "a", other.record, tmp_path / "part")
    assert not isinstance(no.value, PeerUnavailableError)


@pytest.mark.parametrize("part", [lambda _connected: None, lambda connected: connected.recv(9999)])
def test_a_nimbus_that_hangs_up_is_unavailable(other, connect, tmp_path, part):
    with scripted(part) as place, pytest.raises(PeerUnavailableError):
        fetch_from(connect, id_of(place), "a", other.record, tmp_path / "part")


def test_a_nimbus_that_never_answers_is_left_at_the_deadline(other, connect, tmp_path):
    def wait_for_its_end(connected):
        while connected.recv(9999):
            pass

    with (
        scripted(wait_for_its_end) as place,
        pytest.raises(PeerUnavailableError, match="no answer in time"),
    ):
        fetch_from(
            *(connect, id_of(place), "a", other.record, tmp_path / "part"),
            limits=FetchLimits(0.2),
        )


def test_a_nimbus_that_is_not_there_is_unavailable(other, connect, tmp_path):
    with scripted() as place:
        pass
    with pytest.raises(PeerUnavailableError, match="nothing listens there"):
        fetch_from(connect, id_of(place), "a", other.record, tmp_path / "part")
