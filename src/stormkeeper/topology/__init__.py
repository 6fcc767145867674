"""What a user writes: a `Topology` of spouts and bolts on PySpark.

Importing this imports no PySpark: the functions of a topology are called by its worker, later.
"""

from stormkeeper.topology.topology import Component, Topology

__all__ = ["Component", "Topology"]
