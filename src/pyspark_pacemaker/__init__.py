"""Where Spark looks for ``format("pacemaker")``: it imports ``pyspark_<name>`` by itself.

`register` is for a session whose workers run another Python.
"""

from stormkeeper.pipeline.python_workers import register
from stormkeeper.pipeline.source import PacemakerDataSource

__all__ = ["DefaultSource", "register"]


class DefaultSource(PacemakerDataSource):
    """The data source that Spark finds by the name of this module."""
