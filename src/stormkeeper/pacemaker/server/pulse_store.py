"""The pulses of a Pacemaker, with all reads and writes.

Overwriting and reading a pulse cost the same whatever is stored; a listing costs the children, a
deletion the subtree, a page of changes the page. A page has about `PAGE_BYTES`, so that writers
never wait long; a larger pulse has its own page, or is left out if it exceeds a frame. Changes of a
subtree are searched in the subtree or among all changes, whichever is less work.
"""

from collections.abc import Callable, Iterator
from itertools import chain, islice
from operator import attrgetter
from typing import Final, NamedTuple

from stormkeeper.pacemaker.server.pulse_index import PulseEntry, PulseIndex, SortedPaths
from stormkeeper.pacemaker.server.store_limits import Expiry, LimitError, StoreLimits, shown
from stormkeeper.pacemaker.wire.encoder import (
    CHANGE_OVERHEAD,
    CHANGES_OVERHEAD,
    SIZE_OVERHEAD,
    SIZES_OVERHEAD,
)
from stormkeeper.pacemaker.wire.messages import DEFAULT_MAX_SIZE, TOMBSTONE, Changes, Columns

#: A millisecond's work, some 340 pulses of 3 KiB.
PAGE_BYTES: Final = 1_048_576
#: Per page: two milliseconds' work without values.
MAX_CHANGES: Final = 4_000
#: Entries checked per page: 5 ms.
MAX_LOOKED_AT: Final = 25_000
#: About as many as concurrent readers.
_ENDS: Final = 64
_BATCH: Final = 400
_REVISION: Final = attrgetter("revision")
_PATH: Final = attrgetter("path")

_PULSE_BYTES: Final = 288


class ChangesPage(NamedTuple):
    """Entries of an answer, with ages until `now`; the rest as in `Changes`."""

    entries: list[PulseEntry]
    revision: int
    now: float
    more: bool
    reset: bool
    next: int

    def to_wire(self, instance: str, *, values: bool) -> Changes[bytes]:
        entries, now = self.entries, self.now
        paths = [entry.path for entry in entries]
        revisions = [entry.revision for entry in entries]
        ages_ms = [int((now - entry.changed) * 1000) for entry in entries]
        details = [entry.details for entry in entries]
        sizes = [TOMBSTONE if value is None else len(value) for value in details]
        columns = Columns(paths, revisions, ages_ms, sizes, details if values else None)
        return Changes(instance, self.revision, columns, self.more, self.reset, self.next)


