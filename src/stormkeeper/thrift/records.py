"""Storm's records as Python classes: those of ``storm.thrift``, typed in ``records.pyi``.

A record takes its fields by position in the IDL's order or by name, and has them as attributes;
what is not set is None. In Python a list is a ``list``, but a ``tuple`` where it is a map's key
(an executor of an assignment is ``(1, 1)``); a set is a ``set``, a map a ``dict`` that keeps the
order it was read or built in, an enum an ``IntEnum``, binary ``bytes``. Records are mutable, equal
by value and hashable by value; one that is a map's key must not be changed.
"""

from stormkeeper.thrift import idl

globals().update(idl.load("storm.thrift", __name__))
