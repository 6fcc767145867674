"""Several Pacemakers as one.

Pacemakers share nothing. A pulse is written to one of them, chosen at random, and to another while
that one fails (`pulse_writer`). A read asks all servers at once, and of several copies the newest
counts (`readings`). A delete goes to all. Storm's own clients do the same, so both can share the
servers.

- A read takes as long as the slowest healthy server; `fanout` says what the others cost. If some
  servers do not answer, the read returns what the others hold, and a warning is logged. If none
  answers, that is an error; if one of them refuses, it is a refusal.
- A delete that a server missed is sent again when the server is back (`missed_deletes`).
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
from stormkeeper.pacemaker.client.pool_writes import LOOK_SECS, DeleteRepair, Placement, PulseWriter
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

#: Seconds that a write takes at most. A worker that beats every three seconds then knows in time
#: that no server took its pulse.
WRITE_DEADLINE: Final = 5.0

#: Without authentication and TLS.
_PLAIN: Final = ClientSettings()

T = TypeVar("T")


class PacemakerPool:
    """Speaks with all Pacemakers of a cluster; safe for many threads.

    Parameters
    ----------
    servers
        Where they listen; at least one.
    name
        ListedNames the clients' threads.
    settings
        How to talk to the servers.
    try_timeout, retries, deadline
        As for `PacemakerClient`; `retries` and `deadline` are those of a whole read.
    write_deadline
        Seconds after which a write has failed.
    write_to
        The server that is written to; None for one chosen at random.
    look_secs
        Seconds, on average, between two checks whether the usual server is back.
    random
        Source of that choice, and of the jitter between tries.

    Notes
    -----
    The errors are those of `PacemakerClient`. `clients` has the client of each server, for
    requests to one server, such as changes since a revision.
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
            Placement(addresses, random, home=write_to, look_secs=look_secs),
            self._repair,
            deadline=write_deadline,
            retries=retries,
        )

    @property
    def clients(self) -> Mapping[Address, PacemakerClient]:
        """The client of each server, in the order of the configuration."""
        return MappingProxyType(self._clients)

    @property
    def write_server(self) -> Address:
        """The server that writes go to at present."""
        return self._writer.server

    @property
    def repair_defects(self) -> int:
        """How often a defect of Stormkeeper kept a missed delete from being made good."""
        return self._repair.defects

    @property
    def silent(self) -> frozenset[Address]:
        """The servers that did not answer the last read, or refused it."""
        return frozenset(self._missing.failures)

    @property
    def failures(self) -> Mapping[Address, str]:
        """The servers of `silent`, each with the reason."""
        return self._missing.failures

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<PacemakerPool of {', '.join(map(str, self._order))}>"

    def close(self) -> None:
        """Close every client. Calls that wait end with `PacemakerClosedError`."""
        self._repair.close()
        for client in self._clients.values():
            client.close()

    # --- writing to one --------------------------------------------------------------------------

    def send_pulse(self, path: str, details: bytes) -> None:
        """Store `details` as the newest pulse of `path` on one server."""
        try:
            self._writer.send_pulse(path, details)
        except PacemakerClosedError:
            raise PacemakerClosedError(f"{self!r} is closed") from None

    # --- asking all ------------------------------------------------------------------------------

    def get_pulse(self, path: str) -> bytes | None:
        """Return the newest pulse of `path` on any server; None if it has none, or was deleted."""
        best = self.reading(path)
        return None if best is None else best.value

    def reading(self, path: str) -> Heartbeat | None:
        """Return what `get_pulse` does, with its age and where it is; None if there is none."""
        elapsed = stopwatch()
        answers = self._ask_all(lambda client: copy_of(path, client.address, elapsed))
        return newest_of_each({path: copy} for copy in answers if copy is not None).get(path)

    def children(self, path: str) -> list[str]:
        """Return the names directly below `path` on any server, sorted, each once.

        `read` has pulses at or below exactly these names. A listing costs two small requests to
        each server, and two more for each name that one server lists and below which another
        server has deletions. Pulses are read only if that does not settle it.
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
        """Return the newest pulse of every path at and below `path`, and which servers answered.

        This is how to read many: our servers give them by the thousand.

        Parameters
        ----------
        path
            Root of the read.
        values
            Whether to read the values, too. Ages are enough to see who is alive. If a Java
            Pacemaker and one of ours both hold pulses, the values are read in any case: the Java
            Pacemaker tells no ages, so pulses are compared by the time in their values.
        hurried
            Whether it fails where no server answers at the first try, and at once where all have
            failed just before: for who asks again soon, and has other things to do.
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
        """Ask every server who it is.

        Returns
        -------
        By server, what it tells of itself: None if it is not one of ours, or the error that came
        instead of an answer.
        """
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

    # --- deleting from all -----------------------------------------------------------------------

    def delete_path(self, path: str) -> None:
        """Delete every pulse at and below `path` on every server.

        If a server does not answer, the delete is remembered, and made good when it does. This
        holds also after a `PacemakerUnavailableError`, which says that no server answered.

        Raises
        ------
        NotAuthorizedError
            If any server refused. Its pulses stay.
        """
        request = Message(MessageType.DELETE_PATH, path=path)
        outcomes = self._ask_until_answered(lambda _: one_request(request), self._clients.values())
        refusals: list[NotAuthorizedError] = []
        for address, error in outcomes.failed.items():
            if isinstance(error, NotAuthorizedError):
                refusals.append(error)
            elif not isinstance(error, PacemakerClosedError):
                log.warning("the delete of %s is to be made good: %s", path, error)
                self._repair.remember(address, path)
        if refusals:
            raise together(refusals)
        self._check(outcomes)

    # --- asking ----------------------------------------------------------------------------------

    def _ask_all(self, question_for: Callable[[PacemakerClient], Question[T]]) -> list[T]:
        """Return the answers of the servers that answer, in their order; at least one."""
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
        """Ask all, again and again until one answers or refuses, or tries or time are used up.

        Who is in a hurry asks once.
        """
        clients = list(clients)
        started = time.monotonic()
        end = started + self._deadline
        tries: Counter[Address] = Counter()

        def begin(client: PacemakerClient) -> Question[T]:
            # Each time, as what went ahead of a try has failed with it.
            self._repair.make_good(client)
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
        """Raise an error if no server answered, or the pool is closed."""
        if any(isinstance(error, PacemakerClosedError) for error in outcomes.failed.values()):
            raise PacemakerClosedError(f"{self!r} is closed")
        if outcomes.answered:
            return
        failures = [outcomes.failed[server] for server in self._order if server in outcomes.failed]
        # Refusals come first: they say what to configure.
        failures.sort(key=lambda error: not isinstance(error, NotAuthorizedError))
        if isinstance(failures[0], NotAuthorizedError):
            raise together(failures)
        raise PacemakerUnavailableError("no Pacemaker answered: " + "; ".join(map(str, failures)))


def _is_mixed(contents: Iterable[ServerContents]) -> bool:
    """Whether servers of ours and of Storm's both hold something."""
    return len({some.info is None for some in contents if some.copies}) > 1


def together(failures: Sequence[StormkeeperError]) -> StormkeeperError:
    """Return an error of the first one's type that names every server that failed."""
    first, *others = failures
    if not others:
        return first
    together = type(first)("; ".join(map(str, failures)))
    together.__cause__ = first
    return together


def connect(
    conf: "Conf", *, name: str = "pacemaker-client", role: Role = "reader", **options: Any
) -> PacemakerPool:
    """Return the pool that the configuration describes; nothing is connected yet.

    Parameters
    ----------
    conf
        Gives ``pacemaker.servers``, and how to talk to them (`settings.KEYS`).
    name
        ListedNames the threads.
    role
        A "writer", such as a worker, authenticates only where ``pacemaker.auth.writes`` is true.
    options
        Further arguments of `PacemakerPool`.

    Raises
    ------
    ConfigError
        If no Pacemaker is configured, or a file that authentication or TLS needs is missing or
        wrong.
    """
    settings = ClientSettings.of(conf, role)
    return PacemakerPool(conf.pacemaker_servers(), name=name, settings=settings, **options)
