"""Files that Storm's clients upload before they submit a topology, by where they will be.

``beginFileUpload`` answers with a location, and the submission names it. An upload that is left
idle (``nimbus.file.copy.expiration.secs``) ends and is removed; a file that nobody has submitted is
removed later (``nimbus.inbox.jar.expiration.secs``).
"""

from __future__ import annotations

import re
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Final

from stormkeeper.blobs.drafts import MOST_BYTES, Draft, storing, write_upload
from stormkeeper.blobs.sessions import Sessions
from stormkeeper.errors import TransferEndedError

#: Storm's name for such a file.
_NAME: Final = re.compile(r"stormjar-[0-9a-f-]{36}\.jar")


class Inbox:
    """The files in a folder, and those that are on their way. Safe for many threads.

    Parameters
    ----------
    folder
        Where; made if absent. What an earlier process had not finished there is removed.
    idle_secs
        After how long without a chunk an upload ends.
    kept_secs
        How long a file is kept that nobody takes.
    most_bytes
        Of a file; None: any number.
    clock, now
        Seconds of a monotonic clock, and since 1970.

    Raises
    ------
    BlobStorageError
        The folder cannot be used.
    """

    def __init__(
        self,
        folder: Path,
        *,
        idle_secs: float,
        kept_secs: float,
        most_bytes: int | None = MOST_BYTES,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], float] = time.time,
    ) -> None:
        #: Where they are.
        self.folder = folder
        self._kept_secs = kept_secs
        self._most_bytes = most_bytes
        self._now = now
        self._sessions: Sessions[Draft] = Sessions("upload", idle_secs, Draft.discard, clock=clock)
        self.restore()
        with storing(folder, "keep uploaded files"):
            for path in folder.glob("*.new"):
                path.unlink(missing_ok=True)

    def restore(self) -> None:
        """Make the folder where it is missing."""
        with storing(self.folder, "keep uploaded files"):
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    def begin(self) -> str:
        """Begin a file, and return where it will be."""
        self.restore()
        path = self.folder / f"{uuid.uuid4()}.new"
        session = self._sessions.begin(lambda: Draft(path))
        return str(self.folder / f"stormjar-{session}.jar")

    def chunk(self, location: str, data: bytes) -> None:
        """Take the next bytes.

        Raises
        ------
        TransferEndedError
            No such upload is under way.
        BlobStorageError
            The disk did not take them, or the file is too large; the upload has ended, and left
            nothing.
        """
        with self._sessions.using(_session(location)) as draft:
            write_upload(draft, data, self._most_bytes)

    def finish(self, location: str) -> None:
        """Have the file be there; for errors see `chunk`."""
        with self._sessions.using(_session(location), last=True) as draft:
            draft.finish()
            with storing(self.folder, "keep an uploaded file"):
                draft.path.replace(self._path(location))

    def take(self, location: str) -> Path:
        """Return the file that was uploaded there; it is the caller's to remove.

        Raises
        ------
        TransferEndedError
            There is no such file in this folder, whatever there is elsewhere.
        """
        path = self._path(location)
        if str(path) != location or not path.is_file():
            raise TransferEndedError(
                f"no file was uploaded as {location!r}: it was never finished, or was taken, or"
                " was kept for too long; upload it again"
            )
        return path

    def expire(self) -> None:
        """End uploads that are idle, and remove files that nobody has taken."""
        self._sessions.expire()
        with storing(self.folder, "remove uploaded files"):
            for path in self.folder.glob("stormjar-*.jar"):
                try:
                    written = path.stat().st_mtime
                except FileNotFoundError:
                    continue
                if self._now() - written > self._kept_secs:
                    path.unlink(missing_ok=True)

    def close(self) -> None:
        """End all uploads."""
        self._sessions.close()

    def _path(self, location: str) -> Path:
        name = Path(location).name
        return self.folder / (name if _NAME.fullmatch(name) else "none")


def _session(location: str) -> str:
    name = Path(location).name
    return name.removeprefix("stormjar-").removesuffix(".jar") if _NAME.fullmatch(name) else ""
