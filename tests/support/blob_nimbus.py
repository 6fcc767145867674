"""A small Nimbus that keeps blobs, in memory and with as little thought as can be."""

from stormkeeper.thrift.nimbus import (
    BeginDownloadResult,
    KeyAlreadyExistsException,
    KeyNotFoundException,
    ListBlobsResult,
    ReadableBlobMeta,
)
from support.small_nimbus import SmallNimbus

#: Bytes and keys of an answer, so that there are several.
CHUNK = 1_000
PAGE = 2


class BlobNimbus(SmallNimbus):
    """`blobs` has the bytes by their keys, `metas` what was said of them."""

    def __init__(self):
        super().__init__()
        self.blobs, self.metas = {}, {}
        self.sessions = {}
        self.cancelled = []
        #: What a download is said to have more than it does.
        self.missing = 0

    def _check(self, key):
        if key not in self.blobs:
            raise KeyNotFoundException(key)

    def beginCreateBlob(self, key, meta):  # noqa: N802
        if key in self.blobs:
            raise KeyAlreadyExistsException(key)
        self.metas[key] = meta
        return self._begin(key)

    def beginUpdateBlob(self, key):  # noqa: N802
        self._check(key)
        return self._begin(key)

    def _begin(self, key):
        session = f"session-{len(self.sessions)}"
        self.sessions[session] = (key, [])
        return session

    def uploadBlobChunk(self, session, chunk):  # noqa: N802
        self.sessions[session][1].append(chunk)

    def finishBlobUpload(self, session):  # noqa: N802
        key, chunks = self.sessions.pop(session)
        self.blobs[key] = b"".join(chunks)

    def cancelBlobUpload(self, session):  # noqa: N802
        self.cancelled.append(session)

    def createStateInZookeeper(self, key):  # noqa: N802
        self.calls.append(("create state", key))

    def getBlobMeta(self, key):  # noqa: N802
        self._check(key)
        return ReadableBlobMeta(self.metas[key], len(self.blobs[key]))

    def beginBlobDownload(self, key, _offset):  # noqa: N802
        self._check(key)
        data = self.blobs[key]
        session = self._begin(key)
        pieces = [data[start : start + CHUNK] for start in range(0, len(data), CHUNK)]
        self.sessions[session] = (key, pieces)
        return BeginDownloadResult(1, session, len(data) + self.missing)

    def downloadBlobChunk(self, session):  # noqa: N802
        pieces = self.sessions[session][1]
        return pieces.pop(0) if pieces else b""

    def deleteBlob(self, key):  # noqa: N802
        self._check(key)
        del self.blobs[key]

    def listBlobs(self, session):  # noqa: N802
        after = session or ""
        page = [key for key in sorted(self.blobs) if key > after][:PAGE]
        return ListBlobsResult(page, page[-1] if page else after)

    def getBlobReplication(self, key):  # noqa: N802
        self._check(key)
        return self.metas[key].replication_factor or 1

    def updateBlobReplication(self, key, replication):  # noqa: N802
        self._check(key)
        self.metas[key].replication_factor = replication
        return replication
