import re
import socket
import ssl

import pytest
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
    StateUnavailableError,
)
from stormkeeper.state.zookeeper.kazoo_client import failure_to_connect
from stormkeeper.state.zookeeper.requests import (
    ConnectionLostError,
    is_outcome_unknown,
    translated,
)

LOST = [
    kazoo_errors.ConnectionLoss,
    kazoo_errors.SessionExpiredError,
    kazoo_errors.ConnectionClosedError,
    kazoo_errors.SessionMovedError,
    kazoo_errors.OperationTimeoutError,
    kazoo_errors.RequestTimeoutError,
    kazoo_errors.ThrottledOpError,
]

REFUSED = {
    kazoo_errors.NoNodeError: NoNodeError,
    kazoo_errors.NodeExistsError: NodeExistsError,
    kazoo_errors.BadVersionError: BadVersionError,
    kazoo_errors.NotEmptyError: NotEmptyError,
    kazoo_errors.NoChildrenForEphemeralsError: StateError,
    kazoo_errors.NoAuthError: AccessDeniedError,
    kazoo_errors.InvalidACLError: StateAuthenticationError,
    kazoo_errors.AuthFailedError: StateAuthenticationError,
    kazoo_errors.SessionClosedRequireSaslError: StateAuthenticationError,
    kazoo_errors.QuotaExceededError: StateError,
}


def raised(error, *identities, size=0):
    return translated(error(), "read", "/a", "zk-1:2181", identities=identities, size=size)


@pytest.mark.parametrize("error", LOST)
def test_after_a_lost_connection_nobody_knows(error):
    assert is_outcome_unknown(error())
    assert type(raised(error)) is ConnectionLostError
    assert str(raised(error)).startswith("cannot read /a: the connection to ZooKeeper at zk-1:2181")


def test_server_failure_in_a_request_leaves_the_outcome_unknown():
    assert is_outcome_unknown(kazoo_errors.MarshallingError())
    error = raised(kazoo_errors.MarshallingError)
    assert type(error) is ConnectionLostError
    assert "failed in the middle of it" in str(error)


@pytest.mark.parametrize(("error", "ours"), REFUSED.items())
def test_a_refusal_is_ours_and_says_of_what(error, ours):
    assert not is_outcome_unknown(error())
    assert type(raised(error)) is ours
    assert not isinstance(raised(error), StateUnavailableError)
    assert str(raised(error)).startswith("cannot read /a: ")


@pytest.mark.parametrize(
    "error", [error for error, ours in REFUSED.items() if ours is not StateError][-4:]
)
def test_who_is_refused_is_told_as_whom(error):
    assert "(digest:storm:x= and sasl:nimbus)" in str(
        raised(error, "digest:storm:x=", "sasl:nimbus")
    )
    assert "storm.zookeeper.auth.scheme" in str(raised(error))


def test_an_answer_that_cannot_be_read_is_no_refusal():
    assert type(raised(ValueError)) is OutcomeUnknownError


def test_only_a_large_value_is_suspected():
    assert "999999" not in str(raised(kazoo_errors.ConnectionLoss, size=999_999))
    assert "1000000 bytes" in str(raised(kazoo_errors.ConnectionLoss, size=1_000_000))
    assert "bytes" not in str(raised(kazoo_errors.NoNodeError, size=1_000_000))


def as_kazoo_raises(error):
    """kazoo puts an exception of its own in front of a socket's."""
    try:
        try:
            raise error
        except OSError:
            # Its context stays, as where nothing is said of a cause.
            raise kazoo_errors.ConnectionDropped("what kazoo makes of it") from None
    except kazoo_errors.ConnectionDropped as dropped:
        return dropped


def untrusted():
    error = ssl.SSLCertVerificationError(1, "certificate verify failed")
    error.verify_message = "self-signed certificate."
    return error


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (ConnectionRefusedError(111, "Connection refused"), "Connection refused"),
        (TimeoutError("timed out"), "timed out"),
        (socket.gaierror(-2, "Name or service not known"), "Name or service not known"),
        (
            untrusted(),
            r"not trusted: self-signed certificate: check storm\.zookeeper\.ssl\.truststore\.path",
        ),
        (ssl.SSLError(1, "[SSL] wrong version number"), "no TLS with the server: .*wrong version"),
    ],
)
def test_why_a_connection_is_not_made(error, words):
    assert re.search(words, str(failure_to_connect(as_kazoo_raises(error))))


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (KazooTimeoutError("socket time-out"), "accepted the connection and did not answer"),
        (kazoo_errors.ConnectionDropped("the server hung up"), "the server hung up"),
        (kazoo_errors.SessionExpiredError(), "SessionExpiredError"),
    ],
)
def test_why_a_connection_that_was_made_is_of_no_use(error, words):
    assert words in str(failure_to_connect(error))
