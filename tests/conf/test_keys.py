import string
from pathlib import Path

import pytest

from stormkeeper.conf import keys
from stormkeeper.conf.schema import SCHEMA


def names() -> list[str]:
    return Path(keys.__file__).with_name("storm_keys.txt").read_text().splitlines()


def test_the_list_is_sorted_and_plain():
    listed = names()
    assert listed == sorted(set(listed))
    assert set("".join(listed)) <= set(string.ascii_letters + string.digits + "._-")
    assert len(listed) > 500


@pytest.mark.parametrize(
    "key",
    [
        # one of each of Storm's sources: Config, DaemonConfig, defaults.yaml, retired ones
        *("topology.kryo.register", "storm.zookeeper.superACL", "storm.doAsUser"),
        *("ui.https.keystore.password", "storm.oci.image", "nimbus.slots.perTopology"),
        *("supervisor.supervisors.commands", "pacemaker.base.threads", "ui.actions.enabled"),
        *("nimbus.host", "zmq.threads", "topology.disruptor.wait.strategy"),
        *("topology.optimize", "storm.exhibitor.port", "storm.messaging.netty.max_retries"),
        *("nimbus.thrift.tls.port", "storm.compression.zstd.level", "topology.tracing.tracer"),
        # families
        *("spark.master", "spark.hadoop.fs.s3a.endpoint", "java.security.auth.login.config"),
        "storm.daemon.metrics.reporter.plugin.prometheus.job",
    ],
)
def test_storms_keys_are_known(key):
    assert keys.is_known(key)


@pytest.mark.parametrize("key", ["pacemaker.prot", "topology", "sparkle.master", "input", ""])
def test_others_are_not(key):
    assert not keys.is_known(key)


def test_the_nearest_key():
    assert keys.nearest("pacemaker.prot") == "pacemaker.port"
    assert keys.nearest("topology.worker") == "topology.workers"
    assert keys.nearest("pipeline.trigger.sec", SCHEMA) == "pipeline.trigger.secs"
    assert keys.nearest("pacemaker.ttl.secs", SCHEMA) == "pacemaker.pulse.ttl.secs"
    assert keys.nearest("pacemakr.port") == "pacemaker.port"
    assert keys.nearest("input") is None


@pytest.mark.parametrize("key", ["pacemaker.bogus", "nimbus.bogus.secs", "topology.xyz"])
def test_a_beginning_that_keys_share_makes_none_of_them_near(key):
    assert keys.nearest(key, SCHEMA) is None


@pytest.mark.parametrize(
    ("key", "secret"),
    [
        ("storm.zookeeper.auth.payload", True),
        ("storm.zookeeper.topology.auth.payload", True),
        ("ui.https.key.password", True),
        ("spark.ssl.keyPassword", True),
        ("spark.hadoop.fs.s3a.access.key", True),
        ("some.plugin.shared_secret", True),
        ("pacemaker.port", False),
        ("storm.zookeeper.auth.scheme", False),
        ("topology.kryo.register", False),
    ],
)
def test_what_may_be_a_password(key, secret):
    assert keys.is_secret(key) is secret
