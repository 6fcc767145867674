"""Authentication: JAAS files, and SASL mechanisms without I/O, with client and server halves."""

from stormkeeper.sasl.mechanism import Mechanism

__all__ = ["Mechanism"]
