"""What is configured of the distribution of code."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from stormkeeper.blobs.drafts import MOST_BYTES
from stormkeeper.conf import Conf
from stormkeeper.conf.folders import folder


@dataclass(frozen=True)
class Settings:
    """How a Nimbus keeps and copies blobs; times are in seconds."""

    #: Where blobs are, and where files are that are to be submitted.
    folder: Path
    inbox: Path
    #: What one call of a download returns at most, in bytes.
    chunk_bytes: int = 65536
    #: After how long without a call an upload or a download ends.
    idle_secs: float = 600.0
    #: The same of the upload of such a file, and how long one is kept that nobody submits.
    inbox_idle_secs: float = 600.0
    inbox_kept_secs: float = 3600.0
    #: What a client may upload at once, in bytes; None: anything.
    most_bytes: int | None = MOST_BYTES
    #: How often is looked for what no watch has told.
    period_secs: float = 120.0
    #: How long a blob is kept that is not needed.
    delay_secs: float = 300.0
    #: Time between the end of one check of all checksums and the beginning of the next.
    scrub_secs: float = 3600.0

    @classmethod
    def from_conf(cls, conf: Conf) -> Settings:
        """Read them.

        Raises
        ------
        ConfigError
            The folder is in the home of a user who has none.
        """
        local = folder("storm.local.dir", conf["storm.local.dir"])
        own = conf["blobstore.dir"]
        return cls(
            folder=local / "blobs" if own is None else folder("blobstore.dir", own),
            inbox=local / "nimbus" / "inbox",
            chunk_bytes=conf["storm.blobstore.inputstream.buffer.size.bytes"],
            idle_secs=conf["nimbus.blobstore.expiration.secs"],
            inbox_idle_secs=conf["nimbus.file.copy.expiration.secs"],
            inbox_kept_secs=conf["nimbus.inbox.jar.expiration.secs"],
            most_bytes=conf["nimbus.upload.max.bytes"],
            period_secs=conf["nimbus.code.sync.freq.secs"],
            delay_secs=conf["nimbus.topology.blobstore.deletion.delay.ms"] / 1000,
        )
