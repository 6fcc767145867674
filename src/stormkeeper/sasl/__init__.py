"""Authentication: JAAS files, and SASL mechanisms without I/O, each a client and a server half."""

from stormkeeper.sasl.mechanism import Mechanism

__all__ = ["Mechanism"]
