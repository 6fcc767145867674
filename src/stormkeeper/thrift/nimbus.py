"""Nimbus's service and records, from ``nimbus.thrift``, typed in ``nimbus.pyi``.

Records behave as in `stormkeeper.thrift.records`. ``Nimbus`` is the service on the wire.
"""

from typing import Protocol

from stormkeeper.thrift import idl, records


class NimbusCalls(Protocol):
    """Nimbus's methods in Python's types, for handlers and clients."""


globals().update(idl.load("nimbus.thrift", __name__, {"storm": records}))
