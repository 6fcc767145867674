import re
import subprocess
import sys
from pathlib import Path

import pytest

import stormkeeper
from stormkeeper import conf
from stormkeeper.conf import keys
from stormkeeper.conf.schema import SCHEMA, SECTIONS
from stormkeeper.errors import ConfigError

PACKAGE = Path(stormkeeper.__file__).parent
DOCUMENT = PACKAGE.parent.parent / "docs" / "configuration.md"
SCRIPT = PACKAGE.parent.parent / "scripts" / "write-configuration"

OURS = {
    "nimbus.bind.host",
    "nimbus.checkpoint.retention.secs",
    "nimbus.metrics.bind.host",
    "nimbus.metrics.port",
    "nimbus.upload.max.bytes",
    "pacemaker.auth.writes",
    "pacemaker.bind.host",
    "pacemaker.engine",
    "pacemaker.frame.timeout.secs",
    "pacemaker.handshake.timeout.secs",
    "pacemaker.max.connections",
    "pacemaker.max.connections.per.address",
    "pacemaker.metrics.bind.host",
    "pacemaker.metrics.port",
    "pacemaker.output.timeout.secs",
    "pacemaker.path.max.bytes",
    "pacemaker.path.max.segments",
    "pacemaker.pulse.ttl.secs",
    "pacemaker.store.max.bytes",
    "pacemaker.tls.ca.file",
    "pacemaker.tls.certificate.file",
    "pacemaker.tls.check.hostname",
    "pacemaker.tls.client.auth",
    "pacemaker.tls.client.certificate.file",
    "pacemaker.tls.client.key.file",
    "pacemaker.tls.enable",
    "pacemaker.tls.key.file",
    "pacemaker.tls.minimum.version",
    "pipeline.analyses",
    "pipeline.analyses.secs",
    "pipeline.checkpoint.dir",
    "pipeline.late.secs",
    "pipeline.metrics.bind.host",
    "pipeline.metrics.port",
    "pipeline.retention.alerts.hours",
    "pipeline.retention.events.hours",
    "pipeline.retention.executor.stats.hours",
    "pipeline.retention.executor.stats.mb",
    "pipeline.retention.rejected.hours",
    "pipeline.retention.rollup.10m.hours",
    "pipeline.retention.rollup.1m.hours",
    "pipeline.retention.rollup.60m.hours",
    "pipeline.retention.stats.hours",
    "pipeline.statistics.parts",
    "pipeline.statistics.secs",
    "pipeline.tables.dir",
    "pipeline.trigger.secs",
    "storm.meta.serialization.release",
    "stormkeeper.ignore.security.keys",
    "supervisor.bind.host",
    "supervisor.worker.nice",
    "topology.checkpoint.abandon",
    "topology.checkpoint.dir",
    "topology.checkpoint.from",
    "topology.checkpoint.scripts",
    "topology.checkpoint.shared",
    "topology.restart",
    "topology.stuck.batch.secs",
    "topology.worker.memory.mb",
}

#: Rooms that no command uses yet, so that nothing comes of the keys that they read.
AHEAD: set[str] = set()

