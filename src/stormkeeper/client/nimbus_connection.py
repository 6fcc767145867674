"""Connection of a command to the leading Nimbus, with short waits and errors that name a remedy.

Storm's client searches for minutes by default; here a search ends after seconds, or, if a Nimbus
answers, when an election should be over. ``storm.nimbus.retry.*``, if set, hold as in Storm's
client. All errors are Stormkeeper's own.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final, cast

from stormkeeper.conf import Address, Conf
from stormkeeper.errors import (
    LeaderNotFoundError,
    NotAliveError,
    RefusedError,
    RpcOutcomeUnknownError,
    RpcRefusedError,
)
from stormkeeper.rpc.leader_client import LeaderClient
from stormkeeper.rpc.message_frames import FaultKind
from stormkeeper.rpc.service_client import Calls
from stormkeeper.thrift.nimbus import (
    AlreadyAliveException,
    AuthorizationException,
    IllegalStateException,
    InvalidTopologyException,
    KeyAlreadyExistsException,
    KeyNotFoundException,
    Nimbus,
    NimbusCalls,
    NotAliveException,
)

#: Default length of the search for a Nimbus.
FINDING_SECS: Final = 15.0
_RETRIES: Final = (
    "storm.nimbus.retry.times",
    "storm.nimbus.retry.interval.millis",
    "storm.nimbus.retry.intervalceiling.millis",
)
#: Time for an election after the lost leader's session has expired.
_ELECTION_SECS: Final = 10.0
#: Pause between searches during an election.
_PAUSE_SECS: Final = 0.5
#: Default timeout of a call.
CALL_SECS: Final = 30.0
_TIMEOUT: Final = "storm.thrift.socket.timeout.ms"

#: Methods that only read.
_READ_PREFIXES: Final = ("get", "is")

_REMEDY: Final = (
    "check that `storm nimbus` runs there, or name another with -c nimbus.seeds=HOST or HOST:PORT"
)

_TEXTS: Final[dict[type[Exception], str]] = {
    AlreadyAliveException: "{}",
    AuthorizationException: "{}",
    IllegalStateException: "{}",
    InvalidTopologyException: "{}",
    KeyAlreadyExistsException: "there is a blob {} already",
    KeyNotFoundException: "there is no blob {}; see `storm blobstore list`",
}


class NimbusConnection:
    """Calls the leading Nimbus of a configuration; use `connect`."""

    def __init__(
        self,
        client: LeaderClient,
        conf: Conf,
        finding_secs: float | None,
        say: Callable[[str], None],
    ) -> None:
        changed = conf.changed()
        if finding_secs is None:
            is_set = any(key in changed for key in _RETRIES)
            finding_secs = client.search_secs if is_set else FINDING_SECS
        #: The most bytes of a message.
        self.max_frame: int = conf["nimbus.thrift.max_buffer_size"]
        self._client = client
        self._finding_secs = finding_secs
        self._electing_secs = conf["storm.zookeeper.session.timeout"] / 1000 + _ELECTION_SECS
        self._call_secs = conf[_TIMEOUT] / 1000 if _TIMEOUT in changed else None
        self._say = say

    @property
    def nimbus(self) -> NimbusCalls:
        return cast("NimbusCalls", Calls(Nimbus, self.call))

    @property
    def address(self) -> Address | None:
        """The leader's address, if known."""
        return self._client.address

    def find(self) -> None:
        """Find the leader; raises `LeaderNotFoundError` with each seed's answer."""
        began = time.monotonic()
        while True:
            try:
                self._client.find(time.monotonic() + self._finding_secs)
            except LeaderNotFoundError as error:
                if not error.is_electing or time.monotonic() >= began + self._electing_secs:
                    raise LeaderNotFoundError(_with_remedy(error)) from error
                self._say("no Nimbus leads at present: waiting for an election")
                time.sleep(_PAUSE_SECS)
            else:
                return

    def call(self, name: str, *arguments: Any, timeout: float = CALL_SECS) -> Any:
        """Call a method of the leader, with arguments in the order of the IDL.

        The next leader gets the call again if the old leader refused it, if no leader received it,
        or if it only reads and the answer was lost.

        Raises `NotAliveError` for an unknown topology, `RefusedError` if Nimbus refuses, `RpcError`
        if the call failed or its outcome is unknown, and `ProtocolError` for a message that is too
        large or invalid.
        """
        if self._call_secs is not None:
            timeout = self._call_secs
        self.find()
        asked = self.address
        try:
            return self._call_leader(name, arguments, timeout)
        except LeaderNotFoundError as error:
            if not error.is_electing:
                raise
            self.find()
        except (RpcRefusedError, RpcOutcomeUnknownError) as error:
            if not _may_be_repeated(name, error):
                raise
            self.find()
            if self.address == asked:
                raise
        return self._call_leader(name, arguments, timeout)

    def _call_leader(self, name: str, arguments: tuple[Any, ...], timeout: float) -> Any:
        try:
            return self._client.call(name, *arguments, timeout=timeout)
        except NotAliveException as error:
            name = str(error).removesuffix(" is not alive")  # Storm's words
            raise NotAliveError(f"there is no topology {name}; `storm list` shows all") from error
        except LeaderNotFoundError as error:
            raise LeaderNotFoundError(_with_remedy(error), is_electing=error.is_electing) from error
        except RpcRefusedError as error:
            if error.kind != FaultKind.UNKNOWN:
                raise
            raise RefusedError(error.reason) from error
        except tuple(_TEXTS) as error:
            raise RefusedError(_TEXTS[type(error)].format(error)) from error


def _with_remedy(error: LeaderNotFoundError) -> str:
    # The answering Nimbus needs ZooKeeper; another seed would not help.
    return str(error) if "does not reach ZooKeeper" in str(error) else f"{error}; {_REMEDY}"


def _may_be_repeated(name: str, error: RpcRefusedError | RpcOutcomeUnknownError) -> bool:
    if isinstance(error, RpcRefusedError):
        return error.kind == FaultKind.INTERNAL_ERROR
    return name.startswith(_READ_PREFIXES)


@contextmanager
def connect(
    conf: Conf,
    *,
    finding_secs: float | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> Iterator[NimbusConnection]:
    """Yield a connection to the leading Nimbus of ``nimbus.seeds``.

    `finding_secs` None: ``storm.nimbus.retry.*``, or `FINDING_SECS`. If a Nimbus answers, the wait
    for a leader lasts as long as an election. `say` gets the reason of a wait.

    Raises `ConfigError` for an invalid seed, and `LeaderNotFoundError`.
    """
    with LeaderClient.from_conf(conf) as client:
        connection = NimbusConnection(client, conf, finding_secs, say)
        connection.find()
        yield connection
