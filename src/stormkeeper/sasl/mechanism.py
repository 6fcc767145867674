"""The interface of a SASL mechanism's halves: tokens in, tokens out (RFC 4422)."""

from typing import Final, Protocol

#: End of a message about a peer with another mechanism.
SAME_METHOD: Final = "is pacemaker.auth.method the same at both ends?"


class Mechanism(Protocol):
    """The client's or the server's half of a single authentication.

    Does no I/O, except that GSSAPI's client half may ask Kerberos servers for a ticket.
    """

    @property
    def name(self) -> str:
        """The registered name: "DIGEST-MD5", "SCRAM-SHA-256" or "GSSAPI"."""

    @property
    def complete(self) -> bool:
        """Whether the other side has authenticated."""

    @property
    def authorization_id(self) -> str | None:
        """The client's name, in a complete server half; else None.

        With GSSAPI the principal, with SCRAM the user; with Storm's DIGEST-MD5 a name of the
        client's choice, which knows the password.
        """

    def start(self) -> bytes | None:
        """Return the first token if this half begins, else None.

        Raises `AuthenticationError` as `step` does.
        """

    def step(self, token: bytes) -> bytes | None:
        """Process the other side's next token; returns the answer, or None.

        Raises
        ------
        AuthenticationError
            The other side does not authenticate or violates the mechanism. The message is safe to
            log. The authentication is over, and the connection must end.
        """
