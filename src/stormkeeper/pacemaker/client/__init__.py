"""Clients of Pacemakers: `single` talks to one server, `pool` to several that share nothing."""

from stormkeeper.pacemaker.client.single import DEFAULT_PORT, PacemakerClient

__all__ = ["DEFAULT_PORT", "PacemakerClient"]
