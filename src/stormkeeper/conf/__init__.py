"""Configuration: Storm's keys and defaults, ``storm.yaml``, and ``-c key=value``."""

from stormkeeper.conf.address import Address
from stormkeeper.conf.layers import Conf, Finding, Unknown, check, defaults, load, mistyped

__all__ = ["Address", "Conf", "Finding", "Unknown", "check", "defaults", "load", "mistyped"]
