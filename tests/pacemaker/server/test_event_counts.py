"""The causes that are in the metrics from the start are those that are counted, and all of them."""

import ast
from pathlib import Path

import pytest

from stormkeeper.daemon import sockets
from stormkeeper.pacemaker import server
from stormkeeper.pacemaker.server import channels
from stormkeeper.pacemaker.server.server_status import (
    CLOSED,
    REFUSED,
    TURNED_AWAY,
    WRITE,
    EventCounts,
)

SOURCES = [*Path(server.__path__[0]).rglob("*.py"), Path(sockets.__file__)]
TREES = {path: ast.parse(path.read_text()) for path in SOURCES}


def nodes(kind):
    return [node for tree in TREES.values() for node in ast.walk(tree) if isinstance(node, kind)]


def first(nodes):
    """Return the first of some nodes as the word that it is; nothing if it is none."""
    return {node.value for node in nodes[:1] if isinstance(node, ast.Constant) and node.value}


def counted_in(counter):
    """Words that are counted where they stand: ``events.COUNTER["word"]``, or with a second."""
    found = set()
    for node in nodes(ast.Subscript):
        if isinstance(node.value, ast.Attribute) and node.value.attr == counter:
            found |= first(node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice])
    return found


def assigned_to(attribute):
    """Words that are given to an attribute of that name."""
    found = set()
    for node in nodes(ast.Assign):
        targets, values = node.targets, [node.value]
        if isinstance(node.value, ast.Tuple) and isinstance(targets[0], ast.Tuple):
            targets, values = targets[0].elts, node.value.elts
        for target, value in zip(targets, values, strict=False):
            if isinstance(target, ast.Attribute) and target.attr == attribute:
                found |= first([value])
    return found


def passed_to(*functions):
    """Words that are the first argument of one of some functions."""
    found = set()
    for node in nodes(ast.Call):
        name = node.func.attr if isinstance(node.func, ast.Attribute) else None
        if (name or getattr(node.func, "id", None)) in functions:
            found |= first(node.args)
    return found


def returned_by(function):
    """Words that come first in what a function returns."""
    found = set()
    for made in nodes(ast.FunctionDef):
        for node in ast.walk(made) if made.name == function else ():
            if isinstance(node, ast.Return) and isinstance(node.value, ast.Tuple):
                found |= first(node.value.elts)
    return found


def named_by_channels():
    """Words that both engines end a channel with: constants, beside reasons of several words."""
    texts = [value for name, value in vars(channels).items() if name.isupper()]
    return {text for text in texts if isinstance(text, str) and text and " " not in text}


@pytest.mark.parametrize(
    ("known", "counted"),
    [
        (TURNED_AWAY, counted_in("turned_away") | returned_by("refuses")),
        (CLOSED, counted_in("closed") | assigned_to("cause") | named_by_channels()),
        (
            {cause for cause, _ in REFUSED},
            counted_in("refusals") | passed_to("_refuse", "LimitError"),
        ),
    ],
    ids=["turned away", "closed", "refused"],
)
def test_all_counted_causes_are_known(known, counted):
    assert counted == set(known)


@pytest.mark.parametrize(
    "count",
    [
        lambda events: events.turned_away.update(["connections"]),
        lambda events: events.turned_away.update(["descriptors"]),
        lambda events: events.closed.update(["memory"]),
        lambda events: events.closed.update(["error"]),
        lambda events: events.refusals.update([("store-full", WRITE)]),
    ],
)
def test_events_that_may_have_lost_a_pulse(count):
    events = EventCounts()
    events.refusals["path", WRITE] += 1
    events.closed["protocol"] += 1
    assert events.lost_pulses() == 0
    count(events)
    assert events.lost_pulses() == 1
