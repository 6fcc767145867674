"""Reads as requests, what is answered to them, and times for who makes them."""

from stormkeeper.state.zookeeper import requests

#: No ping comes before any call's time is up, and so none wakes up what should have been awake.
TIMES = {"session_timeout_secs": 120.0, "call_timeout_secs": 20.0, "retry_interval_secs": 0.05}


def paths(count):
    return [f"/{number}" for number in range(count)]


def reads(nodes):
    return list(map(requests.get, nodes))


def values(answers):
    return [value.decode() for value, _ in answers]
