"""The configuration keys that users set and we check: type, range and meaning.

Defaults are in ``defaults.yaml``. Storm's other keys are accepted by name (`stormkeeper.conf.keys`)
and kept. ``scripts/write-configuration`` writes the tables of docs/configuration.md from this
module.
"""

from typing import Annotated, Any, Final, Literal

from msgspec import Meta

from stormkeeper.conf.address import MAX_PORT
from stormkeeper.conf.key_types import (
    Key,
    Text,
    amount,
    check_distinct,
    check_root,
    class_of,
    host,
    hours,
    millis,
    one_of,
    port,
    seconds,
    server,
    servers,
    size,
    some_of,
    storms_text,
    switch,
    text,
    texts,
    variables,
    whole,
)

#: In ZooKeeper, or in Pacemaker: by Storm's documentation (a former Clojure namespace), and by
#: Storm's code.
StateStore = Literal[
    "org.apache.storm.cluster.ZKStateStorageFactory",
    "org.apache.storm.pacemaker.pacemaker_state_factory",
    "org.apache.storm.cluster.PaceMakerStateStorageFactory",
]

#: Storm's delegates. Bridges read older formats too, as all do here.
SerializationDelegate = Literal[
    "org.apache.storm.serialization.ThriftSerializationDelegate",
    "org.apache.storm.serialization.GzipThriftSerializationDelegate",
    "org.apache.storm.serialization.GzipBridgeThriftSerializationDelegate",
    "org.apache.storm.serialization.ZstdThriftSerializationDelegate",
    "org.apache.storm.serialization.ZstdBridgeThriftSerializationDelegate",
]

#: Storm's methods, and our SCRAM.
AuthMethod = Literal["NONE", "DIGEST", "KERBEROS", "SCRAM"]

#: Whether a Pacemaker with TLS asks clients for certificates.
ClientCertificates = Literal["none", "optional", "required"]

TlsVersion = Literal["TLSv1.2", "TLSv1.3"]

#: When the supervisor restarts a worker that ended by itself.
Restart = Literal["always", "on-failure", "never"]

Analysis = Literal[
    "node_late", "pacemaker_late", "flapping", "skew", "throughput", "saturation", "growth"
]

PacemakerEngine = Literal["auto", "compiled", "interpreted"]

_CLUSTER: Final = (
    servers(
        "nimbus.seeds",
        "machines with a Nimbus; without a port: nimbus.thrift.port",
        least=1,
        unset=(None, []),
    ),
    server("nimbus.host", "the only Nimbus, as in Storm 0.x; nimbus.seeds comes first").or_null(""),
    port("nimbus.thrift.port", "Nimbus's Thrift service; 0: `storm nimbus` takes any free port"),
    millis("storm.thrift.socket.timeout.ms", "timeout of a call; commands wait 30 s by default"),
    whole("storm.nimbus.retry.times", "rounds of asking all seeds again for the leader", least=0),
    millis("storm.nimbus.retry.interval.millis", "pause before the first such round", least=0),
    millis("storm.nimbus.retry.intervalceiling.millis", "longest such pause", least=0),
    class_of(
        "storm.cluster.state.store",
        StateStore,
        "where heartbeats are: in ZooKeeper, or in Pacemakers with"
        " `org.apache.storm.cluster.PaceMakerStateStorageFactory`",
    ),
    class_of(
        "storm.meta.serialization.delegate",
        SerializationDelegate,
        "compression of written records: none (`ThriftSerializationDelegate`), gzip, or zstd"
        " (`ZstdBridgeThriftSerializationDelegate`, of the same package); all are read",
    ),
    Key(
        "storm.meta.serialization.release",
        "2/3",
        "Storm release of the daemons, for heartbeats; null: 3 with zstd, else 2",
        Literal[2, 3] | None,
        "2 or 3, or null",
    ),
    host("storm.local.hostname", "this machine's name in the cluster; null: the system's").or_null(
        ""
    ),
    text("storm.local.dir", "everything that a daemon keeps on disk", "folder"),
    storms_text("storm.log.dir", "logs; null: `logs` in storm.local.dir", "folder"),
    switch(
        "stormkeeper.ignore.security.keys",
        "start although keys of Storm's access control are set, without effect",
    ),
)

