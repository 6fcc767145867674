"""The names that topologies may have; pure."""

from __future__ import annotations

import re
from typing import Final

from stormkeeper.code import keys
from stormkeeper.errors import InvalidBlobKeyError
from stormkeeper.thrift.nimbus import InvalidTopologyException

#: Storm's rule.
_NAME: Final = re.compile(r"[^/.:\\]+")


def check(name: str) -> None:
    """Check a topology's name.

    Raises
    ------
    InvalidTopologyException
        None can be called so.
    """
    if not _NAME.fullmatch(name):
        raise InvalidTopologyException(
            f"Topology name '{name}' is not valid. It can't be null and it must match ^[^/.:\\\\]+$"
        )
    try:
        # As long as any id that is made of it.
        for key in keys.of_topology(f"{name}-2147483647-2147483647"):
            keys.check(key)
    except InvalidBlobKeyError as error:
        raise InvalidTopologyException(
            f"Topology name '{name}' is not valid, as its code is kept under it: {error}"
        ) from error
