"""Reads of several Pacemakers: all are asked at once, and the newest copy of each pulse counts.

A read takes as long as the slowest healthy server. A server that fails costs one try (two if the
failure is quick, as during a restart) and is then a suspect until the next answer: a read awaits
suspects only `GRACE` beyond the others, unless all are suspects.

A worker that moved leaves older or deleted copies on other servers:

- Copies and tombstones on Stormkeeper's servers are ranked by the time of receipt. A tombstone
  newer than every copy hides all copies.
- A Java Pacemaker sends no ages and ignores tombstones. Its copies are ranked by ``time_secs`` of
  the heartbeat, also against the newest copy with an age, which wins a tie.

A listing finds the names that the bulk read would find. A name is certain if a server lists the
name and no other server has tombstones there. If other names are in doubt, ages are read in bulk.
"""

import logging
import queue
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from operator import attrgetter
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from stormkeeper.conf import Address
from stormkeeper.errors import (
    NotAuthorizedError,
    PacemakerClosedError,
    PacemakerUnavailableError,
    RemoteProtocolError,
    SerializationError,
    StormkeeperError,
    UnsupportedExtensionError,
)
from stormkeeper.pacemaker.client.pacemaker_client import PacemakerClient
from stormkeeper.pacemaker.client.server_reads import (
    Heartbeat,
    ListedNames,
    Question,
    Round,
    ServerContents,
)
from stormkeeper.pacemaker.wire.messages import TOMBSTONE, Message

if TYPE_CHECKING:
    from stormkeeper.thrift.pacemaker import ServerInfo


log = logging.getLogger("stormkeeper.pacemaker.client.pool")

T = TypeVar("T")

#: Seconds: many times a connection and an answer in a data centre.
GRACE: Final = 0.1

#: Failures within this share of a try's timeout get a second try.
_QUICK: Final = 0.5


@dataclass(frozen=True, slots=True)
class Outcomes(Generic[T]):
    """Answers and errors by server, in the order of the servers."""

    answered: dict[Address, T] = field(default_factory=dict)
    failed: dict[Address, StormkeeperError] = field(default_factory=dict)


class _Asked(Generic[T]):
    """A question to a server."""

    def __init__(self, client: PacemakerClient) -> None:
        self.client = client
        self.question: Question[T]
        #: The answers of the current round, and those that are not there yet.
        self.round: list[Future[Message]] = []
        self.missing: set[Future[Message]] = set()
        self.is_patient = not client.suspect
        self.has_second_chance = self.is_patient


