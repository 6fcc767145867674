"""Pacemaker's messages and our extensions: the classes of ``pacemaker.thrift``.

They are typed in ``pacemaker.pyi``, and behave as `stormkeeper.thrift.records` says. Of these only
the payloads are used by the daemons; whole messages go through `stormkeeper.pacemaker.wire`, for
which the classes here are the independent second opinion.
"""

from stormkeeper.thrift import idl

globals().update(idl.load("pacemaker.thrift", __name__))
