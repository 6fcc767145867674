"""The pulses that a Pacemaker holds, and everything that readers and writers may ask for.

The rules that hold here:

- A path is its segments, split at every ``/`` and nothing else: ``/a//b`` and ``/a/b`` are two
  paths, and so are ``/a`` and ``a``. Paths are the bytes of the wire.
- Overwriting a pulse and reading one cost the same whatever is stored; listing children costs the
  children, deleting a subtree costs the subtree, a page costs the page.
- A path is checked when its first pulse comes, and not again while it holds one.

The parts: `PulseIndex` finds a path and keeps the order of changes; `Directory` knows what is below
a path; `Expiry` drops what is old; `Pager` reads many pulses at a time.
"""

from collections.abc import Callable, Iterator
from typing import Final

from stormkeeper.pacemaker.server.store.directory import Directory
from stormkeeper.pacemaker.server.store.expiry import Expiry
from stormkeeper.pacemaker.server.store.limits import LimitError, StoreLimits, shown
from stormkeeper.pacemaker.server.store.paging import ChangesPage, Pager
from stormkeeper.pacemaker.server.store.pulse_index import Entry, PulseIndex
from stormkeeper.pacemaker.wire import DEFAULT_MAX_SIZE

#: Bytes that a pulse takes beside its path and its value: entry, objects, its place in the index.
_PULSE_BYTES: Final = 288
#: Seconds that expiry may take at a time, so that no beat waits for it.
EXPIRY_BUDGET: Final = 0.002


