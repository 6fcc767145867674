"""Pacemaker, the heartbeat server of a cluster: wire protocol, pulse store, daemon, and clients."""
