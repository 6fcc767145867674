"""Answers one request after another out of the pulse store, without I/O.

Storm's verbs are answered as Storm's Pacemaker does (``org.apache.storm.pacemaker.Pacemaker``),
except that listing children goes by path segments, and that GET_ALL_PULSE_FOR_PATH is implemented.
"""

from collections.abc import Callable
from typing import Final, NamedTuple

from stormkeeper.errors import LocalProtocolError, NotAuthorizedError, RemoteProtocolError
from stormkeeper.pacemaker.server.store import PulseStore
from stormkeeper.pacemaker.wire import (
    DEFAULT_MAX_SIZE,
    PULSE_OVERHEAD,
    RECORDS_OVERHEAD,
    RESERVED_PATH,
    Message,
    MessageType,
    Pulse,
    decode_request,
    encode,
)
from stormkeeper.pacemaker.wire.binary import STRING, i64_field, list_header, text_field
from stormkeeper.pacemaker.wire.decoding import match_exact_shape
from stormkeeper.pacemaker.wire.encoding import encode_acknowledgement, encode_pulse_answer

#: What this server can do beyond Storm's verbs, by the names that `ServerStatus` gives.
EXTENSIONS: Final = ("changes",)

#: Segments of a path. Each new one takes some 300 bytes, so that one request cannot take more
#: memory than four of the largest pulses.
MAX_SEGMENTS: Final = 131_072

_BELOW_RESERVED: Final = f"{RESERVED_PATH}/"
_SEND_PULSE: Final = int(MessageType.SEND_PULSE)
_SEND_PULSE_RESPONSE: Final = int(MessageType.SEND_PULSE_RESPONSE)
_GET_PULSE: Final = int(MessageType.GET_PULSE)

_AUTHENTICATING: Final = (MessageType.CONTROL_MESSAGE, MessageType.SASL_MESSAGE_TOKEN)
_WRITING: Final = (
    MessageType.CREATE_PATH,
    MessageType.SEND_PULSE,
    MessageType.DELETE_PATH,
    MessageType.DELETE_PULSE_ID,
)


class RequestRefusedError(NotAuthorizedError):
    """A request that is not carried out; `answer` is the frame that tells the client so."""

    def __init__(self, reason: str, answer: bytes) -> None:
        super().__init__(reason)
        self.answer = answer


class ServerStatus(NamedTuple):
    """Who a server is and how it fares; the value of the reserved path.

    Times are in milliseconds. `horizon_ms` tells for how long the server could have received and
    kept pulses without a break: a path without a pulse has been silent at least that long.
    """

    instance: str
    uptime_ms: int
    horizon_ms: int
    version: str
    revision: int
    keys: int
    pulses_received: int
    connections: int

    def to_thrift(self) -> bytes:
        """Encode as the struct ``ServerInfo`` of ``pacemaker.thrift``."""
        parts = [
            text_field(1, self.instance),
            i64_field(2, self.uptime_ms),
            i64_field(3, self.horizon_ms),
            list_header(4, STRING, len(EXTENSIONS)),
        ]
        for extension in EXTENSIONS:
            raw = extension.encode()
            parts.append(len(raw).to_bytes(4, "big") + raw)
        parts += [
            text_field(5, self.version),
            i64_field(6, self.revision),
            i64_field(7, self.keys),
            i64_field(8, self.pulses_received),
            i64_field(9, self.connections),
            b"\x00",
        ]
        return b"".join(parts)


