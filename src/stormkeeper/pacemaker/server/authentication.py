"""How a client says who it is: the tokens of a mechanism, in their order; without I/O.

A client authenticates once, in the order of its mechanism; anything out of order ends the
connection. The tokens appear in no log.

The conversation (Storm's; SCRAM, which is ours, goes like DIGEST)::

    DIGEST    client: control SASL_TOKEN_REQUEST    server: token
              client: token                         server: token, control SASL_COMPLETE
    KERBEROS  client: token …                       server: token …
              client: token                         server: control SASL_COMPLETE, twice
"""

from typing import Final

from stormkeeper.errors import AuthenticationError, RemoteProtocolError
from stormkeeper.pacemaker.server.access import Policy
from stormkeeper.pacemaker.wire import Message, MessageType
from stormkeeper.pacemaker.wire.handshake import (
    Control,
    control_frame,
    read_control,
    read_token,
    token_frame,
)
from stormkeeper.sasl import Mechanism, credentials
from stormkeeper.sasl.mechanism import SAME_METHOD

_COMPLETE: Final = control_frame(Control.SASL_COMPLETE)


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