_ZOOKEEPER: Final = (
    servers("storm.zookeeper.servers", "servers of the ensemble", least=1),
    port(
        "storm.zookeeper.port",
        "port of servers without one; 0: `storm dev-zookeeper` takes any free one",
    ),
    Key(
        "storm.zookeeper.root",
        "path",
        "znode above all others",
        Text,
        "a path of ZooKeeper (/storm)",
        check=check_root,
    ),
    millis("storm.zookeeper.session.timeout", "session timeout"),
    millis("storm.zookeeper.connection.timeout", "timeout of a connection, and of a call"),
    whole("storm.zookeeper.retry.times", "retries of a call after a lost connection", least=0),
    millis("storm.zookeeper.retry.interval", "pause before the first retry", least=0),
    millis("storm.zookeeper.retry.intervalceiling.millis", "longest pause", least=0),
    storms_text("storm.zookeeper.auth.scheme", "the daemons' authentication: `digest`"),
    storms_text("storm.zookeeper.auth.payload", "the daemons' `user:password`"),
    storms_text("storm.zookeeper.topology.auth.scheme", "the workers' authentication: `digest`"),
    storms_text("storm.zookeeper.topology.auth.payload", "the workers' `user:password`"),
    storms_text(
        "storm.zookeeper.superACL",
        "the daemons' identity for workers' nodes, such as `sasl:nimbus`",
    ),
    switch("storm.zookeeper.ssl.enable", "use TLS"),
    switch(
        "storm.zookeeper.ssl.hostnameVerification", "require the server's name in its certificate"
    ),
    storms_text(
        "storm.zookeeper.ssl.keystore.path", "PEM file with our key and certificates", "file"
    ),
    storms_text("storm.zookeeper.ssl.keystore.password", "passphrase of that key"),
    storms_text(
        "storm.zookeeper.ssl.truststore.path",
        "PEM file with trusted authorities; null: the system's",
        "file",
    ),
    storms_text("storm.zookeeper.ssl.truststore.password", "no effect: PEM needs none"),
)

_NIMBUS: Final = (
    host("nimbus.bind.host", "address of Nimbus's Thrift service"),
    whole(
        "nimbus.thrift.threads",
        "most calls at a time; 1 counts as 2, as a submission waits for calls",
        least=1,
    ),
    whole("nimbus.queue.size", "most calls that wait", least=1),
    whole("nimbus.thrift.max_buffer_size", "longest Thrift message, in bytes", least=1),
    port("nimbus.metrics.port", "HTTP of metrics and health; 0: any free; null: none").or_null(),
    host("nimbus.metrics.bind.host", "address of that port; null: nimbus.bind.host").or_null(),
    seconds("nimbus.monitor.freq.secs", "time between two checks of heartbeats"),
    seconds("nimbus.task.launch.secs", "time for a new worker's first heartbeat"),
    seconds("nimbus.task.timeout.secs", "silence after which a worker is dead"),
    seconds("nimbus.supervisor.timeout.secs", "absence after which a supervisor is lost"),
    whole("nimbus.slots.perTopology", "most workers of a topology; null: any", least=0).or_null(),
    whole(
        "nimbus.executors.perTopology", "most executors of a topology; null: any", least=0
    ).or_null(),
    storms_text("blobstore.dir", "blobs; null: `blobs` in storm.local.dir", "folder"),
    whole(
        "storm.blobstore.inputstream.buffer.size.bytes",
        "most bytes of a blob in one answer",
        least=1,
    ),
    size("nimbus.upload.max.bytes", "largest blob or package; null: any").or_null(),
    seconds("nimbus.code.sync.freq.secs", "time between two looks for missing code"),
    seconds("nimbus.blobstore.expiration.secs", "idle time after which a blob's transfer ends"),
    seconds("nimbus.file.copy.expiration.secs", "idle time after which a package's upload ends"),
    seconds("nimbus.inbox.jar.expiration.secs", "how long an unsubmitted package is kept"),
    millis(
        "nimbus.topology.blobstore.deletion.delay.ms",
        "how long code, heartbeats and errors outlive a topology",
        least=0,
    ),
    seconds(
        "nimbus.checkpoint.retention.secs",
        "how long checkpoints outlive a topology; null: for ever",
    ).or_null(),
)