ACCEPTED = {
    "pacemaker.port": [0, 6699, 65535],
    "pacemaker.servers": [[], ["a"], ["a:1", "[::1]:2"]],
    "pacemaker.host": [None, "a", "a:7000"],
    "pacemaker.auth.method": ["NONE", "DIGEST", "KERBEROS", "SCRAM"],
    "pacemaker.auth.writes": [True, False],
    "pacemaker.metrics.port": [None, 0, 9090],
    "pacemaker.store.max.bytes": [None, 0, 2**40],
    "pacemaker.tls.minimum.version": ["TLSv1.2", "TLSv1.3"],
    "pacemaker.childopts": ["-Xmx1g", ["-Xmx1g", "-ea"], None],
    "pacemaker.pulse.ttl.secs": [0, 0.5, 3600],
    "storm.cluster.state.store": [
        "org.apache.storm.cluster.ZKStateStorageFactory",
        "org.apache.storm.pacemaker.pacemaker_state_factory",
        "org.apache.storm.cluster.PaceMakerStateStorageFactory",
    ],
    "storm.meta.serialization.release": [None, 2, 3],
    "storm.zookeeper.root": ["/", "/storm", "/a/b"],
    "storm.zookeeper.servers": [["zk1", "zk2:2182"]],
    "storm.zookeeper.retry.times": [0, 2**31 - 1],
    "logviewer.port": [None, 0, 8000],
    "nimbus.host": [None, "a", "a:6628", "[::1]:6627"],
    "nimbus.bind.host": ["::", "::1", "nimbus-1"],
    "storm.local.hostname": [None, "::1", "n_1.example.org."],
    "supervisor.cpu.capacity": [None, 400, 250.5],
    "supervisor.memory.capacity.mb": [None, 4096, 4096.0],
    "supervisor.slots.ports": [[], [6700, 6701]],
    "supervisor.worker.nice": [0, 19],
    "task.heartbeat.frequency.secs": [0.1, 3],
    "topology.environment": [None, {}, {"LANG": "C", "LEVEL": 3, "DEEP": True}],
    "topology.max.replication.wait.time.sec": [-1, 0, 60],
    "topology.min.replication.count": [None, 0, 2],
    "topology.restart": ["always", "on-failure", "never"],
    "pipeline.late.secs": [None, 9],
}

REFUSED = {
    "pacemaker.port": [-1, 65536, "6699", 1.5, True, None, [6699]],
    "pacemaker.servers": [None, [""], ["a:0"], ["a,b"], [6699], {"a": 1}, ["a:1:2"]],
    "pacemaker.host": ["", "a:x", 1, ["a"]],
    "pacemaker.auth.method": ["none", "", None, 1],
    "pacemaker.auth.writes": ["true", 1, None],
    "pacemaker.metrics.port": [-1, 65536, "9090", True],
    "pacemaker.store.max.bytes": [-1, "1", "1 GB", "g", "-1g", "1e3k", "9999999999t", 1.5, True],
    "pacemaker.tls.minimum.version": ["TLSv1", "1.2", None],
    "pacemaker.thrift.message.size.max": [0, 2**31, 1e6],
    "pacemaker.pulse.ttl.secs": [-1, "0", float("nan"), float("inf"), True],
    "storm.cluster.state.store": ["", "zookeeper", None],
    "storm.meta.serialization.delegate": ["org.apache.storm.serialization.Zip", None],
    "storm.meta.serialization.release": [1, 4, "3", 3.0, 2.8, True],
    "storm.zookeeper.root": ["", "storm", "/storm/", "//", "/a b"],
    "storm.zookeeper.servers": [[], ["a:x"], None],
    "nimbus.seeds": [[], [1], ["${host}"], ["a..b"]],
    "nimbus.host": ["%nimbus%", ["a"], "<host>:6627"],
    "nimbus.bind.host": ["", "0.0.0.0:6627", "10.0.0.256"],
    "storm.local.hostname": ["{{ host }}", "-a", "[::1]"],
    "storm.local.dir": ["", None, 1],
    "supervisor.memory.capacity.mb": [0, -1, "4096", float("nan"), float("inf")],
    "supervisor.slots.ports": [[0], [6700, 6700], ["6700"], None],
    "supervisor.worker.nice": [-1, 20, 1.5, None],
    "task.heartbeat.frequency.secs": [0, -1, "3", None, 2**31],
    "topology.environment": [
        *("LANG=C", ["LANG"], {"": "C"}, {"LANG": None}, {"LANG": ["C"]}),
        *({"LANG=C": ""}, {"LA\0NG": "C"}, {"LANG": "C\0"}),
    ],
    "topology.workers": [0, 1.5],
    "topology.max.replication.wait.time.sec": [-2],
    "topology.min.replication.count": [-1, "2"],
    "topology.restart": ["on_failure", "no", True, None],
    "storm.health.check.timeout.ms": [0, 0.5, None],
    "supervisor.worker.shutdown.sleep.secs": [-1, None],
}


