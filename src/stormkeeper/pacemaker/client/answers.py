"""Requests and their answers: what a right answer is, and errors for the others.

The type of an answer is the request's plus one, or NOT_AUTHORIZED.
"""

from stormkeeper.errors import NotAuthorizedError, RemoteProtocolError, UnsupportedExtensionError
from stormkeeper.pacemaker.wire import VERBS, Message, MessageType
from stormkeeper.pacemaker.wire.messages import listing_ends_java


class WrongAnswerError(RemoteProtocolError):
    """The server sent no valid answer to the request; a retry would not help."""


def is_request(kind: int | None) -> bool:
    """Return whether messages of type `kind` are requests."""
    return kind in VERBS


def ends_java(kind: int, path: str) -> bool:
    """Return whether a request of Storm's would end a Java Pacemaker."""
    return kind == MessageType.GET_ALL_NODES_FOR_PATH and listing_ends_java(path)


def type_name(kind: int | None) -> str:
    """Name a message type for people: ``GET_PULSE``, or the number of an unknown type."""
    try:
        return MessageType(-1 if kind is None else kind).name
    except ValueError:
        return f"type {kind}"


def describe_request(kind: int, path: str) -> str:
    """Describe a request for people: ``a request to read /a``."""
    return f"a request to {VERBS[kind].deed} {path}"


def path_of(message: Message) -> str:
    """Return the path of a request."""
    if message.pulse is not None:
        return message.pulse.id
    if message.changes_request is not None:
        return message.changes_request.path
    return message.path or ""


def fault_of(kind: int, answer: Message) -> str | None:
    """Return the fault of an answer to a request of type `kind`, or None."""
    if answer.type == MessageType.NOT_AUTHORIZED:
        return None
    if answer.type != kind + 1:
        return f"{type_name(answer.type)} came as the answer to {type_name(kind)}"
    member = VERBS[kind].answered_with
    if member is not None and getattr(answer, member) is None:
        return f"{type_name(answer.type)} came without its {member}"
    return None


def unsupported(peer: str, kind: int, path: str) -> UnsupportedExtensionError:
    """Make the error of a request that would end the server `peer`."""
    if ends_java(kind, path):
        return UnsupportedExtensionError(
            f"{peer} is a Java Pacemaker, and what lies below {path} was not asked for: it"
            " takes a path for a regular expression, and ends at one that is none"
        )
    return UnsupportedExtensionError(
        f"{peer} does not list the extension {VERBS[kind].extension!r}, so"
        f" {type_name(kind)} {path} was not sent (it would end a Java Pacemaker)"
    )


def refusal(
    peer: str, kind: int, path: str, method: str | None, *, reads: bool | None = None
) -> NotAuthorizedError:
    """Make the error for a NOT_AUTHORIZED answer, with advice.

    `method` is the client's method if it has authenticated. `reads` says whether the server let
    this client read on the connection; None if unknown.
    """
    what = f"{peer} refused {describe_request(kind, path)}"
    is_written = VERBS[kind].writes
    limit = (
        "the path is reserved or a limit of the server is reached"
        if is_written
        else "the path or the answer exceeds a limit of the server"
    )
    log = "the server's log has the reason"
    if method is not None:
        return NotAuthorizedError(
            f"{what}, though this client has authenticated ({method}): {limit}; {log}"
        )
    remedy = (
        "set pacemaker.auth.method to the server's own (DIGEST, KERBEROS or SCRAM) and"
        " java.security.auth.login.config to the file that says who this client is"
    )
    if is_written:
        return NotAuthorizedError(
            f"{what}: {limit}, or it accepts writes from authenticated clients only ({remedy},"
            f" and pacemaker.auth.writes to true); {log}"
        )
    if reads is None:
        return NotAuthorizedError(
            f"{what}: it wants readers to authenticate ({remedy}), or {limit}; {log}"
        )
    if reads:
        return NotAuthorizedError(f"{what}: {limit}; {log}")
    return NotAuthorizedError(f"{what}: it wants readers to authenticate: {remedy}")
