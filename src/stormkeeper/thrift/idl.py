"""Loads IDL files: record classes, exceptions and services, with schemas of their fields.

thriftpy2 parses the files and makes the classes. Added are Python enums, equality and hash by
value, a ``repr`` without secrets, and normalized field types. Exceptions, arguments and answers of
methods are records too.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Mapping
from enum import IntEnum
from importlib import resources
from operator import attrgetter
from types import MappingProxyType, ModuleType
from typing import Any, NamedTuple, cast

from thriftpy2 import load_fp
from thriftpy2.thrift import TPayload

#: Thrift's type numbers. BINARY is thriftpy2's: a string on the wire.
BOOL, BYTE, DOUBLE, I16, I32, I64 = 2, 3, 4, 6, 8, 10
STRING, STRUCT, MAP, SET, LIST, BINARY = 11, 12, 13, 14, 15, 18

#: Thrift's type number, and None for a scalar, the class for an enum (I32) or struct, the element's
#: `Type` for a list or set, or the pair of key's and value's for a map.
Type = tuple[int, Any]


class Field(NamedTuple):
    """A field of a record."""

    id: int
    name: str
    type: Type
    required: bool
    storm2: Type | None


class Schema(NamedTuple):
    """The fields of a record class."""

    name: str
    #: In the IDL's order, as on the wire.
    fields: tuple[Field, ...]
    union: bool


class Method(NamedTuple):
    """A method of a service."""

    name: str
    arguments: type[TPayload]
    #: ``success`` (id 0), if any, and a field for each exception; at most one is set. None for a
    #: ``oneway`` method.
    answer: type[TPayload] | None


class Service(NamedTuple):
    """A service with own and inherited methods by name."""

    name: str
    methods: Mapping[str, Method]


_MASK = "***"

_SCHEMAS: dict[type, Schema] = {}
_SCALARS = frozenset((BOOL, BYTE, DOUBLE, I16, I32, I64, STRING, BINARY))
_INTEGERS = {"i32": I32, "i64": I64}
_INCLUDE = re.compile(r'^include "(\w+)\.thrift"$', re.MULTILINE)


def wire_kind(of: Type) -> int:
    return STRING if of[0] == BINARY else of[0]


def schema_of(cls: type) -> Schema:
    """Return a record class's schema; raise `TypeError` for another class."""
    try:
        return _SCHEMAS[cls]
    except KeyError:
        raise TypeError(f"{cls!r} is not a record class of stormkeeper.thrift") from None


def load(
    file: str, module: str, included: Mapping[str, ModuleType] = MappingProxyType({})
) -> dict[str, type | Service]:
    """Load an IDL file of this package; return enums, records, exceptions and services by name.

    `module` will hold the classes, for pickle; `included` has modules by file name without
    ``.thrift``.
    """
    text = resources.files(__package__).joinpath(file).read_text(encoding="utf-8")
    return load_text(text, module, included)


def load_text(
    text: str, module: str, included: Mapping[str, ModuleType] = MappingProxyType({})
) -> dict[str, type | Service]:
    text, elsewhere = _without_includes(text, included)
    # thriftpy2 requires this ending, and caches by the name.
    parsed = load_fp(io.StringIO(text), f"{module.replace('.', '_')}_thrift")
    meta = parsed.__thrift_meta__
    ours: dict[type, type] = {}
    loaded: dict[str, type | Service] = {}
    for cls in (*meta["enums"], *meta["structs"]):
        if cls.__name__ in elsewhere:
            ours[cls] = elsewhere[cls.__name__]
    for enum in meta["enums"]:
        if enum not in ours:
            members: dict[str, int] = enum._NAMES_TO_VALUES
            ours[enum] = cast("type", IntEnum(enum.__name__, members, module=module))
            loaded[enum.__name__] = ours[enum]

    def record(cls: type[TPayload], *, union: bool = False) -> type[TPayload]:
        cls.__module__ = module
        _SCHEMAS[cls] = schema = _schema(cls, ours, union=union)
        _give_value_semantics(cls, schema)
        _hide_secrets(cls)
        return cls

    for cls in (*meta["structs"], *meta["unions"], *meta["exceptions"]):
        if cls not in ours:
            loaded[cls.__name__] = record(cls, union=cls in meta["unions"])
    for exception in meta["exceptions"]:
        exception.__str__ = _message
    for service in meta["services"]:
        methods = {}
        for name in service.thrift_services:
            answer = getattr(service, f"{name}_result")
            methods[name] = Method(
                name,
                record(getattr(service, f"{name}_args")),
                None if answer.oneway else record(answer),
            )
        loaded[service.__name__] = Service(service.__name__, MappingProxyType(methods))
    return loaded


