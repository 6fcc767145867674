"""Pacemaker's messages and our extensions, from ``pacemaker.thrift``, typed in ``pacemaker.pyi``.

The daemons use the payloads only; whole messages go through `stormkeeper.pacemaker.wire`, which
tests compare with the classes here.
"""

from stormkeeper.thrift import idl

globals().update(idl.load("pacemaker.thrift", __name__))
