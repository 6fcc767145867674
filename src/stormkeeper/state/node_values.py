"""Decodes the value of any node of Storm's layout, for people and for JSON.

The path gives the record, the value the compression. Nothing raises: an unreadable value is shown
as text or hexadecimal digits, with a note.
"""

from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from struct import Struct
from typing import Any, Final, NamedTuple, Self

import msgspec
from thriftpy2.thrift import TPayload

from stormkeeper import paths
from stormkeeper.errors import SerializationError
from stormkeeper.names import printable
from stormkeeper.state.storage import DIRECTORY
from stormkeeper.state.storm.blob_records import BlobRecord
from stormkeeper.thrift import readable, records
from stormkeeper.thrift.reader import with_article
from stormkeeper.thrift.serialization import deserialize

HEX_WIDTH: Final = 32

#: Bytes, or characters, shown of an unreadable value.
SHOWN: Final = 4096

#: Decompressed bytes: nodes seldom have more than 1 MiB, and a decoded record may take forty times
#: as much memory.
LIMIT: Final = 32 * 1024 * 1024

HIDDEN: Final = "…"
_HOW_TO_SHOW: Final = "are not shown without --show-secrets"

#: By first level and depth below.
_RECORDS: Final[dict[tuple[str, int], type[TPayload]]] = {
    (paths.ASSIGNMENTS, 1): records.Assignment,
    (paths.STORMS, 1): records.StormBase,
    (paths.SUPERVISORS, 1): records.SupervisorInfo,
    (paths.NIMBUSES, 1): records.NimbusSummary,
    (paths.WORKERBEATS, 2): records.ClusterWorkerHeartbeat,
    (
        paths.ERRORS,
        2,
    ): records.ErrorInfo,  # last errors; directories of components have the same depth
    (paths.ERRORS, 3): records.ErrorInfo,
    (paths.CREDENTIALS, 1): records.Credentials,
    (paths.CHECKPOINTS, 1): records.Checkpoints,
    (paths.LOG_CONFIGS, 1): records.LogConfig,
    (paths.PROFILER_CONFIGS, 2): records.ProfileRequest,
    (paths.TASKS, 2): records.TaskInfo,
    (paths.TASKBEATS, 2): records.TaskHeartbeat,
    (paths.TASKERRORS, 3): records.ErrorInfo,
}

#: Java Object Serialization Specification, chapter 6: magic, version 5; an object, its class.
_JAVA_MAGIC: Final = b"\xac\xed\x00\x05"
_JAVA_OBJECT: Final = _JAVA_MAGIC + b"sr"

#: Fields with a time, and units per second.
_TIMES: Final = {
    "time_secs": 1,
    "launch_time_secs": 1,
    "error_time_secs": 1,
    "time_stamp": 1000,
    "reset_log_level_timeout_epoch": 1000,
    "deadline_ms": 1000,
    "ended_ms": 1000,
}

_INTEGERS: Final = {"number": "a number", "milliseconds": "a time"}

_number = Struct(">i")
_milliseconds = Struct(">q")
_java_length = Struct(">H")


class Decoded(NamedTuple):
    """A decoded value of a node."""

    #: ``directory``, the record's class, ``BlobHolder``, ``QueryClaim``, ``BlobRecord``,
    #: ``number``, ``milliseconds``, ``java``, ``text`` or ``bytes``.
    kind: str
    #: For JSON: a record's fields; ``{"hex": …}`` for bytes; None for a directory.
    value: Any
    #: For people; empty for a directory.
    text: str
    #: Why the value does not fit the path, or is not shown whole.
    note: str | None = None
    #: Epoch of the leader that wrote the record.
    epoch: int | None = None
    #: Why the value does not fit Storm's layout.
    unreadable: str | None = None


def decode(path: str, data: bytes, *, show_secrets: bool = False) -> Decoded:
    """Decode the value of the node at `path`, relative to ``storm.zookeeper.root``.

    Without `show_secrets`, `HIDDEN` stands for each value of credentials. Keys of ``/secretkeys``
    are never shown.

    Examples
    --------
    >>> decode("/blobstoremaxkeysequencenumber/wc-1-stormcode.ser", bytes([0, 0, 0, 7])).text
    '7'
    """
    return _decode(path, data, whole=True, show_secrets=show_secrets)


def outline(path: str, data: bytes) -> Decoded:
    """Decode all but value and text, much faster than `decode`."""
    return _decode(path, data, whole=False)