class PulseStore:
    """Holds the newest pulse of every path, in memory.

    Parameters
    ----------
    index
        An empty index.
    instance
        Identifies this store and its revisions; another one after every start.
    clock
        Returns seconds; monotonic.
    limits
        What is held at most.
    """

    def __init__(
        self,
        index: PulseIndex,
        instance: str,
        clock: Callable[[], float],
        limits: StoreLimits | None = None,
    ) -> None:
        self.index = index
        self.instance = instance
        self.clock = clock
        self._limits = limits or StoreLimits()
        index.max_bytes = self._limits.store_bytes
        self._root = Directory()
        self._expiry = Expiry(index, clock, self._limits)
        self._pager = Pager(index, self._root, self._expiry, clock, len(instance.encode()))

    @property
    def limits(self) -> StoreLimits:
        """What is held at most; may be set. What exceeds a lowered limit stays."""
        return self._limits

    @limits.setter
    def limits(self, limits: StoreLimits) -> None:
        self._limits = self._expiry.limits = limits
        self.index.max_bytes = limits.store_bytes

    @property
    def revision(self) -> int:
        """The revision of the newest change; 0 while there was none."""
        return self.index.revision

    @property
    def keys(self) -> int:
        """Paths that hold a pulse."""
        return self.index.keys

    @property
    def pulses_received(self) -> int:
        """Pulses stored since the start."""
        return self.index.pulses_received

    @property
    def expired(self) -> int:
        """Pulses deleted because of their age since the start."""
        return self._expiry.expired

    def put(self, path: bytes, details: bytes) -> None:
        """Store the pulse of `path` in place of any earlier one.

        Raises
        ------
        LimitError
            If the path is not one that a pulse may have, or the store would hold too much. An
            overwrite that needs no more than what it replaces is always taken.
        """
        index, now = self.index, self.clock()
        if index.replace(path, details, now):
            return
        entry = index.entry(path)
        is_pulse = entry is not None and entry.details is not None
        if not is_pulse:
            self._limits.check_size(path)
            self._limits.check_text(path)
        if is_pulse or 0 < index.max_bytes < index.bytes_held + len(path) + len(details):
            raise LimitError(
                "store-full",
                f"{index.bytes_held} bytes of pulses are held, and {len(details)} more for"
                f" {shown(path)} would exceed the {index.max_bytes} of pacemaker.store.max.bytes",
            )
        needed = _PULSE_BYTES * (index.keys + 1) + self._root.census.bytes
        if 0 < self._limits.index_bytes < needed:
            raise LimitError(
                "store-full",
                f"to find {index.keys} pulses takes {needed} bytes of memory, and one more for"
                f" {shown(path)} would exceed the {self._limits.index_bytes} that are a quarter of"
                " what this process may have",
            )
        if entry is not None:
            self._expiry.revive(entry)
        home = self._root.make(path.split(b"/")[:-1])
        home.add(index.add(path, details, now, home))

    def get(self, path: bytes) -> bytes | None:
        """Return the value stored for exactly `path`; None if there is none."""
        return self.index.get(path)

    def children(self, path: bytes) -> list[bytes]:
        """Return the names of the direct children of `path`, whose trailing slashes do not count.

        A child with an empty name (``/a//b`` makes one of ``/a``) is not listed: there is no path
        by which its own children could be asked for.
        """
        directory = self._root.find(path.rstrip(b"/").split(b"/"))
        return [] if directory is None else directory.names()

    def deleted(self, path: bytes) -> list[bytes]:
        """Return the names directly below `path` at or below which there are tombstones.

        Otherwise as `children`; a name may be in both.
        """
        return self._expiry.names_below(path.rstrip(b"/"))

    def pulses(self, path: bytes) -> Iterator[Entry]:
        """Iterate over the pulses at and below `path`, whose trailing slashes do not count.

        In the order of their paths, segment by segment; the store must not change meanwhile.
        """
        return self._pager.pulses(path)

    def delete(self, path: bytes) -> bool:
        """Delete the pulse of exactly `path`; return whether there was one."""
        entry = self.index.entry(path)
        if entry is None or entry.details is None:
            return False
        self._expiry.bury(entry)
        return True

    def delete_path(self, path: bytes, limit: int = 0) -> int:
        """Delete all pulses at and below `path`; return their number.

        Trailing slashes do not count, so ``/`` is everything. A pulse that is too old may make room
        for the tombstone of another; it counts as expired then, and not as deleted.

        Parameters
        ----------
        path
            What to delete.
        limit
            How many pulses at most, so that nobody waits; 0: all. If so many are deleted, there
            may be more.
        """
        top = path.rstrip(b"/")
        directory = self._root.find(top.split(b"/")) if top else self._root
        deleted = 1 if top and self.delete(top) else 0
        if directory is not None and (limit == 0 or deleted < limit):
            entries = directory.detach(limit - deleted if limit else directory.pulses)
            self._expiry.bury_detached(entries)
            deleted += len(entries)
        return deleted

    def expire(self, max_age: float, budget: float = EXPIRY_BUDGET) -> int:
        """Delete pulses received more than `max_age` seconds ago, and forget old tombstones.

        It stops after `budget` seconds of work. A pulse that was moved among the newest changes
        (see `Expiry`) is found when what was changed before it is gone or has changed again:
        within another `max_age`.

        Parameters
        ----------
        max_age
            In seconds; 0: no pulse is too old.
        budget
            In seconds.

        Returns
        -------
        int
            How many pulses were deleted. After 0 nothing more is due, or all the time went into
            passing tombstones by, once: in either case it is time enough to ask in a second.
        """
        return self._expiry.expire(max_age, budget)

    def held(self, path: bytes) -> ChangesPage:
        """Return the pulse of exactly `path`, or its tombstone, as a page of one or none."""
        entry = self.index.entry(path)
        found = [] if entry is None else [entry]
        return ChangesPage(
            found, self.revision, self.clock(), more=False, reset=False, next=self.revision
        )

    def changes(
        self,
        path: bytes,
        after: int = 0,
        limit: int = 0,
        *,
        max_bytes: int = DEFAULT_MAX_SIZE,
        instance: str | None = None,
        values: bool = True,
    ) -> ChangesPage:
        """Return what changed at and below `path` since revision `after`, the oldest first.

        Parameters
        ----------
        path
            Trailing slashes do not count; ``/`` is everything.
        after
            `ChangesPage.next` of the answer before, or 0.
        limit
            How many changes at most; 0 or less leaves it to the store.
        max_bytes
            The largest payload that the answer may make. A single pulse that could never fit is
            left out.
        instance
            The instance that gave `after`. Another than this one's, an `after` that is from the
            future, or from before deletions that are forgotten, is answered from the beginning,
            with `ChangesPage.reset`.
        values
            Whether the answer is to have them; without, a page has many more changes.
        """
        reset = instance not in (None, self.instance)
        return self._pager.changes(path, after, limit, max_bytes, reset=reset, values=values)
