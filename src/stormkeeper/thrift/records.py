"""Storm's records as Python classes, from ``storm.thrift``, typed in ``records.pyi``.

A record takes fields by name or in the IDL's order; unset fields are None. A list is a ``list``, or
a ``tuple`` as a map's key (``(1, 1)`` for an executor); an enum is an ``IntEnum``, binary
``bytes``. Records are mutable, equal and hashable by value; a map's key must not change.
"""

from stormkeeper.thrift import idl

globals().update(idl.load("storm.thrift", __name__))
