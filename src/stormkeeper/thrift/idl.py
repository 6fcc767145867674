"""Loads our IDL files into record classes, and says what their fields are.

thriftpy2 parses the files and makes the classes; what it leaves out is added here: enums that are
Python enums, value semantics (a record is equal to and hashes like any other with the same values,
as it must to be a map's key), a ``repr`` without secrets, and a normal form of the field types that
the codec works from.
"""

from __future__ import annotations

import io
from enum import IntEnum
from importlib import resources
from operator import attrgetter
from typing import Any, NamedTuple, cast

from thriftpy2 import load_fp
from thriftpy2.thrift import TPayload

#: Thrift's type numbers. Binary is thriftpy2's: on the wire it is a string.
BOOL, BYTE, DOUBLE, I16, I32, I64 = 2, 3, 4, 6, 8, 10
STRING, STRUCT, MAP, SET, LIST, BINARY = 11, 12, 13, 14, 15, 18

#: A field's type: Thrift's type number, and what it is made of. Nothing (``None``) for a scalar,
#: the class for an enum (I32) and for a struct, the element's `Type` for a list or set, and the
#: pair of key's and value's for a map.
Type = tuple[int, Any]


class Field(NamedTuple):
    """One field of a record."""

    id: int
    name: str
    type: Type
    #: Never absent in a valid record.
    required: bool
    #: The type that Storm 2 declares where it is another one.
    storm2: Type | None


class Schema(NamedTuple):
    """What a record class is on the wire."""

    name: str
    #: In the order of the IDL, which is the order they are written in.
    fields: tuple[Field, ...]
    #: At most one field is set; exactly one in what is written.
    union: bool


#: What a ``repr`` has in place of a secret.
_MASK = "***"

_SCHEMAS: dict[type, Schema] = {}
_SCALARS = frozenset((BOOL, BYTE, DOUBLE, I16, I32, I64, STRING, BINARY))
_INTEGERS = {"i32": I32, "i64": I64}


def wire_kind(of: Type) -> int:
    """Return the number by which a type shows on the wire."""
    return STRING if of[0] == BINARY else of[0]


def schema_of(cls: type) -> Schema:
    """Return the schema of a record class.

    Raises
    ------
    TypeError
        If `cls` is not a class of one of our IDL files.
    """
    try:
        return _SCHEMAS[cls]
    except KeyError:
        raise TypeError(f"{cls!r} is not a record class of stormkeeper.thrift") from None


def load(file: str, module: str) -> dict[str, type]:
    """Load an IDL file of this package.

    Parameters
    ----------
    file : str
        Its name, such as ``"storm.thrift"``.
    module : str
        The module that will hold the classes, so that they can be pickled.

    Returns
    -------
    dict of str to type
        Its enums, structs and unions by name.
    """
    text = resources.files(__package__).joinpath(file).read_text(encoding="utf-8")
    # The module name has to end this way for thriftpy2, which also keeps what it parsed by it.
    parsed = load_fp(io.StringIO(text), f"{module.replace('.', '_')}_thrift")
    meta = parsed.__thrift_meta__
    enums: dict[type, type] = {}
    for enum in meta["enums"]:
        members: dict[str, int] = enum._NAMES_TO_VALUES
        enums[enum] = cast("type", IntEnum(enum.__name__, members, module=module))
    classes = {enum.__name__: enum for enum in enums.values()}
    for cls in (*meta["structs"], *meta["unions"]):
        cls.__module__ = module
        _SCHEMAS[cls] = schema = _schema(cls, enums, union=cls in meta["unions"])
        _give_value_semantics(cls, schema)
        _hide_secrets(cls)
        classes[cls.__name__] = cls
    return classes


def _schema(cls: type[TPayload], enums: dict[type, type], *, union: bool) -> Schema:
    annotations: dict[str, dict[str, str]] = cls.__thrift_field_annotations__  # type: ignore[attr-defined]
    fields = []
    for field_id, (kind, name, *detail, required) in cls.thrift_spec.items():
        storm2 = annotations.get(name, {}).get("storm2")
        fields.append(
            Field(
                field_id,
                name,
                _normal(kind, detail[0] if detail else None, enums),
                required,
                (_INTEGERS[storm2], None) if storm2 else None,
            )
        )
    return Schema(cls.__name__, tuple(fields), union)


def _normal(kind: int, detail: Any, enums: dict[type, type]) -> Type:
    """Bring a type into our form: thriftpy2 writes a nested scalar as its bare number."""

    def part(of: Any) -> Type:
        kind, detail = of if isinstance(of, tuple) else (of, None)
        return _normal(kind, detail, enums)

    if kind in (LIST, SET):
        return kind, part(detail)
    if kind == MAP:
        return kind, (part(detail[0]), part(detail[1]))
    if kind == I32 and detail is not None:
        return kind, enums[detail]
    return kind, detail


def _give_value_semantics(cls: type[TPayload], schema: Schema) -> None:
    """Make records of `cls` hash by value.

    A record of scalars, as the keys of the statistics are, also compares the short way: a heartbeat
    hashes hundreds of them.
    """
    values = attrgetter(*(field.name for field in schema.fields))

    if any(field.type[0] not in _SCALARS for field in schema.fields):

        def by_value(self: Any) -> int:
            return hash(_frozen(values(self)))

        cls.__hash__ = by_value  # type: ignore[method-assign]
        return

    def by_scalars(self: Any) -> int:
        return hash(values(self))

    def equal(self: Any, other: object) -> bool:
        return type(other) is cls and values(self) == values(other)

    cls.__hash__ = by_scalars  # type: ignore[method-assign]
    cls.__eq__ = equal  # type: ignore[method-assign]


def _hide_secrets(cls: type[TPayload]) -> None:
    """Keep fields that are annotated ``(secret = "true")`` out of the ``repr``, but for names."""
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
    # The usual ones first: an assignment hashes the place of each worker.
    if type(value) in (str, int):
        return value
    if isinstance(value, set):
        return frozenset(value)
    if isinstance(value, list | tuple):
        return tuple([_frozen(item) for item in value])
    if isinstance(value, dict):
        return frozenset([(_frozen(key), _frozen(item)) for key, item in value.items()])
    return value