def _decode(path: str, data: bytes, *, whole: bool, show_secrets: bool = False) -> Decoded:
    top, names = _place(path)
    if top == paths.SECRET_KEYS:
        return _secret(data)
    if data in (b"", DIRECTORY):
        return _empty(top, names, data)
    place = (top, len(names))
    if top == paths.CREDENTIALS and not show_secrets:
        found = _credentials(data, whole=whole)
        return found if place in _RECORDS else found._replace(unreadable=None)
    if place in _READERS:
        return _READERS[place](data)
    if place in _RECORDS:
        return _record(_RECORDS[place], data, whole=whole)
    return _bytes(data, "nothing of Storm's is kept at this path")


def _place(path: str) -> tuple[str, list[str]]:
    top, *names = path.removeprefix("/").split("/")
    return f"/{top}", names


def _empty(top: str, names: list[str], data: bytes) -> Decoded:
    place = (top, len(names))
    if place == (paths.LEADER_LOCK, 1):
        return Decoded("text", "", "")
    if place == (paths.BLOBSTORE, 2) and (holder := paths.parse_blob_holder(names[1])):
        value = {"nimbus": holder.nimbus, "version": holder.version}
        return Decoded("BlobHolder", value, _columns(value))
    if (
        place == (paths.WORKERBEATS, 2)
        and not data
        and (query := paths.parse_query_claim(names[1]))
    ):
        value = {"query": query}
        return Decoded("QueryClaim", value, _columns(value))
    # A component's name may end like that of a last error.
    if place not in _RECORDS or place == (paths.ERRORS, 2):
        return Decoded("directory", None, "")
    promised = with_article(_RECORDS[place])
    if not data:
        reason = f"no bytes at all where {promised} should be"
        return Decoded("bytes", {"hex": ""}, "", reason, unreadable=reason)
    reason = f"{promised} should be here, and it is a directory"
    return Decoded("directory", None, "", reason, unreadable=reason)


def _record(cls: type[TPayload], data: bytes, *, whole: bool) -> Decoded:
    try:
        record = deserialize(cls, data, limit=LIMIT)
    except SerializationError as error:
        return _unreadable(data, str(error))
    return _of_record(record, whole=whole)


def _of_record(record: TPayload, *, whole: bool, note: str | None = None) -> Decoded:
    value, text = None, ""
    if whole:
        value = readable.to_builtins(record)
        _date(record)
        text = readable.render(record)
    return Decoded(type(record).__name__, value, text, note, getattr(record, "leader_epoch", None))


