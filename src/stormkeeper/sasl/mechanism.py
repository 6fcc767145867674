"""What every mechanism's two halves look like: tokens in, tokens out (RFC 4422)."""

from typing import Final, Protocol

#: What a message asks at its end where the other side speaks another mechanism.
SAME_METHOD: Final = "is pacemaker.auth.method the same at both ends?"


class Mechanism(Protocol):
    """One half, client's or server's, of one authentication; not to be used for a second.

    It does no I/O of its own, but for GSSAPI's client half, which may ask the Kerberos servers for
    a ticket.
    """

    @property
    def name(self) -> str:
        """The registered name: "DIGEST-MD5", "SCRAM-SHA-256" or "GSSAPI"."""

    @property
    def complete(self) -> bool:
        """Whether the authentication succeeded; only this proves who the other side is."""

    @property
    def authorization_id(self) -> str | None:
        """The client's name, in a server's half that is complete; else None.

        With GSSAPI the principal, with SCRAM the user. With DIGEST-MD5 as Storm uses it a name
        that the client chose: what it proved is that it knows the password.
        """

    def start(self) -> bytes | None:
        """Return the first token if this half speaks first, else None.

        Raises
        ------
        AuthenticationError
            As in `step`.
        """

    def step(self, token: bytes) -> bytes | None:
        """Take the other side's next token; return what to answer, or None for nothing.

        Raises
        ------
        AuthenticationError
            When the other side does not prove who it is, or says what the mechanism has no place
            for. The message is safe to log: neither secrets nor control characters are in it. The
            authentication is over then, and so should the connection be.
        """
