"""What a Pacemaker may answer to each request.

The type of an answer is the request's plus one, or NOT_AUTHORIZED for a refusal. An answer to a
question carries a member of the union; an acknowledgement carries none.
"""

from stormkeeper.errors import NotAuthorizedError, RemoteProtocolError
from stormkeeper.pacemaker.wire import VERBS, Message, MessageType


class WrongAnswerError(RemoteProtocolError):
    """A server answered a request with what is no answer to it; another try would not help."""


def is_request(kind: int | None) -> bool:
    """Whether a message of type `kind` is a question with exactly one answer."""
    return kind in VERBS


def type_name(kind: int | None) -> str:
    """Name a message type for people: ``GET_PULSE``, or its number if it is unknown."""
    try:
        return MessageType(-1 if kind is None else kind).name
    except ValueError:
        return f"type {kind}"


def asked(kind: int, path: str) -> str:
    """Return what a request of a type asks for, as in ``a request to read /a``."""
    return f"a request to {VERBS[kind].deed} {path}"


def subject(message: Message) -> str:
    """Return the path that a request is about."""
    if message.pulse is not None:
        return message.pulse.id
    if message.changes_request is not None:
        return message.changes_request.path
    return message.path or ""


def fault_of(kind: int, answer: Message) -> str | None:
    """Say what is wrong with `answer` to a request of type `kind`; None if nothing is."""
    if answer.type == MessageType.NOT_AUTHORIZED:
        return None
    if answer.type != kind + 1:
        return f"{type_name(answer.type)} came as the answer to {type_name(kind)}"
    member = VERBS[kind].answered_with
    if member is not None and getattr(answer, member) is None:
        return f"{type_name(answer.type)} came without its {member}"
    return None


def refusal(
    peer: str, kind: int, path: str, method: str | None, *, reads: bool | None = None
) -> NotAuthorizedError:
    """Make the error for a NOT_AUTHORIZED answer of the server `peer`.

    Parameters
    ----------
    method
        By which this client has authenticated; None if it has not.
    reads
        Whether the server has let this client read on the same connection, or refused to say even
        who it is, which is no question of paths and sizes; None if it was not asked.
    """
    what = f"{peer} refused {asked(kind, path)}"
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
            f"{what}: {limit}, or it takes writes only from who has authenticated ({remedy},"
            f" and pacemaker.auth.writes to true); {log}"
        )
    if reads is None:
        return NotAuthorizedError(
            f"{what}: it wants readers to authenticate ({remedy}), or {limit}; {log}"
        )
    if reads:
        return NotAuthorizedError(f"{what}: {limit}; {log}")
    return NotAuthorizedError(f"{what}: it wants readers to authenticate: {remedy}")
