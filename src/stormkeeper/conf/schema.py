"""What each configuration key may be that this project reads, or will: its type, range, meaning.

Every key here has a default in ``defaults.yaml``. Storm's other keys have no schema: they are
accepted by name (`stormkeeper.conf.keys`) and kept as they were written. Names, units and ranges
of Storm's keys are Storm's; where Storm wants whole seconds, fractions are taken too.
"""

from typing import Annotated, Literal

from msgspec import Meta

from stormkeeper.conf.address import MAX_PORT
from stormkeeper.conf.kinds import (
    Key,
    Text,
    bytes_or_null,
    check_addresses,
    check_distinct,
    class_of,
    one_of,
    port,
    port_or_null,
    seconds,
    seconds_from,
    seconds_or_null,
    servers,
    storms_text_or_null,
    switch,
    text,
    text_or_null,
    texts,
    whole,
)

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

_KEYS = (
    # Storm
    text("storm.local.dir", "folder for everything that a daemon keeps on disk"),
    storms_text_or_null(
        "storm.local.hostname", "name of this machine in the cluster; null: what the system says"
    ),
    class_of(
        "storm.cluster.state.store",
        StateStore,
        "where the cluster's state is: all in ZooKeeper, or heartbeats in Pacemaker (two names)",
    ),
    class_of(
        "storm.meta.serialization.delegate",
        SerializationDelegate,
        "how records are written: plain, gzip or zstd; all are read",
    ),
    Key(
        "storm.meta.serialization.release",
        Literal[2, 3] | None,
        "2 or 3, or null",
        "which Storm the cluster's daemons are, as heartbeats of 2 and 3 differ; null: 3 where"
        " storm.meta.serialization.delegate is one for zstd, else 2",
    ),
    servers("storm.zookeeper.servers", "servers of the ZooKeeper ensemble", least=1),
    port(
        "storm.zookeeper.port",
        "port of ZooKeeper servers without one; 0: `storm dev-zookeeper` takes any free one",
    ),
    Key(
        "storm.zookeeper.root",
        Annotated[str, Meta(pattern=_ZNODE)],
        "a path of ZooKeeper (/storm)",
        "znode below which everything is kept",
    ),
    whole("storm.zookeeper.session.timeout", "ZooKeeper session timeout, in ms", least=1),
    whole(
        "storm.zookeeper.connection.timeout", "longest wait for a ZooKeeper connection, ms", least=1
    ),
    whole("storm.zookeeper.retry.times", "times that a ZooKeeper operation is retried", least=0),
    whole("storm.zookeeper.retry.interval", "wait before the first retry, in ms", least=0),
    whole(
        "storm.zookeeper.retry.intervalceiling.millis",
        "longest wait between two retries, ms",
        least=0,
    ),
    storms_text_or_null(
        "storm.zookeeper.auth.scheme", "how daemons authenticate to ZooKeeper (digest); null: not"
    ),
    storms_text_or_null(
        "storm.zookeeper.auth.payload",
        "what daemons authenticate to ZooKeeper with (user:password)",
    ),
    storms_text_or_null(
        "storm.zookeeper.topology.auth.scheme",
        "how a topology's workers authenticate to ZooKeeper (digest); null: not",
    ),
    storms_text_or_null(
        "storm.zookeeper.topology.auth.payload",
        "what a topology's workers authenticate to it with (user:password)",
    ),
    storms_text_or_null(
        "storm.zookeeper.superACL",
        "who may do everything with what workers make, as scheme:id (sasl:nimbus): the daemons",
    ),
    switch("storm.zookeeper.ssl.enable", "whether ZooKeeper is spoken to over TLS"),
    switch(
        "storm.zookeeper.ssl.hostnameVerification",
        "whether the name that is connected to must stand in the server's certificate",
    ),
    storms_text_or_null(
        "storm.zookeeper.ssl.keystore.path",
        "key and certificates to show to ZooKeeper, in one file, as PEM",
    ),
    storms_text_or_null("storm.zookeeper.ssl.keystore.password", "the passphrase of that key"),
    storms_text_or_null(
        "storm.zookeeper.ssl.truststore.path",
        "certificates of who signs ZooKeeper's, as PEM; null: those that the system trusts",
    ),
    storms_text_or_null(
        "storm.zookeeper.ssl.truststore.password", "Storm's; without effect, as PEM has none"
    ),
    # Pacemaker
    servers("pacemaker.servers", "Pacemakers to write to and read from", unset=(None,)),
    Key(
        "pacemaker.host",
        Text | None,
        "host or host:port, or null",
        "the one Pacemaker, as Storm 1.x names it; pacemaker.servers comes first",
        check=lambda value: check_addresses([value]),
        unset=("",),
    ),
    port(
        "pacemaker.port",
        "port that a Pacemaker listens on, and that of servers without one; 0: any free one",
    ),
    text("pacemaker.bind.host", "address that a Pacemaker listens on"),
    whole(
        "pacemaker.thrift.message.size.max", "longest message of the protocol, in bytes", least=1
    ),
    one_of(
        "pacemaker.auth.method",
        AuthMethod,
        "how readers authenticate to a Pacemaker",
    ),
    switch("pacemaker.auth.writes", "whether writers and deleters must authenticate too"),
    texts("pacemaker.kerberos.users", "principals or short names that may read, with KERBEROS"),
    storms_text_or_null("nimbus.daemon.user", "short name of Nimbus's principal, which may read"),
    storms_text_or_null(
        "java.security.auth.login.config", "JAAS file with the passwords or keytabs of a daemon"
    ),
    whole("pacemaker.max.threads", "Storm's thread pool; without effect here", least=1),
    Key(
        "pacemaker.childopts",
        Text | list[Text] | None,
        "text, a list of texts, or null",
        "Storm's JVM options; only -Djava.security.auth.login.config=, which wins over that key",
    ),
    switch("pacemaker.tls.enable", "whether the Pacemaker's port speaks TLS, at both ends"),
    text_or_null(
        "pacemaker.tls.certificate.file", "a Pacemaker's certificate and its chain, as PEM"
    ),
    text_or_null("pacemaker.tls.key.file", "the key of a Pacemaker's certificate, as PEM"),
    text_or_null(
        "pacemaker.tls.ca.file",
        "certificates of who signs the other side's, as PEM; null: those that the system trusts",
    ),
    one_of(
        "pacemaker.tls.client.auth",
        ClientCertificates,
        "whether a Pacemaker asks its clients for certificates",
    ),
    text_or_null("pacemaker.tls.client.certificate.file", "a client's certificate, as PEM"),
    text_or_null("pacemaker.tls.client.key.file", "the key of a client's certificate, as PEM"),
    switch(
        "pacemaker.tls.check.hostname",
        "whether a client wants the name that it connects to in the Pacemaker's certificate",
    ),
    one_of("pacemaker.tls.minimum.version", TlsVersion, "the oldest TLS that is spoken"),
    seconds_from("pacemaker.pulse.ttl.secs", "age at which a pulse is dropped; 0: never", least=0),
    whole(
        "pacemaker.max.connections",
        "connections of a Pacemaker at a time; 0: as many as it may have open files",
        least=0,
    ),
    whole("pacemaker.max.connections.per.address", "the same of one address; 0: no limit", least=0),
    bytes_or_null(
        "pacemaker.store.max.bytes",
        "bytes of pulses and their paths that a Pacemaker holds; null: half of the memory that it"
        " may have; 0: no limit",
    ),
    whole("pacemaker.path.max.bytes", "longest path of a pulse, in bytes", least=1),
    whole("pacemaker.path.max.segments", "most segments of a path", least=1),
    seconds("pacemaker.frame.timeout.secs", "time to finish a message once it was begun"),
    seconds(
        "pacemaker.handshake.timeout.secs", "time to finish TLS, and to authenticate once begun"
    ),
    seconds(
        "pacemaker.output.timeout.secs",
        "time for a client to read something of what waits for it",
    ),
    port_or_null(
        "pacemaker.metrics.port",
        "port of a Pacemaker's metrics and health, over HTTP; 0: any free one; null: none",
    ),
    text_or_null(
        "pacemaker.metrics.bind.host", "address of these; null: that of pacemaker.bind.host"
    ),
    one_of(
        "pacemaker.engine",
        PacemakerEngine,
        "how a Pacemaker runs: compiled, in plain Python, or compiled where it was built so",
    ),
    # Nimbus
    servers(
        "nimbus.seeds",
        "where a Nimbus runs; nimbus.thrift.port where no port is given",
        least=1,
        unset=(None, []),
    ),
    port("nimbus.thrift.port", "port of Nimbus's Thrift service"),
    seconds("nimbus.task.timeout.secs", "silence after which a worker counts as dead"),
    seconds("nimbus.supervisor.timeout.secs", "silence after which a supervisor counts as dead"),
    seconds("nimbus.monitor.freq.secs", "time between two looks at the heartbeats"),
    seconds("nimbus.task.launch.secs", "time a new worker has until its first heartbeat"),
    seconds("nimbus.code.sync.freq.secs", "time between two looks for missing topology code"),
    # Supervisor and worker
    Key(
        "supervisor.slots.ports",
        list[Annotated[int, Meta(ge=1, le=MAX_PORT)]],
        f"a list of distinct ports from 1 to {MAX_PORT}",
        "slots of a machine: a worker each, named by port",
        is_list=True,
        check=check_distinct,
        unset=(None,),
    ),
    seconds("supervisor.heartbeat.frequency.secs", "time between two heartbeats of a supervisor"),
    seconds(
        "supervisor.monitor.frequency.secs", "time between a supervisor's looks at its workers"
    ),
    seconds("supervisor.worker.timeout.secs", "silence after which a supervisor restarts a worker"),
    seconds("supervisor.worker.start.timeout.secs", "silence that it allows a worker that starts"),
    seconds(
        "worker.heartbeat.frequency.secs", "time between a worker's heartbeats to its supervisor"
    ),
    seconds(
        "task.heartbeat.frequency.secs", "time between a worker's heartbeats to the cluster state"
    ),
    # Topology
    storms_text_or_null(
        "topology.name", "name of a topology, by which its workers' clients call themselves"
    ),
    whole("topology.workers", "most workers that a topology may have", least=1),
    seconds(
        "topology.message.timeout.secs", "time for a message; wait before a topology is killed"
    ),
    whole(
        "topology.min.replication.count", "copies of a topology's code before it starts", least=0
    ),
    seconds_from(
        "topology.max.replication.wait.time.sec",
        "longest wait for copies of a topology's code; -1: for ever",
        least=-1,
    ),
    seconds(
        "topology.error.throttle.interval.secs",
        "span in which a component's errors are counted, to report only so many",
    ),
    whole(
        "topology.max.error.report.per.interval",
        "most errors that a worker reports of a component in such a span",
        least=0,
    ),
    text_or_null(
        "topology.checkpoint.dir",
        "folder of a topology's checkpoints; null: checkpoints in storm.local.dir",
    ),
    # Heartbeat pipeline
    text_or_null(
        "pipeline.tables.dir",
        "the heartbeat pipeline's Parquet tables; null: tables in storm.local.dir",
    ),
    text_or_null(
        "pipeline.checkpoint.dir",
        "the heartbeat pipeline's checkpoint; null: .checkpoint in the folder of the tables",
    ),
    seconds("pipeline.trigger.secs", "time between two micro-batches of the heartbeat pipeline"),
    seconds_or_null(
        "pipeline.late.secs",
        "silence after which a worker counts as late; null: three of task.heartbeat.frequency.secs",
    ),
    port_or_null(
        "pipeline.metrics.port",
        "port of the heartbeat pipeline's metrics and health, over HTTP; 0: any free one;"
        " null: none",
    ),
    text_or_null("pipeline.metrics.bind.host", "address of these; null: 127.0.0.1"),
    # User interface
    port("ui.port", "port of the web UI"),
)

#: Every key that is read, by name.
SCHEMA: dict[str, Key] = {key.name: key for key in _KEYS}
