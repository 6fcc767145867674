"""Handler of requests on the pulse store, without I/O.

Storm's requests are answered as by ``org.apache.storm.pacemaker.Pacemaker``, except that listings
go by path segments and GET_ALL_PULSE_FOR_PATH is implemented.
"""

from collections import Counter
from collections.abc import Callable
from typing import Final, NamedTuple

from stormkeeper.errors import RemoteProtocolError
from stormkeeper.pacemaker.server.pulse_store import PulseStore
from stormkeeper.pacemaker.server.server_status import READ, WRITE
from stormkeeper.pacemaker.server.store_limits import LimitError, shown
from stormkeeper.pacemaker.wire.binary import STRING, i64_field, list_header, text_field
from stormkeeper.pacemaker.wire.decoder import decode_request, match_exact_shape
from stormkeeper.pacemaker.wire.encoder import (
    PULSE_OVERHEAD,
    RECORDS_OVERHEAD,
    encode,
    encode_acknowledgement,
    encode_changes,
    encode_pulse_answer,
)
from stormkeeper.pacemaker.wire.messages import (
    AUTHENTICATING,
    DEFAULT_MAX_SIZE,
    RESERVED_PATH,
    SIZES,
    VERBS,
    Message,
    MessageType,
    Pulse,
)

EXTENSIONS: Final = ("changes", "held", "deleted", SIZES)

_RESERVED: Final = RESERVED_PATH.encode()
_BELOW_RESERVED: Final = _RESERVED + b"/"
_SEND_PULSE: Final = int(MessageType.SEND_PULSE)
_SEND_PULSE_RESPONSE: Final = int(MessageType.SEND_PULSE_RESPONSE)
_GET_PULSE: Final = int(MessageType.GET_PULSE)

#: Pulses deleted at a time: a millisecond, if older entries must make room for tombstones.
_PIECE: Final = 100
#: The size is checked afterwards.
_ANY_SIZE: Final = 0x7FFFFFFF


class ServerDescription(NamedTuple):
    """The value of the reserved path.

    For `horizon_ms` the server has kept every pulse.
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
        """Encode as ``ServerInfo`` of ``pacemaker.thrift``."""
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


class RequestHandler:
    """Carries out requests, with answers of at most `max_size` bytes."""

    __slots__ = ("_describe", "_max_size", "_store", "asked")

    def __init__(
        self,
        store: PulseStore,
        describe: Callable[[], ServerDescription],
        *,
        max_size: int = DEFAULT_MAX_SIZE,
    ) -> None:
        self._store = store
        self._describe = describe
        self._max_size = max_size
        #: Requests by type, without exact shapes answered at once.
        self.asked: Counter[MessageType] = Counter()

    def answer(self, payload: bytes) -> bytes | None:
        """Carry out a request and return the frame of the answer.

        None if the request needs another turn with the same payload, as the deletion of many pulses
        does. Raises `LimitError` with the answer for a request beyond a limit, and
        `RemoteProtocolError` for an invalid request.
        """
        exact = match_exact_shape(payload)
        if exact is not None:
            # The path of a stored pulse has passed all checks.
            kind, message_id, path, details = exact
            store = self._store
            if details is None:
                if kind == _GET_PULSE:
                    value = store.index.get(path)
                    if value is not None and len(payload) + len(value) + 64 < self._max_size:
                        return encode_pulse_answer(message_id, path, value)
            elif kind == _SEND_PULSE and store.index.replace(path, details, store.clock()):
                return encode_acknowledgement(_SEND_PULSE_RESPONSE, message_id)
        return self._answer(decode_request(payload))

    def _answer(self, request: Message) -> bytes | None:
        kind = MessageType(request.type or 0)
        if kind in AUTHENTICATING:
            raise RemoteProtocolError(
                f"{kind.name}: the client wants to authenticate and this server does not; set the"
                " same pacemaker.auth.method for both (this server has NONE)"
            )
        self.asked[kind] += 1
        message_id = -1 if request.message_id is None else request.message_id
        try:
            path = _raw(_path_of(request))
            self._check(kind, path)
            if kind is MessageType.DELETE_PATH and self._store.delete_path(path, _PIECE) == _PIECE:
                self.asked[kind] -= 1  # counted with its last turn
                return None
            return self._fitting(self._carry_out(kind, path, request, message_id))
        except LimitError as error:
            raise LimitError(
                error.cause,
                f"{kind.name}: {error}",
                WRITE if VERBS[kind].writes else READ,
                encode_acknowledgement(MessageType.NOT_AUTHORIZED, message_id),
            ) from error

    def _fitting(self, answer: bytes) -> bytes:
        size = len(answer) - 4
        if size > self._max_size:
            raise LimitError(
                "too-large",
                f"the answer needs a frame of {size} bytes, more than the {self._max_size} of"
                " pacemaker.thrift.message.size.max",
            )
        return answer

    def _check(self, kind: MessageType, path: bytes) -> None:
        if VERBS[kind].writes and (path == _RESERVED or path.startswith(_BELOW_RESERVED)):
            raise LimitError("reserved", f"{shown(path)}: {RESERVED_PATH} is reserved")
        # Stored pulses stay readable under lowered limits. The store checks new pulses' paths.
        if kind is not MessageType.SEND_PULSE and self._store.index.entry(path) is None:
            self._store.limits.check_size(path.rstrip(b"/"))
            self._store.limits.check_text(path)

    def _carry_out(
        self, kind: MessageType, path: bytes, request: Message, message_id: int
    ) -> bytes:
        store = self._store
        if kind is MessageType.GET_PULSE:
            details = self._describe().to_thrift() if path == _RESERVED else store.get(path)
            return encode_pulse_answer(message_id, path, details)
        if VERBS[kind].answered_with == "changes":
            return self._page(path, request, message_id)
        answer = Message(kind + 1, message_id)
        if kind is MessageType.EXISTS:
            answer.boolval = store.get(path) is not None
        elif VERBS[kind].answered_with == "nodes":
            names = store.deleted(path) if kind is MessageType.DELETED else store.children(path)
            answer.nodes = [name.decode() for name in names]
        elif kind is MessageType.GET_ALL_PULSE_FOR_PATH:
            answer.records = self._all_pulses(path)
        elif kind is MessageType.SEND_PULSE and request.pulse:
            store.put(path, request.pulse.details or b"")
        elif kind is MessageType.DELETE_PULSE_ID:
            store.delete(path)
        return encode(answer, max_size=_ANY_SIZE)

    def _page(self, path: bytes, request: Message, message_id: int) -> bytes:
        store = self._store
        kind, values = MessageType.CHANGES_RESPONSE, True
        if request.changes_request is None:
            kind, page = MessageType.HELD_RESPONSE, store.held(path)
        else:
            _, revision, limit, instance, values = request.changes_request
            page = store.changes(
                path, revision, limit, max_bytes=self._max_size, instance=instance, values=values
            )
        return encode_changes(message_id, page.to_wire(store.instance, values=values), kind)

    def _all_pulses(self, path: bytes) -> list[Pulse] | None:
        pulses = []
        room = self._max_size - RECORDS_OVERHEAD
        for entry in self._store.pulses(path):
            details = entry.details or b""
            room -= PULSE_OVERHEAD + len(entry.path) + len(details)
            if room < 0:
                return None
            pulses.append(Pulse(entry.path.decode(), details))
        return pulses


def _path_of(request: Message) -> str:
    for asked in (request.pulse, request.changes_request):
        if asked is not None:
            return asked[0]
    return request.path or ""


def _raw(path: str) -> bytes:
    return path.encode("utf-8", "surrogateescape")
