"""Clients of Pacemakers: `PacemakerClient` talks to one server, `pool.PacemakerPool` to several."""

from stormkeeper.pacemaker.client.pacemaker_client import DEFAULT_PORT, PacemakerClient

__all__ = ["DEFAULT_PORT", "PacemakerClient"]
