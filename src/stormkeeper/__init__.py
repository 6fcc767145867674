"""Stormkeeper: the coordination plane of an Apache Storm cluster, in Python."""

__version__ = "0.1.0"

#: The version of Stormkeeper whose daemons may not say in ZooKeeper that they are Stormkeeper's. No
#: release of Storm has it.
UNNAMED_VERSION = "0.1.0"
