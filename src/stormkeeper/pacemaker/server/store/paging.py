"""Cuts the changes that readers ask for into pages, in the order of their revisions.

The rules that hold here:

- A page has about `PAGE_BYTES`, so that no writer waits long for it. A single larger pulse is a
  page of its own if a frame can hold it, and is left out if not.
- The changes of a small part of a large store are looked for in that part, or among all changes:
  whichever is less work.
- A page may end before it is full, when many entries were looked at and few were asked for.
"""

from collections.abc import Callable, Iterator
from itertools import chain, islice
from operator import attrgetter
from typing import Final, NamedTuple

from stormkeeper.pacemaker.server.store.directory import Directory
from stormkeeper.pacemaker.server.store.expiry import Expiry
from stormkeeper.pacemaker.server.store.pulse_index import Entry, PulseIndex
from stormkeeper.pacemaker.wire import (
    CHANGE_OVERHEAD,
    CHANGES_OVERHEAD,
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

    entries: list[Entry]
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
        self._ends: dict[int, Entry] = {}

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

    def pulses(self, path: bytes) -> Iterator[Entry]:
        """Iterate over the pulses at and below `path`, in order."""
        top = path.rstrip(b"/")
        if top:
            entry = self._index.entry(top)
            if entry is not None and entry.details is not None:
                yield entry
        directory = self._root.find(top.split(b"/") if top else [])
        if directory is not None:
            yield from directory.walk()

    def _newer(self, after: int, part: list[Entry] | None) -> Iterator[Entry]:
        return self._in_order(after) if part is None else iter(part)

    def _in_order(self, after: int) -> Iterator[Entry]:
        """Iterate over all entries newer than revision `after`."""
        return chain.from_iterable(self._batches(after))

    def _batches(self, after: int) -> Iterator[list[Entry]]:
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

    def _part(self, top: bytes, after: int, to_fill: int) -> list[Entry] | None:
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

    def _remember(self, end: Entry) -> None:
        if len(self._ends) >= _ENDS:
            del self._ends[next(iter(self._ends))]
        self._ends[end.revision] = end


def _cut_by_number(
    newer: Iterator[Entry], within: bytes, limit: int, room: int
) -> tuple[list[Entry], int | None] | None:
    """Take the entries of a page without values, which is small unless its paths are long.

    They are taken many at a time: a page has thousands of them.

    Returns
    -------
    tuple of (entries, revision), or None
        With the revision after which to go on, if there may be more. None if they need more than
        `room` bytes, and the page has to be cut by its size.
    """
    below = within + b"/"
    entries: list[Entry] = []
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
    newer: Iterator[Entry], within: bytes, limit: int, room: int, largest: int, *, values: bool
) -> tuple[list[Entry], int | None]:
    """Take entries until a page of `room` bytes is full; one larger than `largest` is left out.

    Returns
    -------
    tuple of (entries, revision)
        With the revision after which to go on, if there is more.
    """
    each = CHANGE_OVERHEAD if values else SIZE_OVERHEAD
    below = within + b"/"
    entries: list[Entry] = []
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
