"""Pacemaker's messages and our extensions, from ``pacemaker.thrift``, typed in ``pacemaker.pyi``.

Daemons use the payloads only: `stormkeeper.pacemaker.wire` has whole messages, and tests compare
both.
"""

from stormkeeper.thrift import idl

globals().update(idl.load("pacemaker.thrift", __name__))