class _Fanout(Generic[T]):
    """A question to several servers; `ask` asks each once, or twice after a quick failure."""

    def __init__(
        self,
        question_for: Callable[[PacemakerClient], Question[T]],
        *,
        quick: float,
        deadline: float,
        hurried: bool,
    ) -> None:
        self._question_for = question_for
        self._quick = quick
        self._hurried = hurried
        self._started = time.monotonic()
        self.end = self._started + deadline
        self._quick_until = self._started
        self._tries: Counter[Address] = Counter()
        self._answers: queue.SimpleQueue[tuple[_Asked[T], Future[Message]]] = queue.SimpleQueue()
        self._open: list[_Asked[T]] = []
        self._outcomes: Outcomes[T] = Outcomes()

    def ask(self, clients: Sequence[PacemakerClient]) -> Outcomes[T]:
        self._quick_until = time.monotonic() + self._quick
        self._open, self._outcomes = [], Outcomes()
        everyone: list[_Asked[T]] = [_Asked(client) for client in clients]
        all_are_suspects = not any(asked.is_patient for asked in everyone)
        for asked in everyone:
            asked.is_patient = asked.is_patient or all_are_suspects
            is_waited_for = asked.is_patient and not (all_are_suspects and self._hurried)
            if asked.client.retry_in() and not is_waited_for:
                self._give_up_on(asked, f"failed just now ({asked.client.last_failure})")
            else:
                self._open.append(asked)
        for asked in list(self._open):
            self._start(asked)
        grace_end: float | None = None
        while self._open:
            now = time.monotonic()
            if any(asked.is_patient for asked in self._open):
                grace_end = None
            elif grace_end is None:
                grace_end = now + GRACE
            until = self.end if grace_end is None else min(grace_end, self.end)
            try:
                asked, answer = self._answers.get(timeout=max(0.0, until - now))
            except queue.Empty:
                break
            self._take(asked, answer)
        for asked in self._open:
            self._give_up_on(
                asked,
                "did not answer before the deadline"
                if asked.is_patient
                else f"failed before ({asked.client.last_failure}) and did not answer within"
                f" {GRACE:g} s after the others",
            )
        answered, failed = self._outcomes.answered, self._outcomes.failed
        order = [client.address for client in clients]
        return Outcomes(
            {server: answered[server] for server in order if server in answered},
            {server: failed[server] for server in order if server in failed},
        )

    def _start(self, asked: _Asked[T]) -> None:
        question = self._question_for(asked.client)
        asked.question = question
        self._tries[asked.client.address] += 1
        self._step(asked, lambda: next(question))

    def _step(self, asked: _Asked[T], go_on: Callable[[], Round]) -> None:
        asked.round, asked.missing = [], set()
        try:
            requests, meanwhile = go_on()
            left = self.end - time.monotonic()
            tries = self._tries[asked.client.address]
            for message in requests:
                future = asked.client.submit(
                    message, deadline=left, started=self._started, tries=tries
                )
                asked.round.append(future)
                future.add_done_callback(lambda future: self._answers.put((asked, future)))
            asked.missing.update(asked.round)
            if meanwhile is not None:
                meanwhile()
        except StopIteration as end:
            self._open.remove(asked)
            self._outcomes.answered[asked.client.address] = end.value
        except StormkeeperError as error:
            self._fail(asked, error)

    def _take(self, asked: _Asked[T], future: Future[Message]) -> None:
        if future not in asked.missing:
            return  # an answer of a failed round
        error = future.exception()
        if isinstance(error, UnsupportedExtensionError):
            unsupported = error
            self._step(asked, lambda: asked.question.throw(unsupported))
        elif isinstance(error, StormkeeperError):
            self._fail(asked, error)
        else:
            asked.is_patient = True  # the server answers, so wait for it
            asked.missing.remove(future)
            if not asked.missing:
                answers = [answer.result() for answer in asked.round]
                self._step(asked, lambda: asked.question.send(answers))

    def _fail(self, asked: _Asked[T], error: StormkeeperError) -> None:
        asked.question.close()
        asked.missing.clear()
        if (
            asked.has_second_chance
            and time.monotonic() < self._quick_until
            and isinstance(error, PacemakerUnavailableError | RemoteProtocolError)
            and not isinstance(error, PacemakerClosedError)
        ):
            asked.has_second_chance = False
            self._start(asked)
        else:
            self._open.remove(asked)
            self._outcomes.failed[asked.client.address] = error

    def _give_up_on(self, asked: _Asked[T], reason: str) -> None:
        asked.missing.clear()
        address = asked.client.address
        self._outcomes.failed[address] = PacemakerUnavailableError(f"{address} {reason}")


def ask_all(
    clients: Iterable[PacemakerClient],
    question_for: Callable[[PacemakerClient], Question[T]],
    *,
    try_timeout: float,
    deadline: float,
    retries: int = 0,
    hurried: bool = False,
) -> Outcomes[T]:
    """Put a question to all servers at once, and again while no server answers.

    `deadline` is in seconds, for all tries. With `hurried` there are no retries but of a quick
    failure, and no try at all if every server failed just before.
    """
    clients = list(clients)
    fanout: _Fanout[T] = _Fanout(
        question_for, quick=_QUICK * try_timeout, deadline=deadline, hurried=hurried
    )
    for _ in range(1 if hurried else 1 + retries):
        outcomes = fanout.ask(clients)
        final = (NotAuthorizedError, PacemakerClosedError)
        if (
            outcomes.answered
            or any(isinstance(error, final) for error in outcomes.failed.values())
            or time.monotonic() >= fanout.end
        ):
            break
    return outcomes


#: Seconds until a missing server is logged again.
_REMIND_SECS: Final = 60.0

ALL_ANSWER: Final = "Every Pacemaker answers again"


@dataclass(eq=False)
class MissingServers:
    """Logs which servers reads miss, on changes and every minute; thread-safe."""

    servers: int
    clock: Callable[[], float] = time.monotonic
    #: Reasons in the last read, by server.
    failures: Mapping[Address, str] = field(default_factory=dict, init=False)
    _logged: float = field(default=0.0, init=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False)

    def note(self, failed: Mapping[Address, StormkeeperError]) -> None:
        failures = MappingProxyType({server: str(error) for server, error in failed.items()})
        now = self.clock()
        with self._lock:
            is_known = failures.keys() == self.failures.keys()
            self.failures = failures
            if is_known and (not failures or now < self._logged + _REMIND_SECS):
                return
            self._logged = now
        if failures:
            log.warning("%s", describe_failures(failures, self.servers))
        else:
            log.info(ALL_ANSWER)


