"""Client of several Pacemakers, which share nothing.

A pulse goes to one server (`pool_writes`), a delete to all. A read asks all servers, and fails only
if none answers (`pool_reads`). Storm's clients do the same, so both can share the servers.
"""

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from random import Random
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, TypeVar

from stormkeeper.conf import Address, Conf
from stormkeeper.daemon.lifecycle import Closing
from stormkeeper.errors import (
    ConfigError,
    NotAuthorizedError,
    PacemakerClosedError,
    PacemakerUnavailableError,
    StormkeeperError,
)
from stormkeeper.pacemaker.client.client_settings import ClientSettings, Role
from stormkeeper.pacemaker.client.event_loop import ClientEventLoop
from stormkeeper.pacemaker.client.pacemaker_client import (
    DEADLINE,
    RETRIES,
    TRY_TIMEOUT,
    PacemakerClient,
)
from stormkeeper.pacemaker.client.pool_reads import (
    MissingServers,
    Outcomes,
    Readings,
    ask_all,
    in_doubt,
    names_that_count,
    newest_of_each,
    stopwatch,
    without_values,
)
from stormkeeper.pacemaker.client.pool_writes import PulseSender
from stormkeeper.pacemaker.client.server_reads import (
    Heartbeat,
    Question,
    ServerChanges,
    ServerContents,
    changes_since,
    contents_below,
    copy_of,
    description_of,
    names_below,
    one_request,
)
from stormkeeper.pacemaker.wire.messages import Changes, Message, MessageType

if TYPE_CHECKING:
    from stormkeeper.thrift.pacemaker import ServerInfo

log = logging.getLogger(__name__)

_PLAIN: Final = ClientSettings()

T = TypeVar("T")


