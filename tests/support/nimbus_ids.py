"""What ``nimbus_ids.txt`` says: a table of Nimbus's service that owes nothing to our IDL.

A type is a name (``string``, ``i32``, … or a struct's or an enum's), ``("list", of)``, ``("set",
of)`` or ``("map", key, value)``.
"""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SCALARS = ("bool", "i32", "i64", "double", "string", "binary")


@dataclass(frozen=True)
class Field:
    id: int
    name: str
    mark: str
    type: Any


@dataclass(frozen=True)
class Struct:
    kind: str
    name: str
    fields: tuple[Field, ...]


@dataclass(frozen=True)
class Method:
    name: str
    arguments: tuple[Field, ...]
    returns: Any
    throws: dict[int, str]


def _split(text, by=","):
    """Split at what is in no brackets."""
    parts, depth = [""], 0
    for letter in text:
        depth += (letter in "[{(") - (letter in "]})")
        if letter == by and not depth:
            parts.append("")
        else:
            parts[-1] += letter
    return [part.strip() for part in parts if part.strip()]


def _type(text):
    if text.startswith("["):
        return "list", _type(text[1:-1])
    if text.startswith("{"):
        inner = _split(text[1:-1], ":")
        return ("set", _type(inner[0])) if len(inner) == 1 else ("map", *map(_type, inner))
    return text


def _fields(text):
    found = []
    for part in _split(text):
        field_id, name, mark, kind = re.fullmatch(r"(\d+) (\w+)([!?]?) (.+)", part).groups()
        found.append(Field(int(field_id), name, mark, _type(kind)))
    return tuple(found)


def _numbered(text):
    return {name: int(number) for name, number in (part.split() for part in _split(text))}


ENUMS: dict[str, dict[str, int]] = {}
METHODS: dict[str, Method] = {}
STRUCTS: dict[str, Struct] = {}

for _line in Path(__file__).with_suffix(".txt").read_text().splitlines():
    _kind, _, _rest = _line.partition(" ")
    if _kind == "enum":
        _name, _, _members = _rest.partition(" ")
        ENUMS[_name] = _numbered(_members)
    elif _kind == "method":
        _name, _arguments, _returns, _throws = re.fullmatch(
            r"(\w+)\((.*)\): ([^|]+?)(?: \| (.+))?", _rest
        ).groups()
        METHODS[_name] = Method(
            _name,
            _fields(_arguments),
            _type(_returns),
            {int(number): cls for number, cls in map(str.split, _split(_throws or ""))},
        )
    elif _kind in ("struct", "union", "exception"):
        _name, _, _body = _rest.partition(":")
        STRUCTS[_name] = Struct(_kind, _name, _fields(_body))