def describe_failures(failures: Mapping[Address, str], servers: int) -> str:
    of = f"{servers} Pacemaker{'' if servers == 1 else 's'}"
    return f"{len(failures)} of {of} failed in the last read: {'; '.join(failures.values())}"


_AGE = attrgetter("age_secs")
_SIZE = attrgetter("size")


def stopwatch() -> Callable[[], float]:
    began = time.monotonic()
    return lambda: time.monotonic() - began


@dataclass(frozen=True, slots=True)
class Readings:
    """Newest pulse of each path, and each server's description after the read.

    A Java Pacemaker has None; a server without an answer has an error.
    """

    by_path: dict[str, Heartbeat]
    servers: "dict[Address, ServerInfo | StormkeeperError | None]"


def newest(copies: Iterable[Heartbeat]) -> Heartbeat | None:
    """Return a path's newest copy, the first of equals; None if deleted."""
    ours: Heartbeat | None = None
    ours_rank = (float("-inf"), False)
    theirs: list[Heartbeat] = []
    for copy in copies:
        if copy.age_secs is None:
            theirs.append(copy)
            continue
        # A tie goes to the pulse: one too many harms less than one too few.
        rank = (-copy.age_secs, copy.size != TOMBSTONE)
        if rank > ours_rank:
            ours, ours_rank = copy, rank
    if ours is not None and ours.size == TOMBSTONE:
        ours = None
    rivals = theirs if ours is None else [ours, *theirs]
    if len(rivals) < 2:
        return rivals[0] if rivals else None
    return max(rivals, key=_payload_time)


def in_doubt(servers: Mapping[Address, ListedNames]) -> set[str]:
    """Return the listed names that are not certain (see the module)."""
    graves: dict[str, set[Address]] = {}
    for server, names in servers.items():
        for name in names.deleted or ():
            graves.setdefault(name, set()).add(server)
    certain = {
        name
        for server, names in servers.items()
        for name in names.listed
        if names.deleted is None or not graves.get(name, set()) - {server}
    }
    return {name for names in servers.values() for name in names.listed} - certain


def newest_of_each(servers: Iterable[Mapping[str, Heartbeat]]) -> dict[str, Heartbeat]:
    """Return the newest pulse of every path, of equals the first server's."""
    merged: dict[str, Heartbeat] = {}
    # Few paths have several copies.
    rivals: dict[str, list[Heartbeat]] = {}
    for held in servers:
        for path in merged.keys() & held.keys():
            rivals.setdefault(path, [merged[path]]).append(held[path])
        merged = {**held, **merged} if merged else dict(held)
    for path, copies in rivals.items():
        best = newest(copies)
        if best is None:
            del merged[path]
        else:
            merged[path] = best
    # Quick checks first: there may be 100,000 paths and usually neither case.
    if TOMBSTONE in map(_SIZE, merged.values()):
        merged = {path: one for path, one in merged.items() if one.size != TOMBSTONE}
    if min(filter(None, map(_AGE, merged.values())), default=0.0) < 0:
        # Received after the start of the read.
        for path in [path for path, one in merged.items() if (one.age_secs or 0) < 0]:
            merged[path] = merged[path]._replace(age_secs=0.0)
    return merged


def without_values(found: Mapping[str, Heartbeat]) -> dict[str, Heartbeat]:
    """Remove the values, without which a Java Pacemaker sends no sizes."""
    return {path: one._replace(value=None) for path, one in found.items()}


def _payload_time(copy: Heartbeat) -> float:
    from stormkeeper.thrift.records import ClusterWorkerHeartbeat  # noqa: PLC0415 - seldom needed
    from stormkeeper.thrift.serialization import deserialize  # noqa: PLC0415

    if copy.value is None:
        return float("-inf")
    try:
        return float(deserialize(ClusterWorkerHeartbeat, copy.value).time_secs)
    except SerializationError:
        return float("-inf")


def names_that_count(
    path: str, names: Mapping[Address, ListedNames], read: Outcomes[ServerContents]
) -> set[str]:
    """Return the names directly below `path` with pulses that are not deleted.

    `read` has the pulses of Stormkeeper's servers. The names of a server that failed all count.
    """
    found = {name for some in names.values() for name in some.listed} - in_doubt(names)
    for server in read.failed:
        found |= names[server].listed
    top = path.rstrip("/") + "/"
    below = newest_of_each(contents.copies for contents in read.answered.values())
    return found | {there[len(top) :].partition("/")[0] for there in below if there.startswith(top)}