_SUPERVISOR: Final = (
    Key(
        "supervisor.slots.ports",
        "ports",
        "slots, one worker each",
        list[Annotated[int, Meta(ge=1, le=MAX_PORT)]],
        f"a list of distinct ports from 1 to {MAX_PORT}",
        is_list=True,
        check=check_distinct,
        unset=(None,),
    ),
    amount("supervisor.memory.capacity.mb", "MB for all workers; null: the machine's").or_null(),
    amount(
        "supervisor.cpu.capacity", "CPU for workers, in percent of a core; null: 100 for each core"
    ).or_null(),
    whole(
        "supervisor.worker.nice",
        "niceness of workers on a busy processor, 0 to 19",
        least=0,
        most=19,
    ),
    host("supervisor.bind.host", "address of the supervisor's HTTP"),
    port(
        "logviewer.port", "HTTP of logs, metrics, health; 0, or if taken: any free; null: none"
    ).or_null(),
    seconds("supervisor.heartbeat.frequency.secs", "time between a supervisor's heartbeats"),
    seconds("supervisor.monitor.frequency.secs", "time between a supervisor's checks of workers"),
    seconds("supervisor.worker.start.timeout.secs", "silence allowed to a starting worker"),
    seconds("supervisor.worker.timeout.secs", "silence after which a worker is restarted"),
    seconds(
        "supervisor.worker.shutdown.sleep.secs",
        "time for a worker to end, beyond 27 s for its batches, before it is killed",
        least=0,
    ),
    text("storm.workers.artifacts.dir", "folder of workers' logs, in storm.log.dir or absolute"),
    text(
        "storm.health.check.dir",
        "executables that check the machine: unfit for work unless all exit with 0; null: none",
        "folder",
    ).or_null(),
    millis("storm.health.check.timeout.ms", "timeout of such a check"),
    switch("storm.health.check.fail.on.timeouts", "whether a timeout makes it unfit"),
)

_TOPOLOGIES: Final = (
    storms_text("topology.name", "name of the topology"),
    storms_text("topology.version", "the topology's own version, for people"),
    whole("topology.workers", "most workers", least=1),
    whole("topology.worker.memory.mb", "most MB of a worker and its processes", least=1),
    variables("topology.environment", "environment variables of the workers").or_null(),
    Key(
        "topology.blobstore.map",
        "mapping",
        "keys of blobs that it uses, which must exist at submission",
        dict[Text, Any] | None,
        "a mapping with the keys of blobs, or null",
    ),
    one_of(
        "topology.restart",
        Restart,
        "start a worker again that ended: always, never, or unless all of its queries ended by"
        " themselves",
    ),
    seconds("topology.message.timeout.secs", "wait before it is killed, and time for a message"),
    seconds("topology.stuck.batch.secs", "age at which a running batch is shown as stuck"),
    text(
        "topology.checkpoint.dir",
        "checkpoints, also a URL; null: `checkpoints` in storm.local.dir",
        "folder",
    ).or_null(),
    switch(
        "topology.checkpoint.shared", "all machines share that folder, so that queries may move"
    ),
    switch(
        "topology.checkpoint.scripts",
        "queries of a plain script that name no checkpoint get one in that folder",
    ),
    text(
        "topology.checkpoint.from", "killed topology, by id or name, whose checkpoints it continues"
    ).or_null(),
    texts("topology.checkpoint.abandon", "queries that begin anew, as their checkpoints are lost"),
    whole(
        "topology.min.replication.count",
        "copies of its code before it starts; null: 2 with two Nimbuses, else 1",
        least=0,
    ).or_null(),
    seconds(
        "topology.max.replication.wait.time.sec",
        "longest wait for these copies; 0 or -1: for ever",
        least=-1,
    ),
    seconds("worker.heartbeat.frequency.secs", "time between heartbeats to the supervisor"),
    seconds("task.heartbeat.frequency.secs", "time between heartbeats to the cluster state"),
    seconds(
        "topology.error.throttle.interval.secs",
        "interval of topology.max.error.report.per.interval",
    ),
    whole(
        "topology.max.error.report.per.interval",
        "most reported errors of a component in a worker",
        least=0,
    ),
)

