"""The client that finds the leading Nimbus through the seeds, as Storm's clients do.

If no seed knows a leader, all are asked again, as an election may be under way.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import KW_ONLY, dataclass
from functools import partial
from typing import Any, Final, Self, TypeVar, cast

from stormkeeper.conf import Conf
from stormkeeper.conf.address import Address
from stormkeeper.daemon.lifecycle import Closing
from stormkeeper.daemon.periodic import in_thread
from stormkeeper.errors import (
    LeaderNotFoundError,
    RemoteProtocolError,
    RpcError,
    RpcOutcomeUnknownError,
    RpcRefusedError,
    RpcUnavailableError,
    StormkeeperError,
)
from stormkeeper.rpc.message_frames import NO_ZOOKEEPER, FaultKind
from stormkeeper.rpc.service_client import Calls, ServiceClient
from stormkeeper.thrift.nimbus import AuthorizationException, Nimbus, NimbusCalls

_log = logging.getLogger(__name__)

T = TypeVar("T")

#: Rounds after which the pause, by then weeks, stays.
_GROWTH: Final = 30
#: Seconds for one seed, so that a dead one leaves time for the others.
_SEED_SECONDS: Final = 5.0
#: Seconds before the next seed is asked too: a healthy Nimbus answers in milliseconds.
HEAD_START: Final = 0.5


class _LeaderAwayError(RpcUnavailableError):
    """A seed names a leader that cannot be reached."""


@dataclass(eq=False)
class LeaderClient(Closing):
    """Calls the leading Nimbus, from any thread.

    Without a leader all seeds are asked again in `rounds`, after a pause that grows by a
    millisecond, two, four, … up to `longest_pause`. Raises `ConfigError` for an invalid seed.
    """

    seeds: Sequence[str]
    default_port: int
    _: KW_ONLY
    max_frame: int
    timeout: float
    rounds: int = 5
    pause: float = 2.0
    longest_pause: float = 60.0
    head_start: float = HEAD_START
    sleep: Callable[[float], None] = time.sleep

    def __post_init__(self) -> None:
        self._seeds = [(seed, Address.parse(seed, self.default_port)) for seed in self.seeds]
        self._finding = threading.Lock()
        self._client: ServiceClient | None = None

    @classmethod
    def from_conf(cls, conf: Conf) -> Self:
        return cls(
            conf["nimbus.seeds"],
            conf["nimbus.thrift.port"],
            max_frame=conf["nimbus.thrift.max_buffer_size"],
            timeout=conf["storm.thrift.socket.timeout.ms"] / 1000,
            rounds=conf["storm.nimbus.retry.times"],
            pause=conf["storm.nimbus.retry.interval.millis"] / 1000,
            longest_pause=conf["storm.nimbus.retry.intervalceiling.millis"] / 1000,
        )

    @property
    def address(self) -> Address | None:
        client = self._client
        return None if client is None else client.address

    @property
    def nimbus(self) -> NimbusCalls:
        return cast("NimbusCalls", Calls(Nimbus, self.call))

    @property
    def search_secs(self) -> float:
        """Most seconds of a search without any answer."""
        asking = (len(self._seeds) - 1) * self.head_start + _SEED_SECONDS
        pauses = sum(map(self._pause_after, range(self.rounds)))
        return (self.rounds + 1) * asking + pauses

    def close(self) -> None:
        """Close the connection; a call in progress fails."""
        client, self._client = self._client, None
        if client is not None:
            client.close()

    def call(self, name: str, *arguments: Any, timeout: float | None = None) -> Any:
        """Call the leader as `ServiceClient.call`; only an unsent call is repeated.

        Raises `LeaderNotFoundError` if no leader is found in time.
        """
        deadline = time.monotonic() + (self.timeout if timeout is None else timeout)
        client = self._client
        if client is not None:
            try:
                return self._call(client, name, arguments, deadline)
            except RpcOutcomeUnknownError:
                raise
            except RpcUnavailableError as error:
                if time.monotonic() >= deadline:
                    raise
                _log.info("searching for the leader again: %s", error)
        return self._call(self.find(deadline), name, arguments, deadline)

    def find(self, deadline: float) -> ServiceClient:
        """Return a connected client of the leader; raise `LeaderNotFoundError` after `deadline`."""
        if not self._finding.acquire(timeout=max(0.0, deadline - time.monotonic())):
            raise LeaderNotFoundError(
                "another thread of this process still searches for the leader"
            )
        try:
            if self._client is None:
                self._client = self._search(deadline)
            return self._client
        finally:
            self._finding.release()

    def _call(
        self, client: ServiceClient, name: str, arguments: tuple[Any, ...], deadline: float
    ) -> Any:
        try:
            return client.call(name, *arguments, timeout=max(0.0, deadline - time.monotonic()))
        except RpcRefusedError as error:
            if error.kind == FaultKind.INTERNAL_ERROR:
                # Perhaps the Nimbus leads no longer.
                self._forget(client)
            raise
        except (RpcError, RemoteProtocolError):
            self._forget(client)
            raise

    def _forget(self, client: ServiceClient) -> None:
        if self._client is client:
            self._client = None
        # Other threads may have calls in progress.
        client.retire()

    def _search(self, deadline: float) -> ServiceClient:
        reasons: dict[str, str] = {}
        is_electing = False
        for number in range(self.rounds + 1):
            race = first_of(
                [partial(self._ask, address, deadline) for _, address in self._seeds],
                head_start=self.head_start,
                deadline=deadline,
                give_back=ServiceClient.close,
            )
            client, failures = race
            if client is not None:
                return client
            for (seed, address), error in zip(self._seeds, failures, strict=True):
                if error is not None:
                    reasons[seed] = _seed_failure(address, error)
                    is_electing |= _may_elect(error)
            pause = self._pause_after(number)
            if number == self.rounds or deadline - time.monotonic() <= pause:
                break
            self.sleep(pause)
        seeds = ", ".join(seed for seed, _ in self._seeds)
        why = "; ".join(reasons.values()) or "there was no time to ask"
        if NO_ZOOKEEPER in why:
            raise LeaderNotFoundError(_without_zookeeper(reasons))
        raise LeaderNotFoundError(
            f"Could not find leader nimbus from seed hosts [{seeds}]. Did you specify a valid list"
            f" of nimbus hosts for config nimbus.seeds? ({why})",
            is_electing=is_electing,
        )

    def _pause_after(self, number: int) -> float:
        return min(self.pause + 2.0 ** min(number, _GROWTH) / 1000, self.longest_pause)

    def _ask(self, seed: Address, deadline: float) -> ServiceClient:
        deadline = min(deadline, time.monotonic() + _SEED_SECONDS)
        client = self._client_of(seed)
        try:
            leader = client.call("getLeader", timeout=max(0.0, deadline - time.monotonic()))
            address = Address(leader.host, leader.port)
            if address == seed:
                return client
        except BaseException:
            client.close()
            raise
        client.close()
        other = self._client_of(address)
        try:
            other.connect(max(0.0, deadline - time.monotonic()))
        except RpcUnavailableError as error:
            other.close()
            raise _LeaderAwayError(f"the leader by {seed}'s word, {error}") from error
        return other

    def _client_of(self, address: Address) -> ServiceClient:
        return ServiceClient(Nimbus, address, max_frame=self.max_frame, timeout=self.timeout)


def _without_zookeeper(reasons: Mapping[str, str]) -> str:
    without = [seed for seed, reason in reasons.items() if NO_ZOOKEEPER in reason]
    remedy = reasons[without[0]].partition(f"{NO_ZOOKEEPER}: ")[2]
    others = [f"; {reason}" for seed, reason in reasons.items() if seed not in without]
    return f"Nimbus at {', '.join(without)} does not reach ZooKeeper: {remedy}{''.join(others)}"


def _may_elect(error: BaseException) -> bool:
    # A seed without ZooKeeper cannot know of an election.
    return isinstance(error, RpcRefusedError | _LeaderAwayError) and NO_ZOOKEEPER not in str(error)


def _seed_failure(seed: Address, error: BaseException) -> str:
    """Return why a seed named no leader; re-raise an unexpected error."""
    match error:
        case RemoteProtocolError():
            _log.debug("%s", error)
            return f"{seed}: what listens there is no Nimbus"
        case RpcOutcomeUnknownError():
            return (
                f"{seed}: no answer in {_SEED_SECONDS:.0f} s: a Nimbus that waits for ZooKeeper or"
                " is busy, or no Nimbus"
            )
        case StormkeeperError():
            return str(error)
        case AuthorizationException():
            return f"{seed}: {error}"
    raise error


def first_of(
    attempts: Sequence[Callable[[], T]],
    *,
    head_start: float,
    deadline: float,
    give_back: Callable[[T], None],
) -> tuple[T | None, list[BaseException | None]]:
    """Make attempts in threads until a success, or the monotonic deadline.

    Returns the first result, if any, and the attempts' errors. The next attempt begins when the
    last failed or had a head start. `give_back` takes late results.
    """
    begun: list[Future[T]] = []
    waiting: set[Future[T]] = set()
    winner: Future[T] | None = None
    while winner is None and (left := deadline - time.monotonic()) > 0:
        if len(begun) < len(attempts):
            begun.append(in_thread(attempts[len(begun)], "rpc-attempt"))
            waiting.add(begun[-1])
        elif not waiting:
            break
        secs = min(left, head_start) if len(begun) < len(attempts) else left
        ended, waiting = wait(waiting, secs, FIRST_COMPLETED)
        winner = next((one for one in ended if one.exception() is None), None)
    failures = [one.exception() if one.done() else None for one in begun]
    failures += [None] * (len(attempts) - len(begun))

    def settle(one: Future[T]) -> None:
        if one is not winner and one.exception() is None:
            give_back(one.result())

    for one in begun:
        one.add_done_callback(settle)
    return None if winner is None else winner.result(), failures