def _without_includes(text: str, included: Mapping[str, ModuleType]) -> tuple[str, dict[str, type]]:
    """Return an IDL without includes, and the included classes by new names.

    thriftpy2 would make the classes again. So each is declared, without fields, under a unique
    name.
    """
    declared: list[str] = []
    elsewhere: dict[str, type] = {}
    includes = _INCLUDE.findall(text)
    text = _INCLUDE.sub("", text)
    for name in includes:
        holder = included[name]
        text = re.sub(rf"\b{name}\.", f"{name}__", text)
        for cls in vars(holder).values():
            if isinstance(cls, type) and cls.__module__ == holder.__name__:
                alias = f"{name}__{cls.__name__}"
                elsewhere[alias] = cls
                kind, body = ("enum", "NONE = 0") if issubclass(cls, IntEnum) else ("struct", "")
                declared.append(f"{kind} {alias} {{{body}}}")
    return "\n".join([*declared, text]), elsewhere


def _message(exception: Any) -> str:
    """Return an exception's ``msg``, as Storm's have, or else the fields."""
    message = getattr(exception, "msg", None)
    return message if isinstance(message, str) else repr(exception)


def _schema(cls: type[TPayload], ours: dict[type, type], *, union: bool) -> Schema:
    annotations: dict[str, dict[str, str]] = cls.__thrift_field_annotations__  # type: ignore[attr-defined]
    fields = []
    # An answer's success is last for thriftpy2, and first on the wire.
    spec = dict(sorted(cls.thrift_spec.items())) if 0 in cls.thrift_spec else cls.thrift_spec
    for field_id, (kind, name, *detail, required) in spec.items():
        storm2 = annotations.get(name, {}).get("storm2")
        fields.append(
            Field(
                field_id,
                name,
                _normal(kind, detail[0] if detail else None, ours),
                required,
                (_INTEGERS[storm2], None) if storm2 else None,
            )
        )
    return Schema(cls.__name__, tuple(fields), union)


def _normal(kind: int, detail: Any, ours: dict[type, type]) -> Type:
    """Normalize a type: thriftpy2 writes nested scalars as bare numbers."""

    def part(of: Any) -> Type:
        kind, detail = of if isinstance(of, tuple) else (of, None)
        return _normal(kind, detail, ours)

    if kind in (LIST, SET):
        return kind, part(detail)
    if kind == MAP:
        return kind, (part(detail[0]), part(detail[1]))
    if isinstance(detail, type):
        return kind, ours.get(detail, detail)
    return kind, detail


def _give_value_semantics(cls: type[TPayload], schema: Schema) -> None:
    """Make records hash by value; records of scalars also compare faster."""
    names = [field.name for field in schema.fields]
    values: Callable[[Any], Any] = attrgetter(*names) if names else lambda _: ()

    def equal(self: Any, other: object) -> bool:
        return type(other) is cls and values(self) == values(other)

    if issubclass(cls, Exception):  # thriftpy2 compares exceptions by identity
        cls.__eq__ = equal  # type: ignore[method-assign]

    if any(field.type[0] not in _SCALARS for field in schema.fields):

        def by_value(self: Any) -> int:
            return hash(_frozen(values(self)))

        cls.__hash__ = by_value  # type: ignore[method-assign]
        return

    def by_scalars(self: Any) -> int:
        return hash(values(self))

    cls.__hash__ = by_scalars  # type: ignore[method-assign]
    cls.__eq__ = equal  # type: ignore[method-assign]


def _hide_secrets(cls: type[TPayload]) -> None:
    """Mask fields that are annotated ``(secret = "true")`` in the ``repr``."""
    annotations: dict[str, dict[str, str]] = cls.__thrift_field_annotations__  # type: ignore[attr-defined]
    secrets = {name for name, notes in annotations.items() if notes.get("secret") == "true"}
    if not secrets:
        return

    def without_secrets(self: Any) -> str:
        fields = [
            f"{name}={_masked(value) if name in secrets else repr(value)}"
            for name, value in vars(self).items()
        ]
        return f"{cls.__name__}({', '.join(fields)})"

    cls.__repr__ = without_secrets  # type: ignore[method-assign]


def _masked(value: Any) -> str:
    if value is None:
        return "None"
    if isinstance(value, dict):
        return repr(dict.fromkeys(value, _MASK))
    return repr(_MASK)


def _frozen(value: Any) -> Any:
    # The usual types first: an assignment hashes the slot of each worker.
    if type(value) in (str, int):
        return value
    if isinstance(value, set):
        return frozenset(value)
    if isinstance(value, list | tuple):
        return tuple([_frozen(item) for item in value])
    if isinstance(value, Mapping):
        return frozenset([(_frozen(key), _frozen(item)) for key, item in value.items()])
    return value
