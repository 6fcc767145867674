"""Who may do what on a Pacemaker, and how a client proves who it is; without I/O.

The rules of the configuration are one value, a `Policy`. A client authenticates once, in the order
of its mechanism; anything out of order ends the connection. The tokens appear in no log.

The conversation (Storm's; SCRAM, which is ours, goes like DIGEST)::

    DIGEST    client: control SASL_TOKEN_REQUEST    server: token
              client: token                         server: token, control SASL_COMPLETE
    KERBEROS  client: token …                       server: token …
              client: token                         server: control SASL_COMPLETE, twice
"""

import hashlib
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Self

from stormkeeper.conf import Conf
from stormkeeper.errors import AuthenticationError, ConfigError, RemoteProtocolError
from stormkeeper.pacemaker.wire import Message, MessageType
from stormkeeper.pacemaker.wire.handshake import (
    Control,
    control_frame,
    read_control,
    read_token,
    token_frame,
)
from stormkeeper.sasl import Mechanism, credentials, methods
from stormkeeper.sasl.login_file import login
from stormkeeper.sasl.mechanism import SAME_METHOD

_log = logging.getLogger(__name__)

#: Methods for which the JAAS file holds passwords; for KERBEROS it names a keytab.
_WITH_PASSWORDS: Final = ("DIGEST", "SCRAM")
_COMPLETE: Final = control_frame(Control.SASL_COMPLETE)


def _nobody(authorization_id: str) -> bool:  # noqa: ARG001
    return False


@dataclass(frozen=True, slots=True)
class Policy:
    """What a client may do before it has authenticated, and how it does that.

    Parameters
    ----------
    method
        ``pacemaker.auth.method``. With NONE everyone may do everything; with any other, reading
        is for those who have authenticated.
    mechanism
        Makes the server's half of one authentication; None with NONE.
    is_authorised
        Whether somebody who has proved who they are may read.
    authenticates_writers
        Whether writing and deleting, too, are for those who have authenticated.
    handshake_timeout
        Seconds that a client has to authenticate, once it has begun to.
    fingerprint
        A hash of the JAAS file, which does not show the passwords in it. When it changes, clients
        must authenticate anew.
    keytab
        A hash of the keytab that the JAAS file names. When it changes, clients stay authenticated:
        a service's key is renewed as a matter of course, and has nothing to do with theirs.
    """

    method: str = "NONE"
    mechanism: Callable[[], Mechanism] | None = None
    is_authorised: Callable[[str], bool] = _nobody
    authenticates_writers: bool = False
    handshake_timeout: float = 10.0
    fingerprint: bytes = field(default=b"", repr=False)
    keytab: bytes = field(default=b"", repr=False)

    @property
    def everyone_may_read(self) -> bool:
        """Whether reading needs no authentication."""
        return self.mechanism is None

    @property
    def everyone_may_write(self) -> bool:
        """Whether writing and deleting need no authentication."""
        return self.mechanism is None or not self.authenticates_writers

    @classmethod
    def from_conf(cls, conf: Conf) -> Self:
        """Read the policy of a configuration, and the files that this names.

        Raises
        ------
        ConfigError
            When the JAAS file or something in it is missing or wrong, or writers shall
            authenticate and there is no method by which they could.
        """
        method: str = conf["pacemaker.auth.method"]
        authenticates_writers: bool = conf["pacemaker.auth.writes"]
        mechanism = methods.server_mechanism(conf)
        if mechanism is None and (authenticates_writers or method != "NONE"):
            raise ConfigError(
                "pacemaker.auth.writes: writers can only authenticate where there is a method: set"
                " pacemaker.auth.method to DIGEST, KERBEROS or SCRAM, or pacemaker.auth.writes to"
                " false"
            )
        return cls(
            method=method,
            mechanism=mechanism,
            is_authorised=lambda name: methods.authorised(conf, name),
            authenticates_writers=authenticates_writers,
            handshake_timeout=conf["pacemaker.handshake.timeout.secs"],
            fingerprint=_fingerprint(conf),
            keytab=_keytab(conf),
        )


def _fingerprint(conf: Conf) -> bytes:
    """Return a hash of the JAAS file; warn if others can read passwords in it."""
    file, method = methods.login_file(conf), conf["pacemaker.auth.method"]
    if file is None or method == "NONE":
        return b""
    path = file.path
    try:
        if method in _WITH_PASSWORDS and path.stat().st_mode & 0o077:
            _log.warning(
                "%s, which holds passwords, can be read by others than its owner: chmod 600", path
            )
        return hashlib.sha256(path.read_bytes()).digest()
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error


def _keytab(conf: Conf) -> bytes:
    """Return a hash of the server's keytab, if the JAAS file names one."""
    if conf["pacemaker.auth.method"] != "KERBEROS":
        return b""
    path = login(conf, methods.SERVER_SECTION).options.get("keyTab", "").removeprefix("FILE:")
    try:
        return hashlib.sha256(Path(path).read_bytes()).digest() if path else b""
    except OSError:
        return b""  # who takes the key out of it says what is wrong


class Authentication:
    """The conversation with one client, from its first message about that.

    Parameters
    ----------
    policy
        Has the method and its mechanism.
    """

    __slots__ = ("_mechanism", "_policy", "authorization_id", "user")

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        #: None before it has begun and after its end.
        self._mechanism: Mechanism | None = None
        #: Who the client is, at the end.
        self.authorization_id: str | None = None
        #: The same for people.
        self.user = ""

    def received(self, message: Message) -> bytes:
        """Take a client's message; return the frames of the answer, of which there may be none.

        Raises
        ------
        AuthenticationError
            If the client failed to authenticate, or is set to another method.
        RemoteProtocolError
            If the message is malformed or out of order.
        """
        mechanism = self._mechanism
        if message.type == MessageType.CONTROL_MESSAGE:
            code = read_control(message)
            if code is not Control.SASL_TOKEN_REQUEST:
                raise RemoteProtocolError(f"control message {code.name} out of order")
            if mechanism is not None or self.authorization_id is not None:
                raise RemoteProtocolError("asked to authenticate for a second time")
            token = self._begin().start()
            if token is None:
                raise AuthenticationError(
                    f"the client asked for a SASL token and is to send the first; {SAME_METHOD}"
                )
            return token_frame(token)
        token = read_token(message)
        if self.authorization_id is not None:
            raise RemoteProtocolError("SASL token after the end of the authentication")
        if mechanism is None:
            mechanism = self._begin()
            if mechanism.start() is not None:
                raise AuthenticationError(
                    f"a SASL token came before it was asked for, as with KERBEROS; {SAME_METHOD}"
                )
        answer = mechanism.step(token)
        frames = b"" if answer is None else token_frame(answer)
        if not mechanism.complete:
            return frames
        self.authorization_id = mechanism.authorization_id or ""
        self.user = credentials.shown(mechanism)
        self._mechanism = None
        # With Storm's KERBEROS there is no token left to send, and the end is told twice.
        return frames + _COMPLETE if frames else _COMPLETE + _COMPLETE

    def _begin(self) -> Mechanism:
        assert self._policy.mechanism is not None
        self._mechanism = mechanism = self._policy.mechanism()
        return mechanism
