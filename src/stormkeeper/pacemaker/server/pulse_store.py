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
from itertools import chain, islice
from operator import attrgetter
from typing import Final, NamedTuple

from stormkeeper.pacemaker.server.directory import Directory
from stormkeeper.pacemaker.server.expiry import Expiry
from stormkeeper.pacemaker.server.pulse_index import PulseEntry, PulseIndex
from stormkeeper.pacemaker.server.store_limits import LimitError, StoreLimits, shown
from stormkeeper.pacemaker.wire import (
    CHANGE_OVERHEAD,
    CHANGES_OVERHEAD,
    DEFAULT_MAX_SIZE,
    SIZE_OVERHEAD,
    SIZES_OVERHEAD,
    TOMBSTONE,
    Columns,
)

#: Bytes of one page: a millisecond's work, some 340 pulses of 3 KiB.
PAGE_BYTES: Final = 1_048_576


#: Changes in one page, at most: without their values, two milliseconds' work.
MAX_CHANGES: Final = 4_000


#: Entries that one page may look at: 5 ms.
MAX_LOOKED_AT: Final = 25_000


#: Ends of pages that are remembered, so that the next page need not look for its beginning: as
#: many as readers who are likely to read pages at one time.
_ENDS: Final = 64


#: Entries that are taken from the index at once: as many as a page with values has.
_BATCH: Final = 400


_REVISION: Final = attrgetter("revision")


_PATH: Final = attrgetter("path")


class ChangesPage(NamedTuple):
    """The entries of one answer; their ages count back from `now` (s).

    `revision`, `more`, `reset` and `next` are those of `stormkeeper.pacemaker.wire.Changes`.
    """

    entries: list[PulseEntry]
    revision: int
    now: float
    more: bool
    reset: bool
    next: int

    def columns(self, *, values: bool) -> Columns[bytes]:
        """Return what is to be written of the entries, with their values or with their sizes."""
        entries, now = self.entries, self.now
        paths = [entry.path for entry in entries]
        revisions = [entry.revision for entry in entries]
        ages_ms = [int((now - entry.changed) * 1000) for entry in entries]
        details = [entry.details for entry in entries]
        sizes = [TOMBSTONE if value is None else len(value) for value in details]
        return Columns(paths, revisions, ages_ms, sizes, details if values else None)


