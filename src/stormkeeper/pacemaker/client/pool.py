"""Client of several Pacemakers, which share nothing.

A pulse goes to a single server (`pool_writes`). A read asks all servers, and the newest copy counts
(`pool_reads`); a read fails only if no server answers. A delete goes to all servers. Storm's
clients work the same way, so both can share the servers.
"""

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from random import Random
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar

from stormkeeper.conf import Address
from stormkeeper.errors import (
    ConfigError,
    NotAuthorizedError,
    PacemakerClosedError,
    PacemakerUnavailableError,
    RemoteProtocolError,
    StormkeeperError,
)
from stormkeeper.pacemaker.client.client_settings import ClientSettings, Role
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
    names_that_count,
    newest_of_each,
    stopwatch,
    without_values,
)
from stormkeeper.pacemaker.client.pool_writes import (
    LOOK_SECS,
    DeleteRepair,
    PulseWriter,
    WriterPlacement,
)
from stormkeeper.pacemaker.client.server_reads import (
    Heartbeat,
    Question,
    ServerContents,
    contents_below,
    copy_of,
    names_below,
    one_request,
    server_info_of,
)
from stormkeeper.pacemaker.wire import (
    RESERVED_PATH,
    Message,
    MessageType,
)

if TYPE_CHECKING:
    from stormkeeper.conf import Conf
    from stormkeeper.thrift.pacemaker import ServerInfo

log = logging.getLogger(__name__)

#: Seconds of a write, so that a worker with a pulse every three seconds learns of a failure in
#: time.
WRITE_DEADLINE: Final = 5.0

_PLAIN: Final = ClientSettings()

T = TypeVar("T")


