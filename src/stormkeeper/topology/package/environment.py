"""The identity of an environment: what is installed, and over what; pure but for `Base.here`.

Two topologies that ask for the same share one environment. A supervisor calls its folder after the
identity. So a change of anything that would be installed otherwise, or into another Python, gives
another folder.
"""

from __future__ import annotations

import hashlib
import platform
import sysconfig
from collections.abc import Iterable
from importlib import metadata
from typing import Final

import msgspec

import stormkeeper
from stormkeeper.errors import TopologyError
from stormkeeper.extras import require

#: Rises when environments of the same requirements are built in another way.
_FORMAT: Final = 1

#: Hexadecimal digits of an identity: 128 bits of a SHA-256, short enough for the first line of a
#: script, which Linux reads up to its 255th byte.
DIGITS: Final = 32


class Base(msgspec.Struct, frozen=True):
    """What an environment stands on.

    Parameters
    ----------
    python, abi, platform
        The Python, as ``3.11.7``, ``cpython-311-x86_64-linux-gnu`` and ``linux-x86_64``.
    stormkeeper, pyspark
        The versions that are installed there, which no requirement can replace.
    """

    python: str
    abi: str
    platform: str
    stormkeeper: str
    pyspark: str

    @classmethod
    def here(cls) -> Base:
        """Return what this process runs on.

        Raises
        ------
        MissingExtraError
            PySpark is not installed.
        """
        require("spark", "an environment for topologies", "pyspark")
        return cls(
            python=platform.python_version(),
            abi=str(sysconfig.get_config_var("SOABI")),
            platform=sysconfig.get_platform(),
            stormkeeper=stormkeeper.__version__,
            pyspark=metadata.version("pyspark"),
        )

    @property
    def versions(self) -> dict[str, str]:
        """What `requirements.parse` takes as a base."""
        return {"pyspark": self.pyspark, "stormkeeper": self.stormkeeper}


def identity(pins: Iterable[str], base: Base, wheels: Iterable[str] = ()) -> str:
    """Return the identity of an environment, `DIGITS` hexadecimal digits.

    Parameters
    ----------
    pins
        Pinned requirements, in any order.
    base
        What they are installed over.
    wheels
        The SHA-256 of each wheel that is installed from the package itself, in any order.

    Raises
    ------
    TopologyError
        Nothing is required. Then the base itself is the environment.
    """
    required = sorted(set(pins))
    if not required:
        raise TopologyError("where nothing is required there is no environment to build")
    facts = [_FORMAT, required, msgspec.structs.astuple(base), sorted(set(wheels))]
    return hashlib.sha256(msgspec.json.encode(facts)).hexdigest()[:DIGITS]