class PulseStore:
    """The newest pulse of every path, in memory; `instance` is new with every start."""

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
        self.limits = limits or StoreLimits()
        self._paths = SortedPaths()
        self.expiry = Expiry(index, self._paths, clock, self.limits)
        index.max_bytes = self.limits.store_bytes
        self._page_ends: dict[int, PulseEntry] = {}

    def set_limits(self, limits: StoreLimits) -> None:
        """Limit further pulses; pulses beyond a lowered limit stay."""
        self.limits = self.expiry.limits = limits
        self.index.max_bytes = limits.store_bytes

    def put(self, path: bytes, details: bytes) -> None:
        """Store a pulse; raise `LimitError` for a bad path or a full store."""
        index, now = self.index, self.clock()
        if index.replace(path, details, now):
            return
        entry = index.entry(path)
        is_pulse = entry is not None and entry.details is not None
        if not is_pulse:
            self.limits.check_size(path)
            self.limits.check_text(path)
        # `replace` refuses an existing pulse only for growing beyond the limit. Any other reason
        # there would be reported as "store-full" here.
        if is_pulse or 0 < index.max_bytes < index.bytes_held + len(path) + len(details):
            raise LimitError(
                "store-full",
                f"{index.bytes_held} bytes of pulses are held, and {len(details)} more for"
                f" {shown(path)} would exceed the {index.max_bytes} of pacemaker.store.max.bytes",
            )
        needed = _PULSE_BYTES * (index.keys + 1)
        if 0 < self.limits.index_bytes < needed:
            raise LimitError(
                "store-full",
                f"the index needs {needed} bytes with a pulse for {shown(path)}, more than"
                f" {self.limits.index_bytes}, a quarter of the memory of this process",
            )
        if entry is not None:
            self.expiry.revive(entry)
        index.add(path, details, now)
        self._paths.add(path)

    def get(self, path: bytes) -> bytes | None:
        return self.index.get(path)

    def children(self, path: bytes) -> list[bytes]:
        """Return the nonempty names directly below `path`, ignoring trailing slashes."""
        return self._paths.names_below(path.rstrip(b"/"))

    def deleted(self, path: bytes) -> list[bytes]:
        """Return the names directly below `path` that have tombstones."""
        return self.expiry.buried.names_below(path.rstrip(b"/"))

    def pulses(self, path: bytes) -> Iterator[PulseEntry]:
        """Yield the pulses at and below `path`; the store must not change meanwhile."""
        top = path.rstrip(b"/")
        if top:
            entry = self.index.entry(top)
            if entry is not None and entry.details is not None:
                yield entry
        yield from self._pulses_below(top)

    def delete(self, path: bytes) -> bool:
        """Delete the pulse of exactly `path`; return whether a pulse was there."""
        entry = self.index.entry(path)
        if entry is None or entry.details is None:
            return False
        self.expiry.bury(entry)
        return True

    def delete_path(self, path: bytes, limit: int = 0) -> int:
        """Delete at most `limit` (0: all) pulses at and below `path`; return the number.

        If the result is `limit`, more may be left. ``/`` is everything.
        """
        top = path.rstrip(b"/")
        deleted = 1 if top and self.delete(top) else 0
        if deleted == limit > 0:
            return deleted
        paths = self._paths.take_below(top, limit - deleted if limit else 0)
        self.expiry.bury_detached([self._held_entry(path) for path in paths])
        return deleted + len(paths)

    def held(self, path: bytes) -> ChangesPage:
        """Return the pulse or tombstone of exactly `path`."""
        entry = self.index.entry(path)
        found = [] if entry is None else [entry]
        revision = self.index.revision
        return ChangesPage(found, revision, self.clock(), more=False, reset=False, next=revision)

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
        """Return changes at and below `path` since revision `after`, oldest first.

        `after` is 0 or `ChangesPage.next` of the last page, which `instance` sent. The page begins
        at the start, with `reset`, for another instance, or an `after` in the future or before the
        floor of the tombstones.
        """
        index = self.index
        reset = instance not in (None, self.instance) or (
            after > 0 and not self.expiry.floor <= after <= index.revision
        )
        after = 0 if reset else max(after, 0)
        if not 0 < limit <= MAX_CHANGES:
            limit = MAX_CHANGES
        each = CHANGE_OVERHEAD if values else SIZE_OVERHEAD
        overhead = CHANGES_OVERHEAD if values else SIZES_OVERHEAD
        largest = max_bytes - overhead - len(self.instance.encode())
        room = min(largest, PAGE_BYTES)
        top = path.rstrip(b"/")
        if self._is_everything(top):
            top = b""
        part = self._part(top, after, self._to_fill(limit, room, each, values)) if top else None
        # All entries must be filtered; a part is below `top` already.
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
            self.clock(),
            more=more_after is not None,
            reset=reset,
            next=index.revision if more_after is None else more_after,
        )

    def _newer(self, after: int, part: list[PulseEntry] | None) -> Iterator[PulseEntry]:
        return chain.from_iterable(self._batches(after)) if part is None else iter(part)

    def _batches(self, after: int) -> Iterator[list[PulseEntry]]:
        index = self.index
        end = self._page_ends.get(after)
        if end is not None and end.revision == after:
            batch = index.newer(end, _BATCH)
        else:
            batch = index.since(after, _BATCH)
        while batch:
            yield batch
            batch = index.newer(batch[-1], _BATCH)

    def _is_everything(self, top: bytes) -> bool:
        return self._count_below(top) == self.index.keys + self.index.tombstones

    def _count_below(self, top: bytes) -> int:
        return self._paths.count_below(top) + self.expiry.buried.count_below(top)

    def _to_fill(self, limit: int, room: int, each: int, values: bool) -> int:
        index = self.index
        usual = index.bytes_held // index.keys if values and index.keys else 0
        return min(limit, 1 + room // (each + usual))

    def _part(self, top: bytes, after: int, to_fill: int) -> list[PulseEntry] | None:
        """Return the entries of `top` newer than `after`; None if all changes are cheaper."""
        index = self.index
        size = 1 + self._count_below(top)
        newer = min(index.revision - after, index.keys + index.tombstones)
        if index.keys:
            newer = min(newer, to_fill * (index.keys // size + 1))
        if size >= newer:
            return None
        paths = [top, *self._paths.below(top), *self.expiry.buried.below(top)]
        entries = [
            entry
            for entry in map(index.entry, paths)
            if entry is not None and entry.revision > after
        ]
        entries.sort(key=_REVISION)
        return entries

    def _pulses_below(self, top: bytes) -> Iterator[PulseEntry]:
        return map(self._held_entry, self._paths.below(top))

    def _held_entry(self, path: bytes) -> PulseEntry:
        entry = self.index.entry(path)
        assert entry is not None
        return entry

    def _remember(self, end: PulseEntry) -> None:
        if len(self._page_ends) >= _ENDS:
            del self._page_ends[next(iter(self._page_ends))]
        self._page_ends[end.revision] = end


def _cut_by_number(
    newer: Iterator[PulseEntry], within: bytes, limit: int, room: int
) -> tuple[list[PulseEntry], int | None] | None:
    """Return a page without values, and the revision to continue after, if any.

    None if long paths exceed `room`: then the page must be cut by size.
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
    """Return entries of `room` bytes, and the revision to continue after."""
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
