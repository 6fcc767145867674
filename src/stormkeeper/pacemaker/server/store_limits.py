"""Limits of the pulse store: refused requests, and pulses dropped by age and number.

A request beyond a limit raises `LimitError`: the client gets NOT_AUTHORIZED and the store stays
unchanged. Both engines overwrite a pulse by `PulseIndex.replace` alone, so a limit on the size of a
pulse must hold there too.
"""

import os
import re
import resource
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

from stormkeeper.errors import NotAuthorizedError
from stormkeeper.pacemaker.server.pulse_index import PulseEntry, PulseIndex, SortedPaths

#: Twice the workers of the largest known clusters.
MAX_TOMBSTONES: Final = 16_384
MAX_TOMBSTONE_BYTES: Final = 4_194_304
#: A reader that was away longer reads anew.
TOMBSTONE_SECONDS: Final = 3_600.0

#: C0, DEL, and C1 as UTF-8, on which a terminal would act.
_CONTROL: Final = re.compile(rb"[\x00-\x1f\x7f]|\xc2[\x80-\x9f]")
_SHOWN: Final = 200

#: Seconds at a time, so that no pulse waits long.
_BUDGET: Final = 0.002
#: Entries per reading of the clock: some 20 microseconds.
_STRIDE: Final = 16


class LimitError(NotAuthorizedError):
    """A request exceeds a limit.

    `cause` and `wanted`, the needed permission, are a pair of `server_status.REFUSED`. `answer` is
    the frame for the client. The request handler adds `wanted` and `answer`.
    """

    def __init__(self, cause: str, reason: str, wanted: str = "", answer: bytes = b"") -> None:
        super().__init__(reason)
        self.cause = cause
        self.wanted = wanted
        self.answer = answer


@dataclass(frozen=True, slots=True)
class StoreLimits:
    """Limits of a store, in bytes unless the name says otherwise; 0 means no limit.

    `store_bytes` bounds pulses with their paths, `index_bytes` the index.
    """

    store_bytes: int = 0
    index_bytes: int = 0
    path_bytes: int = 1_024
    path_segments: int = 16
    tombstones: int = MAX_TOMBSTONES
    tombstone_bytes: int = MAX_TOMBSTONE_BYTES
    tombstone_seconds: float = TOMBSTONE_SECONDS

    @classmethod
    def of(cls, conf: Mapping[str, Any]) -> Self:
        """Read ``pacemaker.store.max.bytes`` and ``pacemaker.path.max.*``.

        By default a store takes half of the allowed memory, and the index a quarter: many tiny
        pulses would take many times their own size.
        """
        store_bytes, memory = conf["pacemaker.store.max.bytes"], memory_allowed()
        return cls(
            store_bytes=memory // 2 if store_bytes is None else store_bytes,
            index_bytes=0 if store_bytes == 0 else memory // 4,
            path_bytes=conf["pacemaker.path.max.bytes"],
            path_segments=conf["pacemaker.path.max.segments"],
        )

    def check_size(self, path: bytes) -> None:
        """Raise `LimitError` for too many bytes or segments."""
        if len(path) > self.path_bytes:
            raise LimitError(
                "path",
                f"a path of {len(path)} bytes, more than the {self.path_bytes} of"
                f" pacemaker.path.max.bytes: {shown(path)}",
            )
        segments = path.count(b"/") + (not path.startswith(b"/"))
        if segments > self.path_segments:
            raise LimitError(
                "path",
                f"a path of {segments} segments, more than the {self.path_segments} of"
                f" pacemaker.path.max.segments: {shown(path)}",
            )

    def check_text(self, path: bytes) -> None:
        """Raise `LimitError` if `path` is not UTF-8 or has control characters."""
        try:
            path.decode()
        except UnicodeDecodeError as error:
            raise LimitError(
                "path", f"a path that is not UTF-8: {shown(path)}: {error.reason}"
            ) from error
        control = _CONTROL.search(path)
        if control is not None:
            raise LimitError(
                "path",
                f"a path with the control character {control.group().decode()!r}: {shown(path)}",
            )


def memory_allowed(proc: Path = Path("/proc"), cgroups: Path = Path("/sys/fs/cgroup")) -> int:
    """Return the bytes that machine, control groups and address space allow."""
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    address_space = resource.getrlimit(resource.RLIMIT_AS)[0]
    limits = [machine, *_group_limits(proc, cgroups)]
    if address_space != resource.RLIM_INFINITY:
        limits.append(address_space)
    return min(limits)


