"""Hypothesis strategies that make valid records of any class, from its schema."""

from enum import IntEnum
from functools import cache
from typing import Any

from hypothesis import strategies as st
from thriftpy2.thrift import TPayload

from stormkeeper.thrift import idl

_SCALARS: dict[int, st.SearchStrategy[Any]] = {
    idl.BOOL: st.booleans(),
    idl.I16: st.integers(-(2**15), 2**15 - 1),
    idl.I32: st.integers(-(2**31), 2**31 - 1),
    idl.I64: st.integers(-(2**63), 2**63 - 1),
    idl.DOUBLE: st.floats(allow_nan=False),
    idl.STRING: st.text(max_size=12),
    idl.BINARY: st.binary(max_size=12),
}


@cache
def records(cls: type[TPayload]) -> st.SearchStrategy[Any]:
    """Return a strategy for records of `cls` that fit their schema, Storm 2's widths included."""
    schema = idl.schema_of(cls)
    values = {field.name: _values(field.storm2 or field.type) for field in schema.fields}
    if schema.union:
        members = [
            strategy.map(lambda v, n=name: cls(**{n: v})) for name, strategy in values.items()
        ]
        return st.one_of(members)
    required = {field.name for field in schema.fields if field.required}
    return st.builds(
        cls,
        **{
            name: strategy if name in required else st.none() | strategy
            for name, strategy in values.items()
        },
    )


def _values(of: idl.Type, *, as_key: bool = False) -> st.SearchStrategy[Any]:
    kind, detail = of
    if kind == idl.STRUCT:
        return st.deferred(lambda: records(detail))
    if kind == idl.MAP:
        return st.dictionaries(_values(detail[0], as_key=True), _values(detail[1]), max_size=3)
    if kind == idl.SET:
        return st.sets(_values(detail), max_size=3)
    if kind == idl.LIST:
        elements = st.lists(_values(detail), max_size=3)
        return elements.map(tuple) if as_key else elements
    if isinstance(detail, type) and issubclass(detail, IntEnum):
        return st.sampled_from(list(detail))
    return _SCALARS[kind]
