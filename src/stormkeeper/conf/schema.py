"""What each configuration key may be that this project reads, or will: its type, range, meaning.

Every key here has a default in ``defaults.yaml``. Storm's other keys have no schema: they are
accepted by name (`stormkeeper.conf.keys`) and kept as they were written. Names, units and ranges
of Storm's keys are Storm's; where Storm wants whole seconds, fractions are taken too.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from stormkeeper.conf.address import MAX_PORT, Address
from stormkeeper.errors import ConfigError

#: Storm reads its numbers as Java ints; a larger one in a shared file would stop Storm's daemons.
JAVA_INT_MAX = 2**31 - 1

#: State store that keeps heartbeats in ZooKeeper too.
ZOOKEEPER_STATE_STORE = "org.apache.storm.cluster.ZKStateStorageFactory"

#: Names of the state store that sends heartbeats to Pacemaker: that of Storm's documentation
#: (a Clojure namespace, since gone), and that of its code.
PACEMAKER_STATE_STORES = (
    "org.apache.storm.pacemaker.pacemaker_state_factory",
    "org.apache.storm.cluster.PaceMakerStateStorageFactory",
)

StateStore = Literal[
    "org.apache.storm.cluster.ZKStateStorageFactory",
    "org.apache.storm.pacemaker.pacemaker_state_factory",
    "org.apache.storm.cluster.PaceMakerStateStorageFactory",
]

#: Storm's names of its delegates. A bridge reads older formats too, as every one does here.
SerializationDelegate = Literal[
    "org.apache.storm.serialization.ThriftSerializationDelegate",
    "org.apache.storm.serialization.GzipThriftSerializationDelegate",
    "org.apache.storm.serialization.GzipBridgeThriftSerializationDelegate",
    "org.apache.storm.serialization.ZstdThriftSerializationDelegate",
    "org.apache.storm.serialization.ZstdBridgeThriftSerializationDelegate",
]

#: Storm's methods, and SCRAM, which is ours.
AuthMethod = Literal["NONE", "DIGEST", "KERBEROS", "SCRAM"]

#: What a Pacemaker with TLS asks of its clients.
ClientCertificates = Literal["none", "optional", "required"]

TlsVersion = Literal["TLSv1.2", "TLSv1.3"]

#: Which of its two forms a Pacemaker runs: compiled, or plain Python.
PacemakerEngine = Literal["auto", "compiled", "interpreted"]

#: ZooKeeper's rule for a path: begins with a slash, no empty parts, no slash at the end.
_ZNODE = r"^/([^/\s]+(/[^/\s]+)*)?$"

_Text = Annotated[str, Meta(min_length=1)]


@dataclass(frozen=True, slots=True)
class Key:
    """A configuration key that is read.

    Parameters
    ----------
    name
        The key.
    type
        What its value is converted to by msgspec, strictly.
    allowed
        `type` in words, for messages and documentation.
    meaning
        What it does, with its unit.
    is_list
        Whether a single value stands for a list of one.
    check
        Raises `ConfigError` for what a type cannot express.
    """

    name: str
    type: Any
    allowed: str
    meaning: str
    is_list: bool = False
    check: Callable[[Any], object] | None = None

    def convert(self, value: Any) -> Any:
        """Return `value` as this key's type.

        Raises
        ------
        ConfigError
            Without the key and the value, which the caller adds: it knows what may be shown.
        """
        if self.is_list and value is not None and not isinstance(value, list | tuple | dict):
            value = [value]
        try:
            converted = msgspec.convert(value, self.type)
        except msgspec.ValidationError as error:
            raise ConfigError(f"expected {self.allowed}") from error
        if self.check is not None and converted is not None:
            try:
                self.check(converted)
            except ConfigError as error:
                raise ConfigError(f"expected {self.allowed}") from error
        return converted


def _whole(name: str, meaning: str, *, least: int, most: int = JAVA_INT_MAX) -> Key:
    limit = f"from {least} to {most}" if most < JAVA_INT_MAX else f"of {least} or more"
    return Key(name, Annotated[int, Meta(ge=least, le=most)], f"a whole number {limit}", meaning)


def _port(name: str, meaning: str) -> Key:
    return _whole(name, meaning, least=0, most=MAX_PORT)


def _seconds(name: str, meaning: str) -> Key:
    kind = (
        Annotated[int, Meta(gt=0, le=JAVA_INT_MAX)] | Annotated[float, Meta(gt=0, le=JAVA_INT_MAX)]
    )
    return Key(name, kind, "a number of seconds above 0", meaning)


def _seconds_from(name: str, meaning: str, *, least: int) -> Key:
    kind = (
        Annotated[int, Meta(ge=least, le=JAVA_INT_MAX)]
        | Annotated[float, Meta(ge=least, le=JAVA_INT_MAX)]
    )
    return Key(name, kind, f"a number of seconds of {least} or more", meaning)


def _seconds_or_null(name: str, meaning: str) -> Key:
    key = _seconds(name, meaning)
    return Key(name, key.type | None, f"{key.allowed}, or null", meaning)


def _bytes_or_null(name: str, meaning: str) -> Key:
    # No Java reads these; a store may well be larger than its ints reach.
    kind = Annotated[int, Meta(ge=0, le=2**62)] | None
    return Key(name, kind, "a whole number of 0 or more, or null", meaning)


def _port_or_null(name: str, meaning: str) -> Key:
    return Key(name, _port(name, "").type | None, f"a port from 0 to {MAX_PORT}, or null", meaning)


def _switch(name: str, meaning: str) -> Key:
    return Key(name, bool, "true or false", meaning)


def _text(name: str, meaning: str) -> Key:
    return Key(name, _Text, "text that is not empty", meaning)


def _text_or_null(name: str, meaning: str) -> Key:
    return Key(name, _Text | None, "text that is not empty, or null", meaning)


def _one_of(name: str, kind: Any, meaning: str) -> Key:
    return Key(name, kind, "one of " + ", ".join(kind.__args__), meaning)


def _servers(name: str, meaning: str, *, least: int = 0) -> Key:
    kind = Annotated[list[_Text], Meta(min_length=least)]
    allowed = "a list of host or host:port" + (", not empty" if least else "")
    return Key(name, kind, allowed, meaning, is_list=True, check=_check_addresses)


def _texts(name: str, meaning: str) -> Key:
    return Key(name, list[_Text], "a list of texts", meaning, is_list=True)


def _check_addresses(value: list[str]) -> None:
    for text in value:
        Address.parse(text, MAX_PORT)


def _check_distinct(value: list[int]) -> None:
    if len(set(value)) < len(value):
        raise ConfigError("twice the same")


_KEYS = (
    # Storm
    _text("storm.local.dir", "folder for everything that a daemon keeps on disk"),
    _text_or_null(
        "storm.local.hostname", "name of this machine in the cluster; null: what the system says"
    ),
    _one_of(
        "storm.cluster.state.store",
        StateStore,
        "where the cluster's state is: all in ZooKeeper, or heartbeats in Pacemaker (two names)",
    ),
    _one_of(
        "storm.meta.serialization.delegate",
        SerializationDelegate,
        "how records are written: plain, gzip or zstd; all are read",
    ),
    _servers("storm.zookeeper.servers", "servers of the ZooKeeper ensemble", least=1),
    _port(
        "storm.zookeeper.port",
        "port of ZooKeeper servers without one; 0: `storm dev-zookeeper` takes any free one",
    ),
    Key(
        "storm.zookeeper.root",
        Annotated[str, Meta(pattern=_ZNODE)],
        "a path of ZooKeeper (/storm)",
        "znode below which everything is kept",
    ),
    _whole("storm.zookeeper.session.timeout", "ZooKeeper session timeout, in ms", least=1),
    _whole(
        "storm.zookeeper.connection.timeout", "longest wait for a ZooKeeper connection, ms", least=1
    ),
    _whole("storm.zookeeper.retry.times", "times that a ZooKeeper operation is retried", least=0),
    _whole("storm.zookeeper.retry.interval", "wait before the first retry, in ms", least=0),
    _whole(
        "storm.zookeeper.retry.intervalceiling.millis",
        "longest wait between two retries, ms",
        least=0,
    ),
    _text_or_null(
        "storm.zookeeper.auth.scheme", "how daemons authenticate to ZooKeeper (digest); null: not"
    ),
    _text_or_null(
        "storm.zookeeper.auth.payload",
        "what daemons authenticate to ZooKeeper with (user:password)",
    ),
    _text_or_null(
        "storm.zookeeper.topology.auth.scheme", "how a topology's workers authenticate to ZooKeeper"
    ),
    _text_or_null(
        "storm.zookeeper.topology.auth.payload", "what a topology's workers authenticate to it with"
    ),
    # Pacemaker
    _servers("pacemaker.servers", "Pacemakers to write to and read from"),
    Key(
        "pacemaker.host",
        _Text | None,
        "host or host:port, or null",
        "the one Pacemaker, as Storm 1.x names it; pacemaker.servers comes first",
        check=lambda value: _check_addresses([value]),
    ),
    _port(
        "pacemaker.port",
        "port that a Pacemaker listens on, and that of servers without one; 0: any free one",
    ),
    _text("pacemaker.bind.host", "address that a Pacemaker listens on"),
    _whole(
        "pacemaker.thrift.message.size.max", "longest message of the protocol, in bytes", least=1
    ),
    _one_of(
        "pacemaker.auth.method",
        AuthMethod,
        "how readers authenticate to a Pacemaker",
    ),
    _switch("pacemaker.auth.writes", "whether writers and deleters must authenticate too"),
    _texts("pacemaker.kerberos.users", "principals or short names that may read, with KERBEROS"),
    _text_or_null("nimbus.daemon.user", "short name of Nimbus's principal, which may read"),
    _text_or_null(
        "java.security.auth.login.config", "JAAS file with the passwords or keytabs of a daemon"
    ),
    _whole("pacemaker.max.threads", "Storm's thread pool; without effect here", least=1),
    Key(
        "pacemaker.childopts",
        _Text | list[_Text] | None,
        "text, a list of texts, or null",
        "Storm's JVM options; only -Djava.security.auth.login.config= counts here",
    ),
    _switch("pacemaker.tls.enable", "whether the Pacemaker's port speaks TLS, at both ends"),
    _text_or_null(
        "pacemaker.tls.certificate.file", "a Pacemaker's certificate and its chain, as PEM"
    ),
    _text_or_null("pacemaker.tls.key.file", "the key of a Pacemaker's certificate, as PEM"),
    _text_or_null(
        "pacemaker.tls.ca.file",
        "certificates of who signs the other side's, as PEM; null: those that the system trusts",
    ),
    _one_of(
        "pacemaker.tls.client.auth",
        ClientCertificates,
        "whether a Pacemaker asks its clients for certificates",
    ),
    _text_or_null("pacemaker.tls.client.certificate.file", "a client's certificate, as PEM"),
    _text_or_null("pacemaker.tls.client.key.file", "the key of a client's certificate, as PEM"),
    _switch(
        "pacemaker.tls.check.hostname",
        "whether a client wants the name that it connects to in the Pacemaker's certificate",
    ),
    _one_of("pacemaker.tls.minimum.version", TlsVersion, "the oldest TLS that is spoken"),
    _seconds_from("pacemaker.pulse.ttl.secs", "age at which a pulse is dropped; 0: never", least=0),
    _whole(
        "pacemaker.max.connections",
        "connections of a Pacemaker at a time; 0: as many as it may have open files",
        least=0,
    ),
    _whole(
        "pacemaker.max.connections.per.address", "the same of one address; 0: no limit", least=0
    ),
    _bytes_or_null(
        "pacemaker.store.max.bytes",
        "bytes of pulses and their paths that a Pacemaker holds; null: half of the memory that it"
        " may have; 0: no limit",
    ),
    _whole("pacemaker.path.max.bytes", "longest path of a pulse, in bytes", least=1),
    _whole("pacemaker.path.max.segments", "most segments of a path", least=1),
    _seconds("pacemaker.frame.timeout.secs", "time to finish a message once it was begun"),
    _seconds(
        "pacemaker.handshake.timeout.secs", "time to finish TLS, and to authenticate once begun"
    ),
    _seconds(
        "pacemaker.output.timeout.secs",
        "time for a client to read something of what waits for it",
    ),
    _port_or_null(
        "pacemaker.metrics.port",
        "port of a Pacemaker's metrics and health, over HTTP; 0: any free one; null: none",
    ),
    _text_or_null(
        "pacemaker.metrics.bind.host", "address of these; null: that of pacemaker.bind.host"
    ),
    _one_of(
        "pacemaker.engine",
        PacemakerEngine,
        "how a Pacemaker runs: compiled, in plain Python, or compiled where it was built so",
    ),
    # Nimbus
    _servers(
        "nimbus.seeds", "where a Nimbus runs; nimbus.thrift.port where no port is given", least=1
    ),
    _port("nimbus.thrift.port", "port of Nimbus's Thrift service"),
    _seconds("nimbus.task.timeout.secs", "silence after which a worker counts as dead"),
    _seconds("nimbus.supervisor.timeout.secs", "silence after which a supervisor counts as dead"),
    _seconds("nimbus.monitor.freq.secs", "time between two looks at the heartbeats"),
    _seconds("nimbus.task.launch.secs", "time a new worker has until its first heartbeat"),
    _seconds("nimbus.code.sync.freq.secs", "time between two looks for missing topology code"),
    # Supervisor and worker
    Key(
        "supervisor.slots.ports",
        list[Annotated[int, Meta(ge=1, le=MAX_PORT)]],
        f"a list of distinct ports from 1 to {MAX_PORT}",
        "slots of a machine: a worker each, named by port",
        is_list=True,
        check=_check_distinct,
    ),
    _seconds("supervisor.heartbeat.frequency.secs", "time between two heartbeats of a supervisor"),
    _seconds(
        "supervisor.monitor.frequency.secs", "time between a supervisor's looks at its workers"
    ),
    _seconds(
        "supervisor.worker.timeout.secs", "silence after which a supervisor restarts a worker"
    ),
    _seconds("supervisor.worker.start.timeout.secs", "silence that it allows a worker that starts"),
    _seconds(
        "worker.heartbeat.frequency.secs", "time between a worker's heartbeats to its supervisor"
    ),
    _seconds(
        "task.heartbeat.frequency.secs", "time between a worker's heartbeats to the cluster state"
    ),
    # Topology
    _text_or_null(
        "topology.name", "name of a topology, by which its workers' clients call themselves"
    ),
    _whole("topology.workers", "most workers that a topology may have", least=1),
    _seconds(
        "topology.message.timeout.secs", "time for a message; wait before a topology is killed"
    ),
    _whole(
        "topology.min.replication.count", "copies of a topology's code before it starts", least=0
    ),
    _seconds_from(
        "topology.max.replication.wait.time.sec",
        "longest wait for copies of a topology's code; -1: for ever",
        least=-1,
    ),
    _text_or_null(
        "topology.checkpoint.dir",
        "folder of a topology's checkpoints; null: checkpoints in storm.local.dir",
    ),
    # Heartbeat pipeline
    _text_or_null(
        "pipeline.tables.dir",
        "the heartbeat pipeline's Parquet tables; null: tables in storm.local.dir",
    ),
    _text_or_null(
        "pipeline.checkpoint.dir",
        "the heartbeat pipeline's checkpoints; null: pipeline-checkpoints in storm.local.dir",
    ),
    _seconds("pipeline.trigger.secs", "time between two micro-batches of the heartbeat pipeline"),
    _seconds_or_null(
        "pipeline.late.secs",
        "silence after which a worker counts as late; null: three of task.heartbeat.frequency.secs",
    ),
    # User interface
    _port("ui.port", "port of the web UI"),
)

#: Every key that is read, by name.
SCHEMA: dict[str, Key] = {key.name: key for key in _KEYS}
