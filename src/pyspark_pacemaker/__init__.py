"""Where Spark looks for ``format("pacemaker")``: it imports ``pyspark_<name>`` by itself."""

from stormkeeper.pipeline.source import PacemakerDataSource


class DefaultSource(PacemakerDataSource):
    """The data source that Spark finds by the name of this module."""
