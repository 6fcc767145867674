"""Authentication: JAAS files, and SASL mechanisms without I/O: tokens in, tokens out (RFC 4422)."""

from collections.abc import Callable
from typing import Final, NoReturn

from stormkeeper.errors import AuthenticationError

SAME_METHOD: Final = "is pacemaker.auth.method the same at both ends?"


class Mechanism:
    """The client's or the server's half of a single authentication.

    Without I/O, but GSSAPI's client may ask Kerberos servers for a ticket.
    """

    #: The registered name: "DIGEST-MD5", "SCRAM-SHA-256" or "GSSAPI".
    name: str

    def __init__(self, first: Callable[[bytes], bytes | None] | None = None) -> None:
        #: Whether the other side has authenticated.
        self.complete = False
        #: The client's name in a complete server half. Storm's DIGEST-MD5 clients choose any name.
        self.authorization_id: str | None = None
        #: Processes the next token. A step that another token follows sets its successor.
        self._next = first or _refuse

    def start(self) -> bytes | None:
        """Return the first token if this half begins, else None; raises as `step`."""
        return None

    def step(self, token: bytes) -> bytes | None:
        """Process the other side's next token; returns the answer, or None.

        Raises `AuthenticationError`, safe to log: the connection must end.
        """
        step, self._next = self._next, _refuse
        return step(token)


def _refuse(_: bytes) -> NoReturn:
    raise AuthenticationError("a token came after the end of the authentication")