class PacemakerPool:
    """Client of all Pacemakers of a cluster; thread-safe.

    Parameters
    ----------
    servers
        Addresses, at least one.
    name
        Prefix of the threads' names.
    settings
        Authentication, TLS and the largest message.
    try_timeout, retries, deadline
        As for `PacemakerClient`; `retries` and `deadline` apply to a whole read.
    write_deadline
        Seconds after which a write fails.
    write_to
        The home of writes (see `WriterPlacement`); None for a random one.
    look_secs
        Seconds, on average, between checks whether the home is back.
    random
        Source of the random home and of jitter.

    Notes
    -----
    Errors are those of `PacemakerClient`. `clients` gives access to single servers.
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
        write_deadline: float = WRITE_DEADLINE,
        write_to: Address | None = None,
        look_secs: float = LOOK_SECS,
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
        self._clients = {
            address: settings.client(
                address,
                name=name,
                try_timeout=try_timeout,
                retries=retries,
                deadline=deadline,
                random=random,
            )
            for address in addresses
        }
        self._order = addresses
        self._missing = MissingServers(len(addresses))
        self._repair = DeleteRepair(self._clients, name=f"{name} repair")
        self._writer = PulseWriter(
            self._clients,
            WriterPlacement(addresses, random, home=write_to, look_secs=look_secs),
            self._repair,
            deadline=write_deadline,
            retries=retries,
        )

    @property
    def clients(self) -> Mapping[Address, PacemakerClient]:
        """Clients by server, in the order of the configuration."""
        return MappingProxyType(self._clients)

    @property
    def write_server(self) -> Address:
        """Server that gets the pulses now."""
        return self._writer.server

    @property
    def repair_defects(self) -> int:
        """Number of internal errors while missed deletes were repeated."""
        return self._repair.defects

    @property
    def silent(self) -> frozenset[Address]:
        """Servers that did not answer or refused the last read."""
        return frozenset(self._missing.failures)

    @property
    def failures(self) -> Mapping[Address, str]:
        """Reasons by server of `silent`."""
        return self._missing.failures

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<PacemakerPool of {', '.join(map(str, self._order))}>"

    def close(self) -> None:
        """Close all clients; open calls raise `PacemakerClosedError`."""
        self._repair.close()
        for client in self._clients.values():
            client.close()

    def send_pulse(self, path: str, details: bytes) -> None:
        """Store a pulse on a server; see `PulseWriter.send_pulse`."""
        try:
            self._writer.send_pulse(path, details)
        except PacemakerClosedError:
            raise PacemakerClosedError(f"{self!r} is closed") from None

    def get_pulse(self, path: str) -> bytes | None:
        """Return the newest pulse of `path` on any server, or None."""
        best = self.reading(path)
        return None if best is None else best.value

    def reading(self, path: str) -> Heartbeat | None:
        """Return the newest pulse of `path` with age and server, or None."""
        elapsed = stopwatch()
        answers = self._ask_all(lambda client: copy_of(path, client.address, elapsed))
        return newest_of_each({path: copy} for copy in answers if copy is not None).get(path)

    def children(self, path: str) -> list[str]:
        """Return the sorted names directly below `path` on any server, as `read` finds names.

        Costs two small requests per server, and two more per name that one server lists and another
        has deleted. Pulses are read only if that is not enough.
        """
        if len(self._clients) == 1:
            request = Message(MessageType.GET_ALL_NODES_FOR_PATH, path=path)
            (answer,) = self._ask_all(lambda _: one_request(request))
            return sorted(set(answer.nodes or ()))
        outcomes = self._outcomes_of_all(lambda _: names_below([path]))
        names = {server: answer[path] for server, answer in outcomes.answered.items()}
        missed = dict(outcomes.failed)

        def ask(
            question_for: Callable[[PacemakerClient], Question[T]],
            clients: Iterable[PacemakerClient],
        ) -> Outcomes[T]:
            outcomes = self._ask_until_answered(question_for, clients)
            missed.update(outcomes.failed)
            return outcomes

        found = names_that_count(path, names, self._clients, ask)
        self._missing.note(missed)
        return sorted(found)

    def read(self, path: str, *, values: bool = True, hurried: bool = False) -> Readings:
        """Read the newest pulse of every path at and below `path`, in bulk.

        Without `values` only ages and sizes are read, unless both a Java Pacemaker and a
        Stormkeeper server hold pulses: these are compared by the time in their values. With
        `hurried` there are no retries, and no try at all if every server failed just before.
        """
        elapsed = stopwatch()

        def ask(*, values: bool) -> Outcomes[ServerContents]:
            return self._outcomes_of_all(
                lambda client: contents_below(path, client.address, elapsed, values=values),
                hurried=hurried,
            )

        outcomes = ask(values=values)
        if not values and _is_mixed(outcomes.answered.values()):
            outcomes = ask(values=True)
        answered = outcomes.answered
        servers: dict[Address, ServerInfo | StormkeeperError | None] = {
            server: answered[server].info if server in answered else outcomes.failed[server]
            for server in self._order
        }
        found = newest_of_each(
            answered[server].copies for server in self._order if server in answered
        )
        if not values and any(some.info is None for some in answered.values()):
            found = without_values(found)
        return Readings(found, servers)

    def server_infos(self) -> "dict[Address, ServerInfo | StormkeeperError | None]":
        """Return each server's description of itself, None from Java Pacemakers, or an error."""
        request = Message(MessageType.GET_PULSE, path=RESERVED_PATH)
        outcomes = self._ask_until_answered(lambda _: one_request(request), self._clients.values())
        infos: dict[Address, ServerInfo | StormkeeperError | None] = {}
        for address in self._order:
            if address in outcomes.failed:
                infos[address] = outcomes.failed[address]
                continue
            try:
                infos[address] = server_info_of(address, outcomes.answered[address].pulse)
            except RemoteProtocolError as error:
                infos[address] = error
        return infos

    def delete_path(self, path: str) -> None:
        """Delete all pulses at and below `path` on all servers.

        A server that does not answer gets the delete later, also after a
        `PacemakerUnavailableError`. Raises `NotAuthorizedError` if a server refused: its pulses
        stay.
        """
        request = Message(MessageType.DELETE_PATH, path=path)
        outcomes = self._ask_until_answered(lambda _: one_request(request), self._clients.values())
        refusals: list[NotAuthorizedError] = []
        for address, error in outcomes.failed.items():
            if isinstance(error, NotAuthorizedError):
                refusals.append(error)
            elif not isinstance(error, PacemakerClosedError):
                log.warning("the delete of %s will be repeated: %s", path, error)
                self._repair.remember(address, path)
        if refusals:
            raise join_errors(refusals)
        self._check(outcomes)

    def _ask_all(self, question_for: Callable[[PacemakerClient], Question[T]]) -> list[T]:
        answers = self._outcomes_of_all(question_for).answered
        return [answers[server] for server in self._order if server in answers]

    def _outcomes_of_all(
        self, question_for: Callable[[PacemakerClient], Question[T]], *, hurried: bool = False
    ) -> Outcomes[T]:
        outcomes = self._ask_until_answered(question_for, self._clients.values(), hurried=hurried)
        self._check(outcomes)
        self._missing.note(outcomes.failed)
        return outcomes

    def _ask_until_answered(
        self,
        question_for: Callable[[PacemakerClient], Question[T]],
        clients: Iterable[PacemakerClient],
        *,
        hurried: bool = False,
    ) -> Outcomes[T]:
        """Ask all servers, with retries until a server answers or refuses; once if `hurried`."""
        clients = list(clients)
        started = time.monotonic()
        end = started + self._deadline
        tries: Counter[Address] = Counter()

        def begin(client: PacemakerClient) -> Question[T]:
            # For each try, as deletes sent ahead of a failed try have failed too.
            self._repair.send_missed_deletes(client)
            return question_for(client)

        for _ in range(1 if hurried else 1 + self._retries):
            outcomes = ask_all(
                clients,
                begin,
                try_timeout=self._try_timeout,
                deadline=max(0.0, end - time.monotonic()),
                tries=tries,
                started=started,
                hurried=hurried,
            )
            final = (NotAuthorizedError, PacemakerClosedError)
            if (
                outcomes.answered
                or any(isinstance(error, final) for error in outcomes.failed.values())
                or time.monotonic() >= end
            ):
                break
        return outcomes

    def _check(self, outcomes: Outcomes[T]) -> None:
        if any(isinstance(error, PacemakerClosedError) for error in outcomes.failed.values()):
            raise PacemakerClosedError(f"{self!r} is closed")
        if outcomes.answered:
            return
        failures = [outcomes.failed[server] for server in self._order if server in outcomes.failed]
        # Refusals first, as they say what to configure.
        failures.sort(key=lambda error: not isinstance(error, NotAuthorizedError))
        if isinstance(failures[0], NotAuthorizedError):
            raise join_errors(failures)
        raise PacemakerUnavailableError("no Pacemaker answered: " + "; ".join(map(str, failures)))


def _is_mixed(contents: Iterable[ServerContents]) -> bool:
    return len({some.info is None for some in contents if some.copies}) > 1


def join_errors(failures: Sequence[StormkeeperError]) -> StormkeeperError:
    """Join errors into an error of the first type."""
    first, *others = failures
    if not others:
        return first
    together = type(first)("; ".join(map(str, failures)))
    together.__cause__ = first
    return together


def connect(
    conf: "Conf", *, name: str = "pacemaker-client", role: Role = "reader", **options: Any
) -> PacemakerPool:
    """Make the pool of ``pacemaker.servers``, not yet connected, with options of `PacemakerPool`.

    A "writer", such as a worker, authenticates only if ``pacemaker.auth.writes`` is true. Raises
    `ConfigError` if no Pacemaker is configured, or a file of authentication or TLS is missing or
    wrong.
    """
    settings = ClientSettings.of(conf, role)
    return PacemakerPool(conf.pacemaker_servers(), name=name, settings=settings, **options)
