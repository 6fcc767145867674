"""Stormkeeper: the coordination plane of an Apache Storm cluster, in Python."""

__version__ = "0.1.0"
