"""Heartbeats with ages, the coverage of their servers, and the rules of liveness.

A pulse is a heartbeat as a Pacemaker holds it.
"""
