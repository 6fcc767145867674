"""The implementations of the pulse index: the plain one, and the compiled one where it is built."""

from importlib import import_module
from importlib.util import find_spec

from stormkeeper.pacemaker.server.pulse_index import PulseIndex

_COMPILED = "stormkeeper.pacemaker.server._compiled"

#: By name.
INDEXES: dict[str, type[PulseIndex]] = {"plain": PulseIndex}
if find_spec(_COMPILED) is not None:
    INDEXES["compiled"] = import_module(_COMPILED).PulseIndex