class Answerer:
    """Carries out requests and writes the frames that answer them.

    Parameters
    ----------
    store
        What is read and written.
    describe
        Returns the server's status now.
    max_size
        The largest payload of an answer, in bytes.
    """

    __slots__ = ("_describe", "_max_size", "_store")

    def __init__(
        self,
        store: PulseStore,
        describe: Callable[[], ServerStatus],
        *,
        max_size: int = DEFAULT_MAX_SIZE,
    ) -> None:
        self._store = store
        self._describe = describe
        self._max_size = max_size

    def answer(self, payload: bytes) -> bytes:
        """Carry out the request in a frame's payload and return the frame of the answer.

        Raises
        ------
        RemoteProtocolError
            If the payload is no request that can be answered; the connection cannot go on.
        RequestRefusedError
            If the request is not allowed or exceeds a limit.
        """
        exact = match_exact_shape(payload)
        if exact is not None:
            kind, message_id, path, details = exact
            if details is None:
                if kind == _GET_PULSE:
                    value = self._store.get(path)
                    if value is not None and len(payload) + len(value) + 64 < self._max_size:
                        return encode_pulse_answer(message_id, path, value)
            elif (
                kind == _SEND_PULSE
                and len(path) < MAX_SEGMENTS
                and not path.startswith(RESERVED_PATH)
            ):
                self._store.put(path, details)
                return encode_acknowledgement(_SEND_PULSE_RESPONSE, message_id)
        return self._answer(decode_request(payload))

    def _answer(self, request: Message) -> bytes:
        kind = MessageType(request.type or 0)
        path = _path_of(request)
        if kind in _AUTHENTICATING:
            raise RemoteProtocolError(
                f"{kind.name}: the client wants to authenticate and this server does not; set the"
                " same pacemaker.auth.method for both (this server has NONE)"
            )
        if path.count("/") >= MAX_SEGMENTS:
            raise _refusal(request, f"{kind.name} of a path of more than {MAX_SEGMENTS} segments")
        is_reserved = path == RESERVED_PATH or path.startswith(_BELOW_RESERVED)
        if is_reserved and kind in _WRITING:
            raise _refusal(request, f"{kind.name} {path[:200]!r}: {RESERVED_PATH} is reserved")
        answer = self._carry_out(kind, path, request)
        answer.message_id = -1 if request.message_id is None else request.message_id
        try:
            return encode(answer, max_size=self._max_size)
        except LocalProtocolError as error:
            raise _refusal(request, f"{kind.name} {path[:200]!r}: {error}") from error

    def _carry_out(self, kind: MessageType, path: str, request: Message) -> Message:
        store = self._store
        answer = Message(kind + 1)
        if kind is MessageType.SEND_PULSE and request.pulse and request.pulse.details is not None:
            store.put(path, request.pulse.details)
        elif kind is MessageType.GET_PULSE:
            answer.pulse = Pulse(path, self._describe_or_get(path))
        elif kind is MessageType.EXISTS:
            answer.boolval = store.get(path) is not None
        elif kind is MessageType.GET_ALL_NODES_FOR_PATH:
            answer.nodes = store.children(path)
        elif kind is MessageType.GET_ALL_PULSE_FOR_PATH:
            answer.records = self._all_pulses(path)
        elif kind is MessageType.DELETE_PULSE_ID:
            store.delete(path)
        elif kind is MessageType.DELETE_PATH:
            store.delete_path(path)
        elif kind is MessageType.CHANGES and request.changes_request is not None:
            _, after, limit, instance = request.changes_request
            answer.changes = store.changes(
                path, after, limit, max_bytes=self._max_size, instance=instance
            )
        return answer

    def _describe_or_get(self, path: str) -> bytes | None:
        return self._describe().to_thrift() if path == RESERVED_PATH else self._store.get(path)

    def _all_pulses(self, path: str) -> list[Pulse] | None:
        """Return all pulses at and below `path`; None if they do not fit a frame."""
        records: list[Pulse] = []
        room = self._max_size - RECORDS_OVERHEAD
        for pulse in self._store.pulses(path):
            room -= PULSE_OVERHEAD + len(pulse.id.encode()) + len(pulse.details or b"")
            if room < 0:
                return None
            records.append(pulse)
        return records


def _path_of(request: Message) -> str:
    if request.pulse is not None:
        return request.pulse.id
    if request.changes_request is not None:
        return request.changes_request.path
    return request.path or ""


def _refusal(request: Message, reason: str) -> RequestRefusedError:
    message_id = -1 if request.message_id is None else request.message_id
    return RequestRefusedError(
        reason, encode_acknowledgement(MessageType.NOT_AUTHORIZED, message_id)
    )
