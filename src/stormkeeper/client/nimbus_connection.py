"""A command's connection to the leading Nimbus: short waits, and errors that say what to do.

`stormkeeper.rpc.leader` finds the leader. Here a search ends after seconds, as somebody sits before
the command, or, where a Nimbus answers, when an election should be over. Storm's defaults for that
are minutes; where its keys are set to something else, they hold, as in Storm's client. Whatever a
call ends in is an error of ours: Thrift's exceptions stay here.
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
from stormkeeper.rpc.calling import Calls
from stormkeeper.rpc.leader import LeaderClient
from stormkeeper.rpc.messages import FaultKind
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

#: Seconds in which a Nimbus has to be found, where `_RETRIES` have their defaults.
FINDING_SECS: Final = 15.0
#: Keys that say how often, and how long, the seeds are asked.
_RETRIES: Final = (
    "storm.nimbus.retry.times",
    "storm.nimbus.retry.interval.millis",
    "storm.nimbus.retry.intervalceiling.millis",
)
#: Seconds that an election is waited for, beyond the session of a leader that was lost.
_ELECTION_SECS: Final = 10.0
#: Seconds between two searches meanwhile.
_PAUSE_SECS: Final = 0.5
#: Seconds that a call may take, where it does not say and `_TIMEOUT` has its default.
CALL_SECS: Final = 30.0
_TIMEOUT: Final = "storm.thrift.socket.timeout.ms"

#: How the names of methods begin that only ask.
_ASKING: Final = ("get", "is")

_REMEDY: Final = (
    "see that `storm nimbus` runs there, or name another with -c nimbus.seeds=HOST or HOST:PORT"
)

#: What Nimbus's exceptions say, in which their own message stands.
_IN_WORDS: Final[dict[type[Exception], str]] = {
    AlreadyAliveException: "{}",
    AuthorizationException: "{}",
    IllegalStateException: "{}",
    InvalidTopologyException: "{}",
    KeyAlreadyExistsException: "there is a blob {} already",
    KeyNotFoundException: "there is no blob {}; see `storm blobstore list`",
}


class NimbusConnection:
    """Calls the leading Nimbus; `connect` makes it.

    Parameters
    ----------
    client
        Finds the leader and calls it.
    finding_secs
        How long a Nimbus is looked for.
    electing_secs
        How long a leader is looked for where a Nimbus answers.
    call_secs
        How long each call may take; None: as long as it says.
    say
        Called with what is waited for.
    """

    def __init__(
        self,
        client: LeaderClient,
        *,
        finding_secs: float = FINDING_SECS,
        electing_secs: float,
        call_secs: float | None = None,
        say: Callable[[str], None],
    ) -> None:
        self._client = client
        self._finding_secs = finding_secs
        self._electing_secs = electing_secs
        self._call_secs = call_secs
        self._say = say

    @property
    def nimbus(self) -> NimbusCalls:
        """The leader's methods; each is a `call`."""
        return cast("NimbusCalls", Calls(Nimbus, self.call))

    @property
    def address(self) -> Address | None:
        """Where the leader is, as far as is known."""
        return self._client.address

    def find(self) -> None:
        """Find the leader, if that is not done; else the first call does it.

        Raises
        ------
        LeaderNotFoundError
            If nobody of ``nimbus.seeds`` knows one in time; it says what each of them said.
        """
        began = time.monotonic()
        while True:
            try:
                self._client.find(time.monotonic() + self._finding_secs)
            except LeaderNotFoundError as error:
                if not error.is_electing or time.monotonic() >= began + self._electing_secs:
                    raise LeaderNotFoundError(_with_remedy(error)) from error
                self._say("no Nimbus leads at present: waiting until one does")
                time.sleep(_PAUSE_SECS)
            else:
                return

    def call(self, name: str, *arguments: Any, timeout: float = CALL_SECS) -> Any:
        """Make a call of the leader.

        It is made once more where it was refused by a Nimbus that leads no longer, where it was not
        sent as nobody led for a moment, and, if it only asks, where its answer was lost with the
        leader.

        Parameters
        ----------
        name
            The method.
        *arguments
            In the order of the IDL; what is left out is absent.
        timeout
            Seconds that it may take, when the leader is found; ``storm.thrift.socket.timeout.ms``
            where that is set.

        Returns
        -------
        object
            What the method returns; None if that is nothing.

        Raises
        ------
        NotAliveError
            If there is no topology of that name or id.
        RefusedError
            If Nimbus refuses it for another reason that the method declares.
        RpcError
            If it was not carried out, or nobody knows; as `stormkeeper.rpc.calling.Client.call`.
        ProtocolError
            If it is too large for a message, or what came is no answer.
        """
        if self._call_secs is not None:
            timeout = self._call_secs
        self.find()
        asked = self.address
        try:
            return self._in_words(lambda: self._client.call(name, *arguments, timeout=timeout))
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
        return self._in_words(lambda: self._client.call(name, *arguments, timeout=timeout))

    def _in_words(self, call: Callable[[], Any]) -> Any:
        try:
            return call()
        except NotAliveException as error:
            name = str(error).removesuffix(" is not alive")  # Storm's words
            raise NotAliveError(
                f"there is no topology {name}; `storm list` names those that are"
            ) from error
        except LeaderNotFoundError as error:
            raise LeaderNotFoundError(_with_remedy(error), is_electing=error.is_electing) from error
        except RpcRefusedError as error:
            if error.kind != FaultKind.UNKNOWN:
                raise
            raise RefusedError(error.reason) from error
        except tuple(_IN_WORDS) as error:
            raise RefusedError(_IN_WORDS[type(error)].format(error)) from error


def _with_remedy(error: LeaderNotFoundError) -> str:
    # A Nimbus that answered needs ZooKeeper, and no other seed.
    return str(error) if "does not reach ZooKeeper" in str(error) else f"{error}; {_REMEDY}"


def _may_be_repeated(name: str, error: RpcRefusedError | RpcOutcomeUnknownError) -> bool:
    """Return whether a call may be made of the next leader that has ended so at a former one."""
    if isinstance(error, RpcRefusedError):
        return error.kind == FaultKind.INTERNAL_ERROR
    return name.startswith(_ASKING)


@contextmanager
def connect(
    conf: Conf,
    *,
    finding_secs: float | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> Iterator[NimbusConnection]:
    """Give a connection to the leading Nimbus of the cluster that a configuration is for.

    Parameters
    ----------
    conf
        Names the seeds.
    finding_secs
        How long a Nimbus is looked for; None: as long as ``storm.nimbus.retry.*`` have it, and for
        `FINDING_SECS` where they are not set. Where one answers, a leader is waited for as long as
        an election takes after a machine was lost.
    say
        Called with what is waited for.

    Raises
    ------
    ConfigError
        If one of ``nimbus.seeds`` is no address.
    LeaderNotFoundError
        If no leader is found in time.
    """
    session_secs = conf["storm.zookeeper.session.timeout"] / 1000
    changed = conf.changed()
    call_secs = conf[_TIMEOUT] / 1000 if _TIMEOUT in changed else None
    with LeaderClient.from_conf(conf) as client:
        if finding_secs is None:
            is_set = any(key in changed for key in _RETRIES)
            finding_secs = client.search_secs if is_set else FINDING_SECS
        connection = NimbusConnection(
            client,
            finding_secs=finding_secs,
            electing_secs=session_secs + _ELECTION_SECS,
            call_secs=call_secs,
            say=say,
        )
        connection.find()
        yield connection