_PACEMAKERS: Final = (
    servers("pacemaker.servers", "Pacemakers to write to and read from", unset=(None,)),
    server("pacemaker.host", "the only Pacemaker, as in Storm 1.x").or_null(""),
    port("pacemaker.port", "port of a Pacemaker, and of servers without one; 0: any free"),
    host("pacemaker.bind.host", "address of a Pacemaker"),
    port("pacemaker.metrics.port", "HTTP of metrics and health; 0: any free; null: none").or_null(),
    host(
        "pacemaker.metrics.bind.host", "address of that port; null: pacemaker.bind.host"
    ).or_null(),
    seconds("pacemaker.pulse.ttl.secs", "age at which a pulse expires; 0: never", least=0),
    size(
        "pacemaker.store.max.bytes", "most bytes of pulses; null: half of the memory; 0: any"
    ).or_null(),
    whole("pacemaker.thrift.message.size.max", "largest message, in bytes", least=1),
    whole("pacemaker.path.max.bytes", "longest path, in bytes", least=1),
    whole("pacemaker.path.max.segments", "most segments of a path", least=1),
    whole(
        "pacemaker.max.connections", "most connections; 0: the limit of open files less 64", least=0
    ),
    whole(
        "pacemaker.max.connections.per.address",
        "most connections from one address; 0: any",
        least=0,
    ),
    seconds("pacemaker.frame.timeout.secs", "time to finish a message that has begun"),
    seconds("pacemaker.handshake.timeout.secs", "time for TLS, and for an authentication"),
    seconds(
        "pacemaker.output.timeout.secs", "time in which a client must read some of its answers"
    ),
    one_of("pacemaker.engine", PacemakerEngine, "implementation; auto: compiled if built"),
    Key(
        "pacemaker.childopts",
        "text",
        "Storm's JVM options; -Djava.security.auth.login.config= counts, before the key",
        Text | list[Text] | None,
        "text, a list of texts, or null",
    ),
    one_of("pacemaker.auth.method", AuthMethod, "how readers authenticate"),
    switch("pacemaker.auth.writes", "authenticate writers too"),
    storms_text(
        "java.security.auth.login.config", "JAAS file with a daemon's passwords or keytabs", "file"
    ),
    storms_text("nimbus.daemon.user", "short name of Nimbus's Kerberos principal, which may read"),
    texts("pacemaker.kerberos.users", "other principals or short names that may read"),
    switch("pacemaker.tls.enable", "use TLS, in servers and clients"),
    text(
        "pacemaker.tls.certificate.file",
        "PEM file with a Pacemaker's certificate and chain",
        "file",
    ).or_null(),
    text("pacemaker.tls.key.file", "PEM file with a Pacemaker's key", "file").or_null(),
    text(
        "pacemaker.tls.ca.file", "PEM file of trusted authorities; null: the system's", "file"
    ).or_null(),
    one_of("pacemaker.tls.client.auth", ClientCertificates, "whether clients need a certificate"),
    text(
        "pacemaker.tls.client.certificate.file", "PEM file of a client's certificate", "file"
    ).or_null(),
    text("pacemaker.tls.client.key.file", "PEM file of a client's key", "file").or_null(),
    switch("pacemaker.tls.check.hostname", "require the Pacemaker's name in the certificate"),
    one_of("pacemaker.tls.minimum.version", TlsVersion, "oldest version"),
)

_PIPELINE: Final = (
    text(
        "pipeline.tables.dir", "Parquet tables; null: `tables` in storm.local.dir", "folder"
    ).or_null(),
    text(
        "pipeline.checkpoint.dir", "checkpoints; null: `.checkpoint` beside its tables", "folder"
    ).or_null(),
    seconds("pipeline.trigger.secs", "time between two judgements of liveness"),
    seconds(
        "pipeline.late.secs",
        "silence after which a worker is late; null: 3 times task.heartbeat.frequency.secs",
    ).or_null(),
    seconds(
        "pipeline.statistics.secs",
        "time between two statistics; 0: as pipeline.trigger.secs",
        least=0,
    ),
    whole(
        "pipeline.statistics.parts",
        "parts, each with some topologies; null: one for each 8,192 workers",
        least=1,
    ).or_null(),
    some_of("pipeline.analyses", Analysis, "analyses that run"),
    seconds("pipeline.analyses.secs", "time between two analyses; 0: none", least=0),
    port("pipeline.metrics.port", "HTTP of metrics and health; 0: any free; null: none").or_null(),
    host("pipeline.metrics.bind.host", "address of that port; null: 127.0.0.1").or_null(),
    hours("pipeline.retention.events.hours", "keeps events of workers"),
    hours("pipeline.retention.executor.stats.hours", "keeps executors' readings"),
    hours("pipeline.retention.stats.hours", "keeps readings of components and topologies"),
    hours("pipeline.retention.rollup.1m.hours", "keeps sums by minute"),
    hours("pipeline.retention.rollup.10m.hours", "keeps sums by ten minutes"),
    hours("pipeline.retention.rollup.60m.hours", "keeps sums by hour"),
    hours("pipeline.retention.alerts.hours", "keeps the history of alerts"),
    hours("pipeline.retention.rejected.hours", "keeps rejected pulses"),
    whole(
        "pipeline.retention.executor.stats.mb",
        "most MB of executors' readings; the oldest go first",
        least=1,
    ),
)

_WITHOUT_EFFECT: Final = (
    whole("pacemaker.max.threads", "Storm's pool of threads", least=1),
    port("ui.port", "port of the web UI, which does not exist yet"),
)

#: By title, as in the documentation.
SECTIONS: Final[dict[str, tuple[Key, ...]]] = {
    "Every machine": _CLUSTER,
    "ZooKeeper": _ZOOKEEPER,
    "Nimbus": _NIMBUS,
    "Supervisors": _SUPERVISOR,
    "Topologies and workers": _TOPOLOGIES,
    "Pacemakers": _PACEMAKERS,
    "Heartbeat pipeline": _PIPELINE,
    "Without effect": _WITHOUT_EFFECT,
}

SCHEMA: Final[dict[str, Key]] = {key.name: key for keys in SECTIONS.values() for key in keys}
