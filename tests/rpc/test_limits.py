"""The limits of Nimbus's service that a configuration sets."""

import resource

from stormkeeper import conf
from stormkeeper.rpc.server import ServerLimits


def test_storms_defaults_are_the_defaults():
    limits = ServerLimits.of(conf.defaults())
    assert (limits.max_frame, limits.threads, limits.max_waiting) == (1 << 20, 64, 100_000)
    assert limits.answer_timeout * 1000 == conf.defaults()["storm.thrift.socket.timeout.ms"]


def test_configuration_sets_the_limits():
    changed = {
        "nimbus.thrift.max_buffer_size": 10,
        "nimbus.thrift.threads": 2,
        "nimbus.queue.size": 3,
    }
    limits = ServerLimits.of(conf.defaults().with_values(changed))
    assert (limits.max_frame, limits.threads, limits.max_waiting) == (10, 2, 3)


def test_a_submission_leaves_a_thread_for_fetches():
    limits = ServerLimits.of(conf.defaults().with_values({"nimbus.thrift.threads": 1}))
    assert limits.threads == 2


def test_there_are_no_more_connections_than_descriptors(monkeypatch):
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1_000, 1_000))
    assert ServerLimits.of(conf.defaults()).max_connections == 872
    monkeypatch.setattr(resource, "getrlimit", lambda _: (10, 10))
    assert ServerLimits.of(conf.defaults()).max_connections == 1
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1 << 20, 1 << 20))
    assert ServerLimits.of(conf.defaults()).max_connections == 2_000