def _group_limits(proc: Path, cgroups: Path) -> Iterator[int]:
    try:
        lines = (proc / "self" / "cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, group = line.split(":", 2)
        if not controllers:
            root, name = cgroups, "memory.max"
        elif "memory" in controllers.split(","):
            root, name = cgroups / "memory", "memory.limit_in_bytes"
        else:
            continue
        place = root / group.strip("/")
        for folder in (place, *place.parents):
            try:
                text = (folder / name).read_text().strip()
            except OSError:
                text = ""
            if text.isdecimal():
                yield int(text)
            if folder == root:
                break


def shown(path: bytes) -> str:
    """Quote the beginning of a path, without control characters."""
    return repr(path[:_SHOWN])[1:]


class Expiry:
    """Turns old pulses into tombstones, and drops old tombstones; `limits` may be set at any time.

    `floor` is the revision of the last dropped tombstone. A reader that starts at 0 ends above the
    floor, since every entry has a newer revision: an older pulse first gets the next revision.
    """

    __slots__ = (
        "_bytes",
        "_clock",
        "_doomed_before",
        "_index",
        "_passed",
        "_pulses",
        "_tombstones",
        "buried",
        "expired",
        "floor",
        "limits",
    )

    def __init__(
        self,
        index: PulseIndex,
        pulses: SortedPaths,
        clock: Callable[[], float],
        limits: StoreLimits,
    ) -> None:
        self.limits = limits
        self.floor = 0
        self.expired = 0
        self._index = index
        self._clock = clock
        self._pulses = pulses
        self._tombstones: dict[PulseEntry, None] = {}
        #: The paths of the tombstones.
        self.buried = SortedPaths()
        self._bytes = 0
        #: Pulses received before this time have expired.
        self._doomed_before = float("-inf")
        #: Only tombstones stand up to this entry, which had this revision.
        self._passed: tuple[PulseEntry, int] | None = None

    def bury(self, entry: PulseEntry) -> None:
        """Replace a pulse by a tombstone."""
        self._bury(entry)
        self._keep_bounds()

    def bury_detached(self, entries: Sequence[PulseEntry]) -> None:
        """Replace pulses, already removed from the sorted paths, by tombstones."""
        for entry in entries:
            self._add_tombstone(entry)
        self._keep_bounds()

    def revive(self, entry: PulseEntry) -> None:
        """Stop counting a tombstone that is about to get a pulse."""
        del self._tombstones[entry]
        self._bytes -= len(entry.path)
        self.buried.remove(entry.path)

    def expire(self, max_age: float, budget: float = _BUDGET) -> int:
        """Delete pulses older than `max_age` (0: none) and old tombstones, for `budget` seconds.

        Returns the number of deleted pulses; after 0 the next call may wait for a second. A pulse
        that got a new revision to make room for tombstones may expire `max_age` late.
        """
        now = self._clock()
        deadline = now + budget
        before = self.expired
        if max_age > 0:
            self._doomed_before = now - max_age
            self._expire(deadline)
        self._forget_before(now - self.limits.tombstone_seconds, deadline)
        return self.expired - before

    def _expire(self, deadline: float) -> None:
        index = self._index
        entry = index.oldest()
        if self._passed is not None and self._passed[0].revision == self._passed[1]:
            entry = index.after(self._passed[0])
        looked = 0
        while entry is not None:
            looked += 1
            if looked % _STRIDE == 0 and self._clock() >= deadline:
                return
            following = index.after(entry)
            revision = 0 if following is None else following.revision
            if entry.details is None:
                self._passed = entry, entry.revision
            elif entry.changed < self._doomed_before:
                self.expired += 1
                self.bury(entry)
                if following is not None and following.revision != revision:
                    return  # `following` was moved to make room for the tombstone
            else:
                return
            entry = following

    def _forget_before(self, changed: float, deadline: float) -> None:
        oldest = next(iter(self._tombstones), None)
        if oldest is None or oldest.changed >= changed:
            return
        steps = 0
        for tombstone in list(self._tombstones):
            if tombstone.changed >= changed:
                return
            while tombstone.revision > 0:
                steps += 1
                if steps % _STRIDE == 0 and self._clock() >= deadline:
                    return
                self._give_up_oldest()

    def _keep_bounds(self) -> None:
        limits, tombstones = self.limits, self._tombstones
        while len(tombstones) > limits.tombstones or self._bytes > limits.tombstone_bytes:
            self._give_up_oldest()

    def _give_up_oldest(self) -> None:
        """Forget the oldest entry if a tombstone; else move or bury the pulse."""
        index = self._index
        entry = index.oldest()
        if entry is None:
            return
        if entry.details is None:
            self.floor = entry.revision
            self.revive(entry)
            index.forget(entry)
        elif entry.changed < self._doomed_before:
            self.expired += 1
            self._bury(entry)
        else:
            index.renew(entry)

    def _bury(self, entry: PulseEntry) -> None:
        self._pulses.remove(entry.path)
        self._add_tombstone(entry)

    def _add_tombstone(self, entry: PulseEntry) -> None:
        self._index.bury(entry, self._clock())
        self._tombstones[entry] = None
        self._bytes += len(entry.path)
        self.buried.add(entry.path)
