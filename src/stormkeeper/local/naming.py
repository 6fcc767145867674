"""The id of a topology that runs locally.

The id is needed before the worker starts, and only the worker runs the script. So the name is read
from the source.
"""

from pathlib import Path

from stormkeeper.errors import LocalClusterError
from stormkeeper.topology.source import declared_name, script_name


def storm_id(script: Path, now: float) -> str:
    """Return a topology's id in Storm's form, ``name-number-epoch``.

    The name is that of ``Topology("name")`` in the script; or the file's, where there is none, or
    several, or the name is not written out there.

    Raises
    ------
    LocalClusterError
        When the script cannot be read.
    """
    try:
        source = script.read_bytes()
    except OSError as error:
        raise LocalClusterError(f"{script} cannot be read: {error.strerror}") from error
    name = declared_name(source)
    if name is None:
        name = script_name(script)
    return f"{name}-1-{int(now)}"