class PacemakerPool(Closing):
    """Client of all Pacemakers of a cluster, with the errors of `PacemakerClient`; thread-safe.

    Parameters
    ----------
    try_timeout, retries, deadline
        As for `PacemakerClient`; `retries` and `deadline` apply to a whole read.
    """

    def __init__(
        self,
        servers: Sequence[Address],
        *,
        name: str = "pacemaker-client",
        settings: ClientSettings = _PLAIN,
        try_timeout: float = TRY_TIMEOUT,
        retries: int = RETRIES,
        deadline: float = DEADLINE,
        random: Random | None = None,
    ) -> None:
        addresses = list(dict.fromkeys(servers))
        if not addresses:
            raise ConfigError(
                "no Pacemaker is configured: set pacemaker.servers to their HOST:PORT"
            )
        random = random or Random()
        self._try_timeout = try_timeout
        self._retries = retries
        self._deadline = deadline
        self._loop = ClientEventLoop(name)
        self._clients = {
            address: settings.client(
                address,
                name=name,
                loop=self._loop,
                try_timeout=try_timeout,
                retries=retries,
                deadline=deadline,
                random=random,
            )
            for address in addresses
        }
        self._missing = MissingServers(len(addresses))
        #: Sends the pulses; a worker's store uses the sender alone.
        self.sender = PulseSender(self._clients, random=random, retries=retries)

    @property
    def clients(self) -> Mapping[Address, PacemakerClient]:
        """Clients in the order of the configuration."""
        return MappingProxyType(self._clients)

    @property
    def silent(self) -> frozenset[Address]:
        """Servers that did not answer or refused the last read that another answered."""
        return frozenset(self._missing.failures)

    @property
    def failures(self) -> Mapping[Address, str]:
        """Reasons by server of `silent`."""
        return self._missing.failures

    def __repr__(self) -> str:
        return f"<PacemakerPool of {', '.join(map(str, self._clients))}>"

    def close(self) -> None:
        """Fail open calls with `PacemakerClosedError`."""
        for client in self._clients.values():
            client.close()
        self._loop.close()

    def send_pulse(self, path: str, details: bytes) -> None:
        """Store a pulse on a server, as `PulseSender.send_pulse` does."""
        self.sender.send_pulse(path, details)

    def get_pulse(self, path: str) -> bytes | None:
        best = self.reading(path)
        return None if best is None else best.value

    def reading(self, path: str) -> Heartbeat | None:
        elapsed = stopwatch()
        outcomes = self._read_all(lambda client: copy_of(path, client.address, elapsed))
        copies = (copy for copy in outcomes.answered.values() if copy is not None)
        return newest_of_each({path: copy} for copy in copies).get(path)

    def children(self, path: str) -> list[str]:
        """Return the sorted names directly below `path` on any server, as `read` finds names.

        Costs two small requests per server. If a server lists a name that another has deleted, ages
        are read as well.
        """
        outcomes = self._read_all(lambda _: names_below(path))
        names = outcomes.answered
        read: Outcomes[ServerContents] = Outcomes()
        if in_doubt(names):
            elapsed = stopwatch()
            read = self._ask(
                lambda client: contents_below(path, client.address, elapsed, values=False),
                # A Java Pacemaker's names are never in doubt.
                [self._clients[server] for server in names if names[server].deleted is not None],
            )
            self._missing.note(outcomes.failed | read.failed)
        return sorted(names_that_count(path, names, read))

    def read(self, path: str, *, values: bool = True, hurried: bool = False) -> Readings:
        """Read the newest pulse of every path at and below `path`, in bulk.

        Without `values` only ages and sizes are read, unless both a Java Pacemaker and a
        Stormkeeper server hold pulses, which are compared by the time in the values. With `hurried`
        there are no retries, and no try at all if every server failed just before.
        """
        elapsed = stopwatch()

        def ask(*, values: bool) -> Outcomes[ServerContents]:
            return self._read_all(
                lambda client: contents_below(path, client.address, elapsed, values=values),
                hurried=hurried,
            )

        outcomes = ask(values=values)
        if not values and _is_mixed(outcomes.answered.values()):
            outcomes = ask(values=True)
        answered = outcomes.answered
        servers = {
            server: outcomes.failed.get(server) or answered[server].info for server in self._clients
        }
        found = newest_of_each(contents.copies for contents in answered.values())
        if not values and any(some.info is None for some in answered.values()):
            found = without_values(found)
        return Readings(found, servers)

    def changes(
        self,
        path: str,
        positions: Mapping[Address, tuple[str, int]],
        unpack: Callable[[Address, Changes[str], float], T],
        *,
        values: bool,
        hurried: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> "dict[Address, ServerChanges[T] | StormkeeperError | None]":
        """Read the changes since each server's position, as `changes_since`; errors as `read`.

        A server without a position is read from its beginning, a Java Pacemaker has None.
        """

        def begin(client: PacemakerClient) -> "Question[ServerChanges[T] | None]":
            server = client.address
            return changes_since(
                path,
                positions.get(server),
                server,
                partial(unpack, server),
                values=values,
                clock=clock,
            )

        outcomes = self._read_all(begin, hurried=hurried)
        return {
            server: outcomes.failed.get(server) or outcomes.answered[server]
            for server in self._clients
        }

    def server_infos(self) -> "dict[Address, ServerInfo | StormkeeperError | None]":
        """Return each server's description, None from a Java Pacemaker, or an error."""
        outcomes = self._ask(lambda client: description_of(client.address), self._clients.values())
        return {
            server: outcomes.failed.get(server) or outcomes.answered[server]
            for server in self._clients
        }

    def delete_path(self, path: str) -> None:
        """Delete all pulses at and below `path` on all servers.

        The pulses of a server that does not answer stay until they expire. Raises
        `NotAuthorizedError` if a server refused.
        """
        request = Message(MessageType.DELETE_PATH, path=path)
        outcomes = self._ask(lambda _: one_request(request), self._clients.values())
        failures = outcomes.failed.values()
        refusals = [error for error in failures if isinstance(error, NotAuthorizedError)]
        if refusals:
            raise join_errors(refusals)
        self._check(outcomes)
        for error in failures:
            log.warning("the pulses of %s stay there until they expire: %s", path, error)

    def _read_all(
        self, question_for: Callable[[PacemakerClient], Question[T]], *, hurried: bool = False
    ) -> Outcomes[T]:
        outcomes = self._ask(question_for, self._clients.values(), hurried=hurried)
        self._check(outcomes)
        self._missing.note(outcomes.failed)
        return outcomes

    def _ask(
        self,
        question_for: Callable[[PacemakerClient], Question[T]],
        clients: Iterable[PacemakerClient],
        *,
        hurried: bool = False,
    ) -> Outcomes[T]:
        return ask_all(
            clients,
            question_for,
            try_timeout=self._try_timeout,
            deadline=self._deadline,
            retries=self._retries,
            hurried=hurried,
        )

    def _check(self, outcomes: Outcomes[T]) -> None:
        if any(isinstance(error, PacemakerClosedError) for error in outcomes.failed.values()):
            raise PacemakerClosedError(f"{self!r} is closed")
        if outcomes.answered:
            return
        # Refusals first, as they say what to configure.
        failures = sorted(
            outcomes.failed.values(), key=lambda error: not isinstance(error, NotAuthorizedError)
        )
        if isinstance(failures[0], NotAuthorizedError):
            raise join_errors(failures)
        raise PacemakerUnavailableError("no Pacemaker answered: " + "; ".join(map(str, failures)))


def _is_mixed(contents: Iterable[ServerContents]) -> bool:
    return len({some.info is None for some in contents if some.copies}) > 1


def join_errors(failures: Sequence[StormkeeperError]) -> StormkeeperError:
    first, *others = failures
    if not others:
        return first
    together = type(first)("; ".join(map(str, failures)))
    together.__cause__ = first
    return together


def connect(
    conf: Conf, *, name: str = "pacemaker-client", role: Role = "reader", **options: Any
) -> PacemakerPool:
    """Make the pool of ``pacemaker.servers``, not yet connected.

    A "writer", such as a worker, authenticates only if ``pacemaker.auth.writes`` is true. Raises
    `ConfigError` without servers, or for a wrong file of authentication or TLS.
    """
    settings = ClientSettings.of(conf, role)
    return PacemakerPool(conf.pacemaker_servers(), name=name, settings=settings, **options)
