"""Pacemaker messages for tests: Storm's golden frames, any message, and raw Thrift fields."""

from collections.abc import Iterator, Sequence
from itertools import repeat
from typing import Any, NamedTuple

from hypothesis import strategies as st

from stormkeeper.pacemaker.wire.messages import (
    TOMBSTONE,
    Changes,
    ChangesRequest,
    Columns,
    Message,
    Pulse,
)
from support.vectors import load


class Golden(NamedTuple):
    name: str
    frame: bytes
    message: Message


def golden_frames() -> Iterator[Golden]:
    """Every frame that Storm's own code wrote, with the message that it says."""
    for vector in load("pacemaker.jsonl"):
        name, value = vector["name"], vector.get("json")
        if isinstance(value, dict) and value.get("$struct") == "HBMessage":
            yield Golden(name, bytes.fromhex(vector["hex"]), _message(value))
        elif name.startswith(("control.", "sasl_token.")):
            frame = bytes.fromhex(vector["hex"])
            yield Golden(name, frame, Message(int.from_bytes(frame[7:11]), blob=frame[21:-2]))
        elif name.startswith("digest.") and "frame" in vector:
            blob = bytes.fromhex(vector["hex"])
            blob = b"\xfe\x0c" + len(blob).to_bytes(4) + blob
            yield Golden(name, bytes.fromhex(vector["frame"]), Message(17, blob=blob))


def _message(value: dict[str, Any]) -> Message:
    data = value.get("data", {})
    message = Message(value["type"]["value"], value.get("message_id"))
    message.path = data.get("path")
    message.boolval = data.get("boolval")
    if "pulse" in data:
        message.pulse = _pulse(data["pulse"])
    if "records" in data:
        message.records = [_pulse(pulse) for pulse in data["records"]["pulses"]]
    if "nodes" in data:
        message.nodes = data["nodes"]["pulseIds"]
    return message


def _pulse(value: dict[str, Any]) -> Pulse:
    details = value.get("details")
    return Pulse(value["id"], None if details is None else bytes.fromhex(details["$hex"]))


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
values = st.binary(max_size=40)
i32s = st.integers(-(2**31), 2**31 - 1)
i64s = st.integers(-(2**63), 2**63 - 1)
pulses = st.builds(Pulse, texts, st.none() | values)


class Change(NamedTuple):
    """A row of `Columns`."""

    path: str
    revision: int
    age_ms: int
    size: int
    details: bytes | None = None


def change(path: str, details: bytes | None, revision: int, age_ms: int) -> Change:
    """Return a change as it comes with its value."""
    return Change(path, revision, age_ms, TOMBSTONE if details is None else len(details), details)


def columns_of(rows: Sequence[Change], *, values: bool = True) -> Columns[str]:
    paths, revisions, ages_ms, sizes, details = map(
        list, zip(*rows, strict=True) if rows else ([] for _ in Change._fields)
    )
    if values:
        return Columns(paths, revisions, ages_ms, sizes, details)
    return Columns(paths, tuple(revisions), tuple(ages_ms), tuple(sizes))


def rows_of(columns: Columns[str]) -> list[Change]:
    *others, details = columns
    return [Change(*row) for row in zip(*others, details or repeat(None), strict=False)]


change_lists = st.lists(st.builds(change, texts, st.none() | values, i64s, i64s), max_size=4)
_with_values = change_lists.map(columns_of)
#: Pulses without their values, and tombstones.
_without_values = st.lists(
    st.builds(
        Change,
        texts.map(lambda text: text.replace("\0", "")),
        i64s,
        i64s,
        st.integers(-1, 2**31 - 1),
    ),
    max_size=4,
).map(lambda rows: columns_of(rows, values=False))
columns = _with_values | _without_values
changes = st.builds(
    Changes,
    texts,
    i64s,
    columns,
    st.booleans(),
    st.booleans(),
    i64s,
)
members = st.one_of(
    st.just({}),
    st.fixed_dictionaries({"path": texts}),
    st.fixed_dictionaries({"pulse": pulses}),
    st.fixed_dictionaries({"boolval": st.booleans()}),
    st.fixed_dictionaries({"records": st.lists(pulses, max_size=4)}),
    st.fixed_dictionaries({"nodes": st.lists(texts, max_size=4)}),
    st.fixed_dictionaries({"blob": values}),
    st.fixed_dictionaries(
        {
            "changes_request": st.builds(
                ChangesRequest, texts, i64s, i32s, st.none() | texts, st.booleans()
            )
        }
    ),
    st.fixed_dictionaries({"changes": changes}),
)
#: Any message that can be encoded, whether or not it makes sense.
messages = st.builds(
    lambda kind, message_id, member: Message(kind, message_id, **member),
    st.integers(0, 18) | st.sampled_from(range(100, 110)) | i32s,
    st.none() | i32s,
    members,
)


def field(kind: int, field_id: int, value: bytes) -> bytes:
    """A Thrift field of any type, with the value's bytes as given."""
    return bytes([kind]) + field_id.to_bytes(2, signed=True) + value


def i32(value: int) -> bytes:
    return value.to_bytes(4, signed=True)


def string(value: bytes | str) -> bytes:
    raw = value.encode() if isinstance(value, str) else value
    return i32(len(raw)) + raw
