"""Heartbeats with ages, the coverage of their servers, and the rules of liveness."""
