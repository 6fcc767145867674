"""The golden bytes in ``tests/vectors``, and the JSON notation that they give values in.

A struct is ``{"$struct": NAME, field: value, …}`` without the fields that are not set, a union
``{"$union": NAME, member: value}``, an enum ``{"$enum": NAME, "value": n}``, binary
``{"$hex": …}``, a map ``{"$map": [[key, value], …]}`` in the order of the bytes, a set
``{"$set": […]}``.
"""

import json
from collections.abc import Iterator
from enum import IntEnum
from functools import cache
from pathlib import Path
from typing import Any

from thriftpy2.thrift import TPayload

from stormkeeper.thrift import pacemaker, records
from stormkeeper.thrift.idl import I32, Type, schema_of

_FOLDER = Path(__file__).parent.parent / "vectors"


@cache
def _lines(name: str) -> tuple[str, ...]:
    return tuple((_FOLDER / f"{name}.jsonl").read_text(encoding="utf-8").splitlines())


def load(name: str) -> list[dict[str, Any]]:
    """Return the vectors of a file: "pacemaker", "storm-2.8", "znodes-gzip" or "znodes-zstd"."""
    return [json.loads(line) for line in _lines(name.removesuffix(".jsonl"))]


def frames() -> Iterator[dict[str, Any]]:
    """Return the vectors of Pacemaker frames that have a decoded value."""
    for vector in load("pacemaker"):
        if vector.get("json", {}).get("$struct") == "HBMessage":
            yield vector


def record_class(name: str) -> type[TPayload]:
    """Return a record class by its name."""
    return getattr(records, name, None) or getattr(pacemaker, name)


def notation(value: Any) -> Any:
    """Return a value of ours in the vectors' notation."""
    if isinstance(value, TPayload):
        schema = schema_of(type(value))
        fields = ((field.name, getattr(value, field.name)) for field in schema.fields)
        return {
            "$union" if schema.union else "$struct": schema.name,
            **{name: notation(item) for name, item in fields if item is not None},
        }
    if isinstance(value, IntEnum):
        return {"$enum": value.name, "value": value.value}
    if isinstance(value, bytes):
        return {"$hex": value.hex()}
    if isinstance(value, dict):
        return {"$map": [[notation(key), notation(item)] for key, item in value.items()]}
    if isinstance(value, set):
        return {"$set": sorted(notation(item) for item in value)}
    if isinstance(value, list | tuple):
        return [notation(item) for item in value]
    return value


def build(noted: Any) -> Any:
    """Return the value of ours that a value in the vectors' notation stands for."""
    if isinstance(noted, list):
        return [build(item) for item in noted]
    if not isinstance(noted, dict):
        return noted
    if "$enum" in noted:
        return noted["value"]
    if "$hex" in noted:
        return bytes.fromhex(noted["$hex"])
    if "$map" in noted:
        return {_build_key(key): build(item) for key, item in noted["$map"]}
    if "$set" in noted:
        return {build(item) for item in noted["$set"]}
    cls = record_class(noted.get("$struct") or noted["$union"])
    values = {
        field.name: _member(field.type, build(noted[field.name]))
        for field in schema_of(cls).fields
        if field.name in noted
    }
    assert len(values) == len(noted) - 1, f"unknown fields in {noted}"
    return cls(**values)


def _member(of: Type, value: Any) -> Any:
    """Return an enum's number as the enum: the notation has no name of its class."""
    kind, detail = of
    return detail(value) if kind == I32 and detail is not None else value


def _build_key(noted: Any) -> Any:
    key = build(noted)
    return tuple(key) if isinstance(key, list) else key
