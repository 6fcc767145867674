"""Clients of Pacemakers: `PacemakerClient` for a server, `pool.PacemakerPool` for several."""

from stormkeeper.pacemaker.client.pacemaker_client import DEFAULT_PORT, PacemakerClient

__all__ = ["DEFAULT_PORT", "PacemakerClient"]
