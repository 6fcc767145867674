"""Nimbus's service and its records: ``nimbus.thrift``, typed in ``nimbus.pyi``.

The records behave as `stormkeeper.thrift.records` says; those that it has are imported from there.
``Nimbus`` is the service as it goes over the wire. `NimbusCalls` has the same methods in Python's
types, for whoever serves or calls them.
"""

from typing import Protocol

from stormkeeper.thrift import idl, records


class NimbusCalls(Protocol):
    """Nimbus's methods: what a handler has and what a client offers."""


globals().update(idl.load("nimbus.thrift", __name__, {"storm": records}))
