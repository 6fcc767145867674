"""What ZooKeeper, kazoo and sockets say when something fails, in our errors and in words.

The rule of all of it: a request that was never sent was not carried out, and never will be
(`StateUnavailableError`); of one that was, and had no answer, nobody knows (`OutcomeUnknownError`).
"""

import ssl
from collections.abc import Sequence
from typing import NamedTuple

from kazoo import exceptions as kazoo_errors
from kazoo.handlers.threading import KazooTimeoutError

from stormkeeper.errors import (
    AccessDeniedError,
    BadVersionError,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    OutcomeUnknownError,
    StateAuthenticationError,
    StateError,
)

#: A ZooKeeper server hangs up on a request above jute.maxbuffer, by default 1 MiB less one byte.
_LARGE_REQUEST = 1_000_000

#: After these nobody knows whether the request was carried out.
_UNKNOWN_OUTCOME = (
    kazoo_errors.ConnectionLoss,
    kazoo_errors.SessionExpiredError,
    kazoo_errors.SessionMovedError,
    kazoo_errors.OperationTimeoutError,
    kazoo_errors.RequestTimeoutError,
    kazoo_errors.ThrottledOpError,
)

#: What a server refuses whoever asks, our error for it, and why in words.
_REFUSALS: tuple[tuple[type[Exception], type[StateError], str], ...] = (
    (kazoo_errors.NoNodeError, NoNodeError, "there is no such node"),
    (kazoo_errors.NodeExistsError, NodeExistsError, "there is such a node already"),
    (kazoo_errors.BadVersionError, BadVersionError, "it has changed meanwhile"),
    (kazoo_errors.NotEmptyError, NotEmptyError, "it has children"),
    (
        kazoo_errors.NoChildrenForEphemeralsError,
        StateError,
        "its parent is ephemeral and can have no children",
    ),
    (
        kazoo_errors.MarshallingError,
        StateError,
        "a value is not bytes, or is not what ZooKeeper's protocol has a place for",
    ),
)


class ConnectionLostError(OutcomeUnknownError):
    """The connection broke while a call was under way; the call may be repeated if that is safe."""


def is_outcome_unknown(error: Exception) -> bool:
    """Return whether the connection broke before the answer came."""
    return isinstance(error, _UNKNOWN_OUTCOME)


def translated(
    error: Exception,
    what: str,
    path: str,
    ensemble: str,
    *,
    identities: Sequence[str] = (),
    size: int = 0,
) -> StateError:
    """Return our error for what kazoo raises in place of an answer.

    Parameters
    ----------
    error
        What it raises.
    what, path, ensemble
        For messages: "read", "/storm/assignments", "zk-1:2181".
    identities
        Who we say we are: "digest:storm:…=".
    size
        Bytes of the value that was sent; too many of them can be why a connection is lost.
    """
    if is_outcome_unknown(error):
        return ConnectionLostError(
            f"cannot {what} {path}: the connection to ZooKeeper at {ensemble} was lost meanwhile"
            f" ({type(error).__name__}); it may have been done or not{_size_hint(size)}"
        )
    if not isinstance(error, kazoo_errors.KazooException):
        return OutcomeUnknownError(
            f"cannot {what} {path}: the answer of ZooKeeper at {ensemble} cannot be read"
            f" ({error!r})"
        )
    return _refusal(error, what, path, identities)


def _refusal(error: Exception, what: str, path: str, identities: Sequence[str]) -> StateError:
    doing = f"cannot {what} {path}"
    for refused, ours, reason in _REFUSALS:
        if isinstance(error, refused):
            return ours(f"{doing}: {reason}")
    if isinstance(error, kazoo_errors.NoAuthError):
        return AccessDeniedError(
            f"{doing}: the node's ACL does not allow it to this client {who(identities)}"
        )
    if isinstance(error, kazoo_errors.InvalidACLError):
        return StateAuthenticationError(
            f"{doing}: ZooKeeper does not take the ACL that the node would get from this client"
            f" {who(identities)}: an ACL needs a user that the servers know, and"
            " storm.zookeeper.superACL a scheme that they have"
        )
    if isinstance(error, kazoo_errors.SessionClosedRequireSaslError | kazoo_errors.AuthFailedError):
        return StateAuthenticationError(
            f"{doing}: ZooKeeper serves only clients that authenticate in its way, and not this"
            f" client {who(identities)}"
        )
    return StateError(f"{doing}: ZooKeeper refused ({type(error).__name__})")


def who(identities: Sequence[str]) -> str:
    """Return, in parentheses, who we say we are."""
    if not identities:
        return "(which does not authenticate: see storm.zookeeper.auth.scheme)"
    return f"({' and '.join(identities)})"


class Failure(NamedTuple):
    """Why a connection was not made, in words."""

    reason: str

    #: What to do about it; None where a server may simply not run.
    advice: str | None = None

    def __str__(self) -> str:
        return self.reason if self.advice is None else f"{self.reason}: {self.advice}"


def failure_to_connect(error: Exception) -> Failure:
    """Return in words why a connection was not made."""
    # kazoo puts its own in front of a socket's, and only a part of the words in it.
    cause = error.__context__ if isinstance(error.__context__, OSError) else error
    if isinstance(cause, ssl.SSLCertVerificationError):
        return Failure(
            f"the server's certificate is not trusted: {cause.verify_message.rstrip('.')}",
            "check storm.zookeeper.ssl.truststore.path and"
            " storm.zookeeper.ssl.hostnameVerification",
        )
    if isinstance(cause, ssl.SSLError):
        reason = getattr(cause, "reason", None) or cause
        return Failure(
            f"no TLS with the server: {reason}",
            "check that its port is the one for TLS, and storm.zookeeper.ssl.keystore.path",
        )
    if isinstance(cause, OSError):
        return Failure(cause.strerror or str(cause) or type(cause).__name__)
    if isinstance(cause, KazooTimeoutError):
        return Failure("the server accepted the connection and did not answer")
    return Failure(str(cause) or type(cause).__name__)


def failure_to_resolve(host: str, error: Exception) -> Failure:
    """Return in words why there is no address for `host`."""
    reason = getattr(error, "strerror", None) or error
    return Failure(
        f"the name {host} does not resolve ({reason})", "check storm.zookeeper.servers and the DNS"
    )


def _size_hint(size: int) -> str:
    if size < _LARGE_REQUEST:
        return ""
    return (
        f"; what was sent has {size} bytes, and a server hangs up on more than its jute.maxbuffer"
        " (1 MiB unless set otherwise)"
    )