def pairs(table):
    return [(key, value) for key, values in table.items() for value in values]


@pytest.mark.parametrize(("key", "value"), pairs(ACCEPTED))
def test_accepts(key, value):
    converted = SCHEMA[key].convert(value)
    assert converted == value
    assert type(converted) is type(value)


@pytest.mark.parametrize(("key", "value"), pairs(REFUSED))
def test_refuses(key, value):
    with pytest.raises(ConfigError, match=r"^expected ") as failure:
        SCHEMA[key].convert(value)
    assert SCHEMA[key].allowed in str(failure.value)


@pytest.mark.parametrize(
    ("written", "size"),
    [
        ("0k", 0),
        ("512m", 512 * 2**20),
        ("512 MiB", 512 * 2**20),
        ("1.5g", 3 * 2**29),
        ("2Gi", 2**31),
        ("1T", 2**40),
    ],
)
def test_sizes_may_have_a_unit(written, size):
    assert SCHEMA["pacemaker.store.max.bytes"].convert(written) == size


@pytest.mark.parametrize("key", [key for key in SCHEMA.values() if key.is_list])
def test_a_scalar_is_a_list_of_one(key):
    scalar = {"supervisor.slots.ports": 6700, "pipeline.analyses": "skew"}.get(key.name, "a")
    assert key.convert(scalar) == [scalar]


@pytest.mark.parametrize(
    "delegate", ["Thrift", "GzipThrift", "GzipBridgeThrift", "ZstdThrift", "ZstdBridgeThrift"]
)
def test_storms_delegates(delegate):
    name = f"org.apache.storm.serialization.{delegate}SerializationDelegate"
    assert SCHEMA["storm.meta.serialization.delegate"].convert(name) == name


def test_every_key_has_a_default_and_every_default_a_key():
    assert set(conf.defaults()) == set(SCHEMA)


def test_keys_are_storms_or_listed_as_ours():
    assert {key for key in SCHEMA if key not in keys.storm_keys()} == OURS


def test_every_key_that_the_code_reads_is_in_the_schema():
    rooms = "pacemaker|storm|nimbus|supervisor|logviewer|worker|task|topology|pipeline|ui"
    read = re.compile(rf"""(?:\[|\.get\()\s*["']((?:{rooms})\.[\w.]+)["']""")
    found = {
        (path.relative_to(PACKAGE).as_posix(), key)
        for path in PACKAGE.rglob("*.py")
        for key in read.findall(path.read_text())
    }
    assert len(found) > 10
    assert {(path, key) for path, key in found if key not in SCHEMA} == set()


def is_read(name: str) -> bool:
    """Whether any code but the schema names the key, of the rooms that a command uses."""
    sources = (
        path
        for path in PACKAGE.rglob("*.py")
        if path.name != "schema.py" and path.relative_to(PACKAGE).parts[0] not in AHEAD
    )
    return any(f'"{name}"' in text or f"'{name}'" in text for text in map(Path.read_text, sources))


def test_keys_without_effect_are_those_that_no_code_reads():
    assert {key for key in SCHEMA if not is_read(key)} == {
        key.name for key in SECTIONS["Without effect"]
    }


def test_configuration_page_is_what_the_script_writes(tmp_path):
    page = tmp_path / "configuration.md"
    page.write_text(DOCUMENT.read_text())
    subprocess.run([sys.executable, SCRIPT, page], timeout=60, check=True)
    assert page.read_text() == DOCUMENT.read_text(), "run scripts/write-configuration"
    assert all(page.read_text().count(f"| `{name}`") == 1 for name in SCHEMA)
