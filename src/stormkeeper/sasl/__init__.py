"""Authentication: JAAS files, and the interface of SASL mechanisms without I/O.

A mechanism has a client's and a server's half: tokens in, tokens out (RFC 4422).
"""

from typing import Final, Protocol

SAME_METHOD: Final = "is pacemaker.auth.method the same at both ends?"


class Mechanism(Protocol):
    """The client's or the server's half of a single authentication.

    Without I/O, but GSSAPI's client may ask Kerberos servers for a ticket.
    """

    @property
    def name(self) -> str:
        """The registered name: "DIGEST-MD5", "SCRAM-SHA-256" or "GSSAPI"."""

    @property
    def complete(self) -> bool:
        """Whether the other side has authenticated."""

    @property
    def authorization_id(self) -> str | None:
        """The client's name in a complete server half, else None.

        Storm's DIGEST-MD5 clients choose any name.
        """

    def start(self) -> bytes | None:
        """Return the first token if this half begins, else None; raises as `step`."""

    def step(self, token: bytes) -> bytes | None:
        """Process the other side's next token; returns the answer, or None.

        Raises `AuthenticationError`, safe to log: the connection must end.
        """