class _Time(int):
    """A time since 1970, printed with the date."""

    units: int

    def __new__(cls, value: int, units: int = 1) -> Self:
        time = super().__new__(cls, value)
        time.units = units
        return time

    def __str__(self) -> str:
        number = repr(self)
        try:
            date = datetime.fromtimestamp(self // self.units, UTC)
        except (ValueError, OverflowError, OSError):  # any value can come from a wrong clock
            return number
        # 0 means unset.
        return f"{number} ({date:%Y-%m-%d %H:%M:%S} UTC)" if self > 0 else number


def _date(record: TPayload) -> None:
    if isinstance(record, records.ClusterWorkerHeartbeat):
        return  # rendered with dates already
    for name, units in _TIMES.items():
        if (value := getattr(record, name, None)) is not None:
            setattr(record, name, _Time(value, units))
    if isinstance(record, records.Assignment) and record.executor_start_time_secs:
        starts = record.executor_start_time_secs.items()
        record.executor_start_time_secs = {executor: _Time(secs) for executor, secs in starts}
    elif isinstance(record, records.LogConfig):
        for level in (record.named_logger_level or {}).values():
            _date(level)


def _credentials(data: bytes, *, whole: bool) -> Decoded:
    try:
        record = deserialize(records.Credentials, data, limit=LIMIT)
    except SerializationError as error:
        # The bytes may still contain secrets.
        value = {"bytes": len(data)}
        reason = str(error)
        hidden = f"{reason}; its bytes {_HOW_TO_SHOW}"
        return Decoded("bytes", value, _columns(value), hidden, unreadable=reason)
    note = None
    if record.creds:
        record.creds = dict.fromkeys(record.creds, HIDDEN)
        note = f"the values of credentials {_HOW_TO_SHOW}"
    return _of_record(record, whole=whole, note=note)


def _secret(data: bytes) -> Decoded:
    if data in (b"", DIRECTORY):
        return Decoded("directory", None, "")
    kind = records.PrivateWorkerKey.__name__
    hidden = "the key itself is not shown"
    try:
        key = deserialize(records.PrivateWorkerKey, data, limit=LIMIT)
    except SerializationError as error:
        value: dict[str, Any] = {"bytes": len(data)}
        reason = str(error)
        return Decoded(kind, value, _columns(value), f"{reason}; {hidden}", unreadable=reason)
    value = {
        "userName": key.userName,
        "expirationTimeMillis": key.expirationTimeMillis,
        "key_bytes": len(key.key),
    }
    dated = value | {"expirationTimeMillis": _Time(key.expirationTimeMillis, 1000)}
    return Decoded(kind, value, _columns(dated), hidden)


def _text(data: bytes) -> Decoded:
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return _unreadable(data, "not UTF-8, as the holder of a lock writes")
    return Decoded("text", text, printable(text))


def _blob_record(data: bytes) -> Decoded:
    try:
        value = msgspec.to_builtins(BlobRecord.decode(data))
    except SerializationError as error:
        return _unreadable(data, str(error))
    return Decoded("BlobRecord", value, _columns(value))


def _integer(kind: str, form: Struct, data: bytes) -> Decoded:
    if len(data) != form.size:
        size = f"{len(data)} byte{'' if len(data) == 1 else 's'}"
        return _unreadable(data, f"{size}, where {_INTEGERS[kind]} has {form.size}")
    (value,) = form.unpack(data)
    return Decoded(kind, value, str(value))


def _since(data: bytes) -> Decoded:
    found = _integer("milliseconds", _milliseconds, data)
    if found.unreadable is not None:
        return found
    return found._replace(text=_columns({"under back-pressure since": _Time(found.value, 1000)}))


def _leader_info(data: bytes) -> Decoded:
    found = _unreadable(data, "not what Java serialises, as Storm's leader writes it")
    return found._replace(unreadable=None) if found.kind == "java" else found


def _unreadable(data: bytes, reason: str) -> Decoded:
    return _bytes(data, reason)._replace(unreadable=reason)


def _bytes(data: bytes, note: str) -> Decoded:
    kind = "bytes"
    if data.startswith(_JAVA_MAGIC):
        kind, note = "java", f"serialised by Java{_java_class(data)}, and for Storm alone to read"
    value = {"hex": data.hex()}
    text = _plain(data)
    if text is None:
        form, shown, whole = "in hexadecimal", _hexadecimal(data[:SHOWN]), len(data) <= SHOWN
    else:
        value["text"] = text
        form, shown, whole = "as the text that it is", _lines(text[:SHOWN]), len(text) <= SHOWN
    note = f"{note}; shown {form}"
    if not whole:
        note += f", and only its beginning: it has {len(data)} bytes, and --json prints all"
    return Decoded(kind, value, shown, note)


def _hexadecimal(data: bytes) -> str:
    return "\n".join(data[i : i + HEX_WIDTH].hex() for i in range(0, len(data), HEX_WIDTH))


def _plain(data: bytes) -> str | None:
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return None
    return text if all(char.isprintable() or char in "\n\t" for char in text) else None


def _lines(text: str) -> str:
    return "\n".join(line.expandtabs(4) for line in text.rstrip("\n").split("\n"))


def _java_class(data: bytes) -> str:
    start = len(_JAVA_OBJECT) + _java_length.size
    if not data.startswith(_JAVA_OBJECT) or len(data) < start:
        return ""
    (length,) = _java_length.unpack_from(data, len(_JAVA_OBJECT))
    name = data[start : start + length]
    return f" (a {printable(name.decode(errors='replace'))})" if len(name) == length else ""


def _columns(fields: dict[str, Any]) -> str:
    width = max(map(len, fields))
    return "\n".join(f"{name:<{width}}  {printable(str(item))}" for name, item in fields.items())


#: Readers of values that are no records, by place.
_READERS: Final[dict[tuple[str, int], Callable[[bytes], Decoded]]] = {
    (paths.BLOB_KEY_SEQUENCES, 1): partial(_integer, "number", _number),
    (paths.BLOB_KEY_SEQUENCES, 2): _blob_record,
    (paths.BACKPRESSURE, 2): _since,
    (paths.LEADER_LOCK, 1): _text,
    (paths.LEADER_INFO, 0): _leader_info,
}
