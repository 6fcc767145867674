"""A mirror of all newest pulses, in which a reading costs what has changed since the last.

A server is asked for changes since its `Position`. A pulse keeps its moment of receipt, on the
monotonic clock of this process, so a pulse that did not change is never touched. Each server's
pulses stand in the order of receipt: the silent ones stand first.

A path is known once over all servers, with the newest copy, ranked as in `pool_reads`. Pulses from
before a server's restart, and pulses of a server that does not answer, stay known until a newer
pulse or a tombstone comes, or they grow too old. What the same instance no longer lists is deleted.
A Java Pacemaker, which reports neither ages nor changes, and ZooKeeper are read as a whole.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, KeysView, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from itertools import repeat
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, TypeVar

import msgspec

from stormkeeper.conf import Address
from stormkeeper.errors import PacemakerUnavailableError, SerializationError, StormkeeperError
from stormkeeper.heartbeats.change_pages import Position
from stormkeeper.heartbeats.coverage import Coverage, Heartbeats
from stormkeeper.pacemaker.client.server_reads import ServerChanges
from stormkeeper.pacemaker.wire.messages import TOMBSTONE, Changes

if TYPE_CHECKING:
    from stormkeeper.pacemaker.client.pool import PacemakerPool

V = TypeVar("V")

#: A pulse older than a day is forgotten: no timeout of a worker is as long.
FORGET_PULSE_SECS: Final = 86_400.0

#: For deletions: as long as a server remembers them.
_DELETED_SECS: Final = 3_600.0
_MOST_DELETED: Final = 200_000

#: Between the times of two answers: pulses may stand in the wrong order by so much.
_DISORDER_SECS: Final = 1.0

#: The most bytes that a reading leaves undecoded until its end.
_MOST_WAITING: Final = 64 * 1024 * 1024

#: For a reading that another caller began: longer than its own deadlines.
_PATIENCE_SECS: Final = 60.0


class Pulse(msgspec.Struct, Generic[V], frozen=True, gc=False):
    """The newest pulse of a path; no part of a garbage cycle.

    `received_at` is in monotonic seconds of this process, None from a Java Pacemaker. `value` is
    None if values are not read, and an error if unreadable.
    """

    server: str
    instance: str
    revision: int | None
    received_at: float | None
    size: int
    value: V | SerializationError | None = None

    @property
    def id(self) -> tuple[str, str, int | None]:
        return self.server, self.instance, self.revision


class Deletion(NamedTuple, Generic[V]):
    """The deletion of a path: `number` counts deletions, `last` was the path's pulse."""

    number: int
    server: str
    deleted_at: float
    noted_at: float
    last: Pulse[V] | None


class Refreshed(NamedTuple):
    """A reading that began at `began`; the pulses at `changed` are newer, or gone."""

    began: float
    changed: set[str]
    coverage: Mapping[str, Coverage]


@dataclass(frozen=True, slots=True)
class FollowedHeartbeats:
    """A follower's heartbeats, which may be newer than the reading that began at `at`.

    `at` is by the follower's clock. If no server answered, there is no coverage.
    """

    follower: HeartbeatFollower[Any]
    coverage: Mapping[str, Coverage]
    at: float

    @property
    def missing(self) -> dict[str, str]:
        """Servers that did not answer, with reasons."""
        return {name: one.error for name, one in self.coverage.items() if one.error is not None}


class _Page(NamedTuple, Generic[V]):
    pulses: dict[str, Pulse[V]]
    deleted: dict[str, float]
    is_in_order: bool


class _Server(Generic[V]):
    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.position: Position | None = None
        #: In the order of receipt.
        self.pulses: dict[str, Pulse[V]] = {}
        self.newest_at = float("-inf")
        #: By path that moved to another server: receipt of the pulse that showed the move.
        self.left: dict[str, float] = {}


