"""What every room's tests may use: ``tests/support`` as ``support``, and servers they all share."""

import logging
import os
import signal
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

sys.path.insert(0, str(Path(__file__).parent))

from support import machine, tiers
from support.ensemble import zookeeper_ensemble
from support.kerberos import kerberos_realm
from support.zookeeper import zookeeper_root, zookeeper_server, zookeeper_settings

__all__ = [
    "kerberos_realm",
    "zookeeper_ensemble",
    "zookeeper_root",
    "zookeeper_server",
    "zookeeper_settings",
]


# A machine that has other things to do is no fault of what is tested. All have the same examples of
# properties, so that what fails is what was changed; `make explore` looks for others.
settings.register_profile(
    "any machine",
    settings(),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    derandomize="EXPLORE" not in os.environ,
)
settings.load_profile("any machine")

# For tests of what decides which tests run.
pytest_plugins = ["pytester"]


# Not of pytest itself, and so not there without xdist.
@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    return machine.Schedule(config, log) if config.getvalue("dist") == "loadfile" else None


def pytest_collection_modifyitems(config, items):
    tiers.select(config, items)
    machine.put_in_order(items)


# Outside of the time-out, as it is nobody's fault how long the others take.
@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item):
    with machine.turn_of(item):
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call():
    root = logging.getLogger()
    level, handlers = root.level, root.handlers[:]
    try:
        return (yield)
    finally:
        # A daemon that a test runs in this process sets up the log of the whole process.
        root.setLevel(level)
        root.handlers[:] = handlers
        # A failing query has PySpark cut these off from the others, and pytest then gives them its
        # handler, which PySpark has write JSON: in whatever test comes next, and from any logger.
        for name in ("DataFrameQueryContextLogger", "SQLQueryContextLogger"):
            # (Not `getLogger`: they are of PySpark's class only if PySpark makes them.)
            logger = logging.Logger.manager.loggerDict.get(name)
            if isinstance(logger, logging.Logger):
                logger.propagate = True


if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # As a shell leaves it for what it runs in the background: daemons under test inherit that, and
    # would not be stopped by Ctrl-C.
    signal.signal(signal.SIGINT, signal.default_int_handler)
