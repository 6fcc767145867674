"""Reads as kazoo's requests, what is answered to them, and times for who makes them."""

from kazoo.protocol.serialization import GetData

#: No ping comes before any call's time is up, and so none wakes up what should have been awake.
TIMES = {"session_timeout_secs": 120.0, "call_timeout_secs": 20.0, "retry_interval_secs": 0.05}


def paths(count):
    return [f"/{number}" for number in range(count)]


def reads(nodes):
    return [GetData(node, None) for node in nodes]


def values(answers):
    return [value.decode() for value, _ in answers]