class Pager:
    """Reads pages.

    Parameters
    ----------
    index, root, expiry
        The store's.
    clock
        Returns seconds; monotonic.
    overhead
        Bytes of the instance id, which is in every page.
    """

    __slots__ = ("_clock", "_ends", "_expiry", "_index", "_overhead", "_root")

    def __init__(
        self,
        index: PulseIndex,
        root: Directory,
        expiry: Expiry,
        clock: Callable[[], float],
        overhead: int,
    ) -> None:
        self._index = index
        self._root = root
        self._expiry = expiry
        self._clock = clock
        self._overhead = overhead
        #: The last entry of a page, by its revision.
        self._ends: dict[int, PulseEntry] = {}

    def changes(
        self, path: bytes, after: int, limit: int, max_bytes: int, *, reset: bool, values: bool
    ) -> ChangesPage:
        """Read what changed at and below `path` since revision `after`; see `PulseStore`."""
        index = self._index
        reset = reset or (after > 0 and not self._expiry.floor <= after <= index.revision)
        after = 0 if reset else max(after, 0)
        if not 0 < limit <= MAX_CHANGES:
            limit = MAX_CHANGES
        each = CHANGE_OVERHEAD if values else SIZE_OVERHEAD
        largest = max_bytes - (CHANGES_OVERHEAD if values else SIZES_OVERHEAD) - self._overhead
        room = min(largest, PAGE_BYTES)
        top = path.rstrip(b"/")
        if self._is_everything(top):
            top = b""
        part = self._part(top, after, self._to_fill(limit, room, each, values)) if top else None
        # What of the newer entries is not asked for has to be left out.
        within = top if part is None else b""
        cut = None if values else _cut_by_number(self._newer(after, part), within, limit, room)
        if cut is None:
            cut = _cut_by_size(
                self._newer(after, part), within, limit, room, largest, values=values
            )
        entries, more_after = cut
        if more_after is not None and entries and entries[-1].revision == more_after:
            self._remember(entries[-1])
        return ChangesPage(
            entries,
            index.revision,
            self._clock(),
            more=more_after is not None,
            reset=reset,
            next=index.revision if more_after is None else more_after,
        )

    def pulses(self, path: bytes) -> Iterator[PulseEntry]:
        """Iterate over the pulses at and below `path`, in order."""
        top = path.rstrip(b"/")
        if top:
            entry = self._index.entry(top)
            if entry is not None and entry.details is not None:
                yield entry
        directory = self._root.find(top.split(b"/") if top else [])
        if directory is not None:
            yield from directory.walk()

    def _newer(self, after: int, part: list[PulseEntry] | None) -> Iterator[PulseEntry]:
        return self._in_order(after) if part is None else iter(part)

    def _in_order(self, after: int) -> Iterator[PulseEntry]:
        """Iterate over all entries newer than revision `after`."""
        return chain.from_iterable(self._batches(after))

    def _batches(self, after: int) -> Iterator[list[PulseEntry]]:
        index = self._index
        end = self._ends.get(after)
        if end is not None and end.revision == after:
            batch = index.newer(end, _BATCH)
        else:
            batch = index.since(after, _BATCH)
        while batch:
            yield batch
            batch = index.newer(batch[-1], _BATCH)

    def _is_everything(self, top: bytes) -> bool:
        """Whether all entries are below `top`, as heartbeats are below one path."""
        directory = self._root.find(top.split(b"/"))
        keys = 0 if directory is None else directory.pulses
        return keys == self._index.keys and not self._index.tombstones

    def _to_fill(self, limit: int, room: int, each: int, values: bool) -> int:
        """Return how many changes of a usual size fill a page."""
        index = self._index
        usual = index.bytes_held // index.keys if values and index.keys else 0
        return min(limit, 1 + room // (each + usual))

    def _part(self, top: bytes, after: int, to_fill: int) -> list[PulseEntry] | None:
        """Return the entries at and below `top` newer than revision `after`, in their order.

        None if it is less work to look for them among all: there one entry after another is
        looked at until a page is full, here all below `top` and all newer tombstones.
        """
        index = self._index
        directory = self._root.find(top.split(b"/"))
        size = 1 + (0 if directory is None else directory.pulses)
        newer = min(index.revision - after, index.keys + index.tombstones)
        if index.keys:
            newer = min(newer, to_fill * (index.keys // size + 1))
        if size + min(index.tombstones, index.revision - after) >= newer:
            return None
        below = top + b"/"
        entries = [
            tombstone
            for tombstone in self._expiry.newer_tombstones(after)
            if tombstone.path.startswith(below) or tombstone.path == top
        ]
        pulse = index.entry(top)
        if pulse is not None and pulse.details is not None and pulse.revision > after:
            entries.append(pulse)
        if directory is not None:
            entries += [entry for entry in directory.walk() if entry.revision > after]
        entries.sort(key=_REVISION)
        return entries

    def _remember(self, end: PulseEntry) -> None:
        if len(self._ends) >= _ENDS:
            del self._ends[next(iter(self._ends))]
        self._ends[end.revision] = end


def _cut_by_number(
    newer: Iterator[PulseEntry], within: bytes, limit: int, room: int
) -> tuple[list[PulseEntry], int | None] | None:
    """Take the entries of a page without values, which is small unless its paths are long.

    They are taken many at a time: a page has thousands of them.

    Returns
    -------
    tuple of (entries, revision), or None
        With the revision after which to go on, if there may be more. None if they need more than
        `room` bytes, and the page has to be cut by its size.
    """
    below = within + b"/"
    entries: list[PulseEntry] = []
    looked_at = 0
    while len(entries) < limit:
        wanted = limit - len(entries)
        batch = list(islice(newer, wanted))
        found = batch
        if within:
            found = [e for e in batch if e.path.startswith(below) or e.path == within]
        room -= SIZE_OVERHEAD * len(found) + sum(map(len, map(_PATH, found)))
        if room < 0:
            return None
        entries += found
        if len(batch) < wanted:
            return entries, None
        looked_at += len(batch)
        if looked_at > MAX_LOOKED_AT:
            return entries, batch[-1].revision
    return entries, None if next(newer, None) is None else entries[-1].revision


def _cut_by_size(
    newer: Iterator[PulseEntry], within: bytes, limit: int, room: int, largest: int, *, values: bool
) -> tuple[list[PulseEntry], int | None]:
    """Take entries until a page of `room` bytes is full; one larger than `largest` is left out.

    Returns
    -------
    tuple of (entries, revision)
        With the revision after which to go on, if there is more.
    """
    each = CHANGE_OVERHEAD if values else SIZE_OVERHEAD
    below = within + b"/"
    entries: list[PulseEntry] = []
    for looked_at, entry in enumerate(newer, 1):
        path, details = entry.path, entry.details
        if not within or path.startswith(below) or path == within:
            size = each + len(path)
            if values and details is not None:
                size += len(details)
            if size > room:
                if entries:
                    return entries, entries[-1].revision
                if size > largest:
                    continue
            elif len(entries) == limit:
                return entries, entries[-1].revision
            room -= size
            entries.append(entry)
        if looked_at > MAX_LOOKED_AT:
            return entries, entry.revision
    return entries, None


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

    def pulses(self, path: bytes) -> Iterator[PulseEntry]:
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
