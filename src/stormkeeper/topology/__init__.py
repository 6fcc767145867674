"""The API of topologies: spouts and bolts on PySpark.

Importing this imports no PySpark: the worker calls a topology's functions later.
"""

from stormkeeper.topology.topology import Component, Topology

__all__ = ["Component", "Topology"]