class HeartbeatFollower(Generic[V]):
    """Follows the heartbeats of a store; get one by `HeartbeatStore.follower`. Thread-safe.

    Hold `lock` to look at several paths of one moment. `clock` is monotonic.
    """

    def __init__(
        self,
        read_all: Callable[..., Heartbeats],
        pool: PacemakerPool | None = None,
        *,
        path: str,
        decode: Callable[[bytes], V] | None = None,
        values: bool = True,
        clock: Callable[[], float] = time.monotonic,
        forget_secs: float = FORGET_PULSE_SECS,
    ) -> None:
        self.lock = threading.RLock()
        #: Of the last reading.
        self.coverage: Mapping[str, Coverage] = {}
        self._read_all = read_all
        self._pool = pool
        self._path = path
        self._decode = decode
        self._has_values = values and decode is not None
        self.clock = clock
        self._forget_secs = forget_secs
        self._servers: dict[str, _Server[V]] = {}
        #: Of paths without a pulse, in the order of their numbers.
        self._deletions: dict[str, Deletion[V]] = {}
        #: Deletions so far.
        self.deleted_count = 0
        #: Whether the last reading met a Java Pacemaker.
        self._has_java = False
        #: Paths that a server has for the first time in this reading.
        self._fresh: set[str] = set()
        #: Hashes of values from Java Pacemakers, whose pulses have no revision.
        self._hashes: dict[str, int] = {}
        self._reading = threading.Lock()
        self._begun = 0
        self._waiting = 0
        self._outcome: Future[Refreshed] = Future()

    @property
    def reads_changes(self) -> bool:
        """Whether a reading costs only what has changed."""
        return self._pool is not None and not self._has_java

    @property
    def ageless(self) -> KeysView[str]:
        """The paths of pulses of Java Pacemakers, which have no age; hold `lock`."""
        return self._hashes.keys()

    def get(self, path: str) -> Pulse[V] | None:
        with self.lock:
            for server in self._servers.values():
                pulse = server.pulses.get(path)
                if pulse is not None:
                    return pulse
        return None

    def silent(self, for_secs: float, at: float) -> Iterator[tuple[str, Pulse[V]]]:
        """Yield the pulses older than `for_secs` at a time of the clock, without those of Java.

        Hold `lock`. The time depends on the number of silent pulses alone.
        """
        before = at - for_secs
        for order in self.by_receipt():
            for path, pulse in order:
                received_at = pulse.received_at
                if received_at is None:
                    continue
                if received_at < before:
                    yield path, pulse
                elif received_at > before + _DISORDER_SECS:
                    break

    def by_receipt(self) -> Iterator[Iterable[tuple[str, Pulse[V]]]]:
        """Yield each server's pulses, the oldest first; the order is right to a second.

        Hold `lock`.
        """
        for server in self._servers.values():
            yield server.pulses.items()

    def left(self, server: str) -> Mapping[str, float]:
        """Return when paths moved from a server to their present one; hold `lock`."""
        known = self._servers.get(server)
        return {} if known is None else known.left

    def deleted_after(self, number: int) -> Iterator[tuple[str, Deletion[V]]]:
        """Yield paths without a pulse deleted after deletion `number`, newest first; hold `lock`.

        Deletions are known for an hour.
        """
        for path in reversed(self._deletions):
            deletion = self._deletions[path]
            if deletion.number <= number:
                return
            yield path, deletion

    def refresh(
        self, *, hurried: bool = False, pause: Callable[[], None] = lambda: None
    ) -> Refreshed:
        """Read what has changed; errors and `hurried` as of `HeartbeatStore.read_all`.

        Concurrent callers share a reading, which began after their calls, and its error. `pause` is
        called between pages, after the reading.
        """
        before = self._begun
        if not self._reading.acquire(timeout=_PATIENCE_SECS):
            raise PacemakerUnavailableError(
                f"another reading of heartbeats has not ended for {_PATIENCE_SECS:g} s"
            )
        try:
            if self._begun == before:
                self._begun += 1
                self._outcome = Future()
                try:
                    self._outcome.set_result(self._refresh(pause, hurried=hurried))
                except BaseException as error:
                    self._outcome.set_exception(error)
            outcome = self._outcome
        finally:
            self._reading.release()
        return outcome.result()

    def _refresh(self, pause: Callable[[], None], *, hurried: bool) -> Refreshed:
        began = self.clock()
        changes = None
        if self._pool is not None and self.reads_changes:
            changes = self._changes(self._pool, hurried=hurried)
        if changes is None or None in changes.values():
            values = self._has_values or self._pool is not None
            found = self._read_all(self._path, values=values, hurried=hurried)
            return self._take_all(found, began)
        took = self.clock() - began
        pages: dict[Address, list[_Page[V]]] = {}
        for address, answer in changes.items():
            if isinstance(answer, ServerChanges):
                pages[address] = []
                for unpack in answer.pages:
                    pause()
                    pages[address].append(unpack())
        changed: set[str] = set()
        coverage: dict[str, Coverage] = {}
        with self.lock:
            self._fresh = set()
            for address, answer in changes.items():
                name = str(address)
                self._server(name)
                if isinstance(answer, ServerChanges):
                    self._take_changes(name, answer, pages[address], changed)
                    coverage[name] = Coverage.of(answer.info, seconds_ago=took)
                else:
                    coverage[name] = Coverage.of(answer)
            return self._ended(began, changed, coverage)

    def _changes(
        self, pool: PacemakerPool, *, hurried: bool
    ) -> dict[Address, ServerChanges[Callable[[], _Page[V]]] | StormkeeperError | None]:
        self._waiting = 0
        positions = {
            address: (known.position.instance, known.position.revision)
            for address in pool.clients
            if (known := self._servers.get(str(address))) is not None and known.position is not None
        }
        return pool.changes(
            self._path,
            positions,
            self._unpack_later,
            values=self._has_values,
            hurried=hurried,
            clock=self.clock,
        )

    def _ended(
        self, began: float, changed: set[str], coverage: Mapping[str, Coverage]
    ) -> Refreshed:
        old = [path for path, _ in self.silent(self._forget_secs, began)]
        for server in self._servers.values():
            deque(map(server.pulses.pop, old, repeat(None)), maxlen=0)
        self._forget_moves(old)
        changed.update(old)
        while self._deletions:
            path, oldest = next(iter(self._deletions.items()))
            if len(self._deletions) <= _MOST_DELETED and oldest.noted_at >= began - _DELETED_SECS:
                break
            del self._deletions[path]
            self._forget_moves([path])
        self.coverage = coverage
        return Refreshed(began, changed, coverage)

    def _unpack_later(
        self, address: Address, page: Changes[str], read_at: float
    ) -> Callable[[], _Page[V]]:
        """Return a function that unpacks a page, for after the reading; unpack much at once."""
        self._waiting += sum(page.columns.sizes)
        unpack = partial(self._unpack, address, page, read_at)
        if self._waiting <= _MOST_WAITING:
            return unpack
        unpacked = unpack()
        return lambda: unpacked

    def _unpack(self, address: Address, page: Changes[str], read_at: float) -> _Page[V]:
        paths, revisions, ages_ms, sizes, details = page.columns
        received = [read_at - age_ms / 1000 for age_ms in ages_ms]
        values = repeat(None) if details is None else map(self._decoded, details)
        name, instance = repeat(str(address)), repeat(page.instance)
        made = map(Pulse, name, instance, revisions, received, sizes, values)
        pulses: dict[str, Pulse[V]] = dict(zip(paths, made, strict=True))
        deleted = {}
        if TOMBSTONE in sizes:
            for path, size, moment in zip(paths, sizes, received, strict=True):
                if size == TOMBSTONE:
                    deleted[path] = moment
                    del pulses[path]
        return _Page(pulses, deleted, received == sorted(received))

    def _decoded(self, value: bytes | None) -> V | SerializationError | None:
        if value is None or self._decode is None:
            return None
        try:
            return self._decode(value)
        except SerializationError as error:
            return error.with_traceback(None)

    def _take_changes(
        self, name: str, answer: ServerChanges[Any], pages: list[_Page[V]], changed: set[str]
    ) -> None:
        server = self._server(name)
        if answer.is_anew:
            listed = {path for page in pages for path in page.pulses}
            self._delete_unlisted(name, server, answer.instance, listed, changed)
        for pulses, deleted, is_in_order in pages:
            if answer.is_anew:
                # The server says again what is known.
                for path in server.pulses.keys() & pulses.keys():
                    if server.pulses[path].id == pulses[path].id:
                        del pulses[path]
            self._without_older(name, server, pulses)
            self._put(server, pulses, is_in_order=is_in_order)
            changed.update(pulses)
            for path, deleted_at in deleted.items():
                self._delete(path, name, deleted_at, changed)
        server.position = Position(answer.instance, answer.revision)

    def _server(self, name: str) -> _Server[V]:
        if name not in self._servers:
            self._servers[name] = _Server(len(self._servers))
        return self._servers[name]

    def _without_older(self, name: str, server: _Server[V], pulses: dict[str, Pulse[V]]) -> None:
        """Leave out pulses with a newer copy or deletion elsewhere; take out older copies."""
        for other in self._servers.values():
            if other is server:
                continue
            for path in other.pulses.keys() & pulses.keys():
                theirs, ours = other.pulses[path].received_at, pulses[path].received_at
                assert ours is not None  # Java Pacemakers send no changes
                if theirs is not None and (theirs, -other.rank) > (ours, -server.rank):
                    del pulses[path]
                else:
                    del other.pulses[path]
                    if path not in self._fresh:
                        self._leave(path, other, ours)
        for path in self._deletions.keys() & pulses.keys():
            deletion, received_at = self._deletions[path], pulses[path].received_at
            # A tie goes to the pulse: one too many harms less than one too few.
            if deletion.server != name and deletion.deleted_at > (received_at or 0.0):
                del pulses[path]

    def _put(self, server: _Server[V], pulses: dict[str, Pulse[V]], *, is_in_order: bool) -> None:
        """Make these the newest pulses of a server."""
        if not pulses:
            return
        if self._deletions:
            deque(map(self._deletions.pop, pulses, repeat(None)), maxlen=0)
        if self._hashes:
            deque(map(self._hashes.pop, pulses, repeat(None)), maxlen=0)
        held = server.pulses
        before = [held.pop(path, None) for path in pulses]
        if None in before:
            self._fresh.update(
                path for path, known in zip(pulses, before, strict=True) if known is None
            )
        held.update(pulses)
        first = next(iter(pulses.values())).received_at or 0.0
        if not is_in_order or first < server.newest_at - _DISORDER_SECS:
            # To forget old deletions, a server gives old pulses new revisions.
            server.pulses = dict(sorted(held.items(), key=_receipt))
        newest = next(reversed(server.pulses.values())).received_at
        server.newest_at = max(server.newest_at, newest or 0.0)

    def _delete(self, path: str, name: str, deleted_at: float, changed: set[str]) -> None:
        for other_name, other in self._servers.items():
            pulse = other.pulses.get(path)
            if pulse is None:
                continue
            # A server tells the newer of its own pulse and deletion.
            if other_name != name and (pulse.received_at or 0.0) >= deleted_at:
                return
            del other.pulses[path]
            self._hashes.pop(path, None)
            changed.add(path)
            break
        else:
            pulse = None
        before = self._deletions.get(path)
        if before is not None:
            if before.deleted_at >= deleted_at:
                return
            del self._deletions[path]
            pulse = before.last
        self.deleted_count += 1
        self._deletions[path] = Deletion(self.deleted_count, name, deleted_at, self.clock(), pulse)

    def _delete_unlisted(
        self,
        name: str,
        server: _Server[V],
        instance: str,
        listed: set[str],
        changed: set[str],
    ) -> None:
        """Delete pulses that an instance no longer has, from what it says as a whole."""
        gone = [
            (path, pulse)
            for path, pulse in server.pulses.items()
            if pulse.instance == instance and path not in listed
        ]
        for path, pulse in gone:
            self._delete(path, name, pulse.received_at or 0.0, changed)

    def _take_all(self, found: Heartbeats, began: float) -> Refreshed:
        """Take a reading of everything, which has the newest copies already."""
        changed: set[str] = set()
        read: dict[str, dict[str, Pulse[V]]] = {}
        positions = {name: one.position for name, one in found.coverage.items()}
        listed = {*found.by_path}
        with self.lock:
            self._has_java = self._pool is not None and any(
                one.is_reachable and one.horizon_secs is None for one in found.coverage.values()
            )
            for path, beat in found.by_path.items():
                position = positions.get(beat.server)
                pulse: Pulse[V] = Pulse(
                    beat.server,
                    "" if position is None else position.instance,
                    beat.revision,
                    None if beat.age_secs is None else began - beat.age_secs,
                    beat.size,
                )
                known = self.get(path)
                if known is None or self._is_news(
                    path, pulse, beat.value, known, positions.get(known.server)
                ):
                    pulse = msgspec.structs.replace(pulse, value=self._decoded(beat.value))
                    read.setdefault(beat.server, {})[path] = pulse
            for name, position in positions.items():
                server = self._server(name)
                # Whatever is asked for next begins anew.
                server.position = None
                if position is not None:
                    self._delete_unlisted(name, server, position.instance, listed, changed)
            for name, pulses in read.items():
                for path, pulse in pulses.items():
                    moved_at = began if pulse.received_at is None else pulse.received_at
                    for other_name, other in self._servers.items():
                        if other_name != name and other.pulses.pop(path, None) is not None:
                            self._leave(path, other, moved_at)
                self._put(
                    self._server(name),
                    dict(sorted(pulses.items(), key=_receipt)),
                    is_in_order=True,
                )
                for path, pulse in pulses.items():
                    value = found.by_path[path].value
                    if pulse.revision is None and value is not None:
                        self._hashes[path] = hash(value)
                changed.update(pulses)
            return self._ended(began, changed, found.coverage)

    def _is_news(
        self,
        path: str,
        pulse: Pulse[V],
        value: bytes | None,
        known: Pulse[V],
        present: Position | None,
    ) -> bool:
        if (known.server, known.instance) == (pulse.server, pulse.instance):
            if pulse.revision is not None:
                return pulse.revision != known.revision
            return self._hashes.get(path) != hash(value)
        if present is not None and present.instance == known.instance:
            return True  # the reading chose between both
        # Of a server that does not answer, or was restarted.
        ours, theirs = pulse.received_at, known.received_at
        return ours is None or theirs is None or ours >= theirs

    def _leave(self, path: str, former: _Server[V], moved_at: float) -> None:
        self._forget_moves([path])
        former.left[path] = moved_at

    def _forget_moves(self, paths: Iterable[str]) -> None:
        for server in self._servers.values():
            if server.left:
                deque(map(server.left.pop, paths, repeat(None)), maxlen=0)


def _receipt(item: tuple[str, Pulse[V]]) -> float:
    return item[1].received_at or 0.0
