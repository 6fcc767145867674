import pytest

from stormkeeper.blobs.store import BlobStore
from stormkeeper.blobs.transfers import Downloads
from stormkeeper.errors import BlobNotFoundError, TransferEndedError
from stormkeeper.state.storm.blob_records import BlobRecord


@pytest.fixture
def store(tmp_path):
    with BlobStore(tmp_path) as store:
        put(store, b"0123456789")
        yield store


@pytest.fixture
def downloads(store, clock):
    downloads = Downloads(store, chunk_bytes=4, idle_secs=600, clock=clock)
    yield downloads
    downloads.close()


def put(store, data, version=1):
    draft = store.draft()
    draft.write(data)
    draft.finish()
    store.put("a", BlobRecord(version, *draft.content(), draft.crc32c, 1), draft)


def rest(downloads, session):
    chunks = []
    while chunk := downloads.chunk(session):
        chunks.append(chunk)
    return chunks


def test_a_blob_is_read_in_chunks_to_its_end(downloads):
    begun = downloads.begin("a")
    assert (begun.version, begun.size, begun.offset) == (0x280C069E, 10, 0)
    assert rest(downloads, begun.session) == [b"0123", b"4567", b"89"]
    with pytest.raises(TransferEndedError):
        downloads.chunk(begun.session)


@pytest.mark.parametrize(
    ("offset", "begun", "data"), [(3, 3, b"3456789"), (99, 10, b""), (-1, 0, b"0123456789")]
)
def test_a_blob_is_read_from_any_byte_on(downloads, offset, begun, data):
    download = downloads.begin("a", offset)
    assert download.offset == begun
    assert b"".join(rest(downloads, download.session)) == data


def test_a_download_goes_on_with_what_it_began_with(downloads, store):
    begun = downloads.begin("a")
    put(store, b"other", 2)
    store.delete("a")
    assert b"".join(rest(downloads, begun.session)) == b"0123456789"


def test_an_idle_download_ends(downloads, clock):
    begun = downloads.begin("a")
    clock.secs = 601
    assert downloads.expire() == 1
    with pytest.raises(TransferEndedError):
        downloads.chunk(begun.session)


def test_what_is_not_here_is_told(downloads):
    with pytest.raises(BlobNotFoundError):
        downloads.begin("b")
