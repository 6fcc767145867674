"""The configuration keys that users set and we check: type, range and meaning.

Each has a default in ``defaults.yaml``. Storm's other keys are accepted by name
(`stormkeeper.conf.keys`) and kept. Names, units and ranges of Storm's keys are Storm's.
"""

from typing import Annotated, Any, Literal

from msgspec import Meta

from stormkeeper.conf.address import MAX_PORT
from stormkeeper.conf.key_types import (
    Key,
    Text,
    amount_or_null,
    bytes_or_null,
    check_distinct,
    check_root,
    class_of,
    host,
    host_or_null,
    one_of,
    one_server_or_null,
    port,
    port_or_null,
    seconds,
    seconds_from,
    seconds_or_null,
    servers,
    some_of,
    storms_text_or_null,
    switch,
    text,
    text_or_null,
    texts,
    variables_or_null,
    whole,
    whole_or_null,
)

#: Heartbeats in ZooKeeper, or in Pacemaker: by Storm's documentation (a former Clojure namespace),
#: and by Storm's code.
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

_KEYS = (
    switch(
        "stormkeeper.ignore.security.keys",
        "start although keys of Storm's access control are set, which nothing here enforces",
    ),
    # Storm
    text("storm.local.dir", "folder for everything that a daemon keeps on disk"),
    host_or_null(
        "storm.local.hostname",
        "this machine's name in the cluster; null: the system's host name",
        unset=("",),
    ),
    class_of(
        "storm.cluster.state.store",
        StateStore,
        "all state in ZooKeeper, or heartbeats in Pacemaker (which has two names)",
    ),
    class_of(
        "storm.meta.serialization.delegate",
        SerializationDelegate,
        "compression of the records that are written: none, gzip or zstd; all are read",
    ),
    Key(
        "storm.meta.serialization.release",
        Literal[2, 3] | None,
        "2 or 3, or null",
        "Storm release of the cluster's daemons, as heartbeats of 2 and 3 differ; null: 3 if"
        " storm.meta.serialization.delegate is a zstd one, else 2",
    ),
    storms_text_or_null(
        "storm.log.dir", "folder of the logs that daemons write; null: logs in storm.local.dir"
    ),
    text(
        "storm.workers.artifacts.dir",
        "folder in storm.log.dir of what workers leave: their logs; an absolute path: that",
    ),
    text_or_null(
        "storm.health.check.dir",
        "folder whose executables check a supervisor's machine, which is unfit for work where one"
        " does not end with exit code 0; null: none",
    ),
    whole("storm.health.check.timeout.ms", "longest run of such a check, in ms", least=1),
    switch("storm.health.check.fail.on.timeouts", "a check that takes longer has failed"),
    servers("storm.zookeeper.servers", "servers of the ZooKeeper ensemble", least=1),
    port(
        "storm.zookeeper.port",
        "port of ZooKeeper servers that name none; 0: `storm dev-zookeeper` takes any free one",
    ),
    Key(
        "storm.zookeeper.root",
        Text,
        "a path of ZooKeeper (/storm)",
        "znode below which everything is kept",
        check=check_root,
    ),
    whole("storm.zookeeper.session.timeout", "ZooKeeper session timeout, in ms", least=1),
    whole(
        "storm.zookeeper.connection.timeout", "longest wait for a ZooKeeper connection, ms", least=1
    ),
    whole("storm.zookeeper.retry.times", "number of retries of a ZooKeeper operation", least=0),
    whole("storm.zookeeper.retry.interval", "wait before the first retry, in ms", least=0),
    whole(
        "storm.zookeeper.retry.intervalceiling.millis",
        "longest wait between two retries, ms",
        least=0,
    ),
    storms_text_or_null(
        "storm.zookeeper.auth.scheme",
        "scheme by which daemons authenticate to ZooKeeper (digest); null: none",
    ),
    storms_text_or_null(
        "storm.zookeeper.auth.payload",
        "the daemons' user:password for that scheme",
    ),
    storms_text_or_null(
        "storm.zookeeper.topology.auth.scheme",
        "scheme by which a topology's workers authenticate to ZooKeeper (digest); null: none",
    ),
    storms_text_or_null(
        "storm.zookeeper.topology.auth.payload",
        "the workers' user:password for that scheme",
    ),
    storms_text_or_null(
        "storm.zookeeper.superACL",
        "the daemons' identity, with all rights on what workers make: scheme:id (sasl:nimbus)",
    ),
    switch("storm.zookeeper.ssl.enable", "connect to ZooKeeper over TLS"),
    switch(
        "storm.zookeeper.ssl.hostnameVerification",
        "require the server's name in its certificate",
    ),
    storms_text_or_null(
        "storm.zookeeper.ssl.keystore.path",
        "PEM file with our key and certificates for ZooKeeper",
    ),
    storms_text_or_null(
        "storm.zookeeper.ssl.keystore.password", "passphrase of the key in that file"
    ),
    storms_text_or_null(
        "storm.zookeeper.ssl.truststore.path",
        "PEM file with the authorities that sign ZooKeeper's certificates; null: the system's",
    ),
    storms_text_or_null(
        "storm.zookeeper.ssl.truststore.password",
        "Storm's; no effect, as a PEM file has no password",
    ),
    # Pacemaker
    servers("pacemaker.servers", "Pacemakers to write to and read from", unset=(None,)),
    one_server_or_null(
        "pacemaker.host", "the only Pacemaker, as in Storm 1.x; pacemaker.servers comes first"
    ),
    port(
        "pacemaker.port",
        "port that a Pacemaker listens on, and port of servers that name none; 0: any free one",
    ),
    host("pacemaker.bind.host", "address that a Pacemaker listens on"),
    whole(
        "pacemaker.thrift.message.size.max", "largest message of the protocol, in bytes", least=1
    ),
    one_of(
        "pacemaker.auth.method",
        AuthMethod,
        "method by which readers authenticate to a Pacemaker",
    ),
    switch("pacemaker.auth.writes", "require authentication for writing and deleting too"),
    texts("pacemaker.kerberos.users", "principals or short names that may read, with KERBEROS"),
    storms_text_or_null(
        "nimbus.daemon.user", "short name of Nimbus's Kerberos principal, which may read"
    ),
    storms_text_or_null(
        "java.security.auth.login.config", "JAAS file with the passwords or keytabs of a daemon"
    ),
    whole("pacemaker.max.threads", "Storm's thread pool; no effect here", least=1),
    Key(
        "pacemaker.childopts",
        Text | list[Text] | None,
        "text, a list of texts, or null",
        "Storm's JVM options; only -Djava.security.auth.login.config= counts, and before the key",
    ),
    switch("pacemaker.tls.enable", "use TLS for Pacemakers: set it for servers and clients"),
    text_or_null(
        "pacemaker.tls.certificate.file", "PEM file with a Pacemaker's certificate and its chain"
    ),
    text_or_null("pacemaker.tls.key.file", "PEM file with the key of a Pacemaker's certificate"),
    text_or_null(
        "pacemaker.tls.ca.file",
        "PEM file with the authorities that sign the other side's certificates; null: the system's",
    ),
    one_of(
        "pacemaker.tls.client.auth",
        ClientCertificates,
        "require a certificate of a Pacemaker's clients",
    ),
    text_or_null("pacemaker.tls.client.certificate.file", "PEM file with a client's certificate"),
    text_or_null(
        "pacemaker.tls.client.key.file", "PEM file with the key of a client's certificate"
    ),
    switch(
        "pacemaker.tls.check.hostname",
        "require the Pacemaker's name in its certificate",
    ),
    one_of("pacemaker.tls.minimum.version", TlsVersion, "oldest TLS version that is accepted"),
    seconds_from("pacemaker.pulse.ttl.secs", "age at which a pulse expires; 0: never", least=0),
    whole(
        "pacemaker.max.connections",
        "most connections of a Pacemaker; 0: as many as it may open files, less 64",
        least=0,
    ),
    whole(
        "pacemaker.max.connections.per.address",
        "most connections from one address; 0: no limit",
        least=0,
    ),
    bytes_or_null(
        "pacemaker.store.max.bytes",
        "most bytes of pulses and their paths in a Pacemaker; null: half of the memory that it"
        " may use; 0: no limit",
    ),
    whole("pacemaker.path.max.bytes", "longest path of a pulse, in bytes", least=1),
    whole("pacemaker.path.max.segments", "most segments of a path", least=1),
    seconds("pacemaker.frame.timeout.secs", "time to finish a message that has begun"),
    seconds(
        "pacemaker.handshake.timeout.secs",
        "time for the TLS handshake, and for an authentication that has begun",
    ),
    seconds(
        "pacemaker.output.timeout.secs",
        "time in which a client must read some of its waiting answers",
    ),
    port_or_null(
        "pacemaker.metrics.port",
        "HTTP port of a Pacemaker's metrics and health; 0: any free one; null: none",
    ),
    host_or_null(
        "pacemaker.metrics.bind.host", "address for that port; null: that of pacemaker.bind.host"
    ),
    one_of(
        "pacemaker.engine",
        PacemakerEngine,
        "compiled, plain Python (interpreted), or auto: compiled if it was built",
    ),
    # Blobs
    storms_text_or_null(
        "blobstore.dir", "folder of a Nimbus's blobs; null: blobs in storm.local.dir"
    ),
    whole(
        "storm.blobstore.inputstream.buffer.size.bytes",
        "most bytes of a blob that one answer has",
        least=1,
    ),
    # Nimbus
    servers(
        "nimbus.seeds",
        "machines with a Nimbus; port nimbus.thrift.port unless they name one",
        least=1,
        unset=(None, []),
    ),
    one_server_or_null("nimbus.host", "the only Nimbus, as in Storm 0.x; nimbus.seeds comes first"),
    port(
        "nimbus.thrift.port",
        "port of Nimbus's Thrift service; 0: `storm nimbus` takes any free one",
    ),
    host("nimbus.bind.host", "address that Nimbus's Thrift service listens on"),
    whole(
        "nimbus.thrift.threads",
        "most calls that Nimbus carries out at a time; with 1 as with 2, as a submission waits for"
        " other Nimbuses' calls",
        least=1,
    ),
    whole(
        "nimbus.thrift.max_buffer_size",
        "longest message of Nimbus's Thrift service that is taken, by either side, in bytes",
        least=1,
    ),
    whole("nimbus.queue.size", "most calls that wait in Nimbus to be carried out", least=1),
    whole(
        "storm.thrift.socket.timeout.ms",
        "time that a call of Nimbus may take, in ms; commands wait for 30 s unless it is set",
        least=1,
    ),
    whole(
        "storm.nimbus.retry.times",
        "how often all of nimbus.seeds are asked again who leads, when none knew",
        least=0,
    ),
    whole(
        "storm.nimbus.retry.interval.millis",
        "wait before nimbus.seeds are asked again, in ms",
        least=0,
    ),
    whole(
        "storm.nimbus.retry.intervalceiling.millis",
        "longest wait before nimbus.seeds are asked again, in ms",
        least=0,
    ),
    seconds("nimbus.task.timeout.secs", "silence after which a worker counts as dead"),
    seconds("nimbus.supervisor.timeout.secs", "absence after which a supervisor counts as lost"),
    seconds("nimbus.monitor.freq.secs", "time between two checks of the heartbeats"),
    seconds("nimbus.task.launch.secs", "time a new worker has until its first heartbeat"),
    seconds("nimbus.code.sync.freq.secs", "time between two checks for missing topology code"),
    seconds(
        "nimbus.blobstore.expiration.secs",
        "time without a call after which an upload or a download of a blob ends",
    ),
    seconds(
        "nimbus.file.copy.expiration.secs",
        "time without a call after which the upload of a file to be submitted ends",
    ),
    seconds(
        "nimbus.inbox.jar.expiration.secs",
        "how long an uploaded file is kept that nobody submits",
    ),
    bytes_or_null(
        "nimbus.upload.max.bytes",
        "most bytes of a blob that a client uploads, or of a file to be submitted; null: any",
    ),
    whole(
        "nimbus.topology.blobstore.deletion.delay.ms",
        "how long code, heartbeats and errors of a topology are kept that is gone, in ms",
        least=0,
    ),
    seconds_or_null(
        "nimbus.checkpoint.retention.secs",
        "how long checkpoints of a topology are kept that is gone; null: for ever",
    ),
    whole_or_null(
        "nimbus.slots.perTopology",
        "most workers that a topology may be submitted with, or rebalanced to; null: any",
        least=0,
    ),
    whole_or_null(
        "nimbus.executors.perTopology",
        "most executors of a topology that is submitted; null: any",
        least=0,
    ),
    port_or_null(
        "nimbus.metrics.port",
        "HTTP port of a Nimbus's metrics and health; 0: any free one; null: none",
    ),
    host_or_null(
        "nimbus.metrics.bind.host", "address for that port; null: that of nimbus.bind.host"
    ),
    # Supervisor and worker
    Key(
        "supervisor.slots.ports",
        list[Annotated[int, Meta(ge=1, le=MAX_PORT)]],
        f"a list of distinct ports from 1 to {MAX_PORT}",
        "slots of a machine, named by port: one worker each",
        is_list=True,
        check=check_distinct,
        unset=(None,),
    ),
    amount_or_null(
        "supervisor.memory.capacity.mb",
        "memory that a supervisor's workers may take together, in MB; null: the machine's",
    ),
    amount_or_null(
        "supervisor.cpu.capacity",
        "what a supervisor says that its machine has, in percent of one core; null: 100 for each",
    ),
    whole(
        "supervisor.worker.nice",
        "how much less of a busy processor workers get than others",
        least=0,
        most=19,
    ),
    host("supervisor.bind.host", "address that a supervisor's HTTP listens on"),
    port_or_null(
        "logviewer.port",
        "HTTP port of a supervisor: logs, metrics, health; 0, or where it is taken: any free one;"
        " null: none",
    ),
    seconds("supervisor.heartbeat.frequency.secs", "time between two heartbeats of a supervisor"),
    seconds(
        "supervisor.monitor.frequency.secs", "time between a supervisor's checks of its workers"
    ),
    seconds("supervisor.worker.timeout.secs", "silence after which a supervisor restarts a worker"),
    seconds(
        "supervisor.worker.start.timeout.secs", "silence that a supervisor allows a starting worker"
    ),
    seconds_from(
        "supervisor.worker.shutdown.sleep.secs",
        "time for a worker to end, beyond the 27 s in which it finishes its batches; then it is"
        " ended by force",
        least=0,
    ),
    seconds(
        "worker.heartbeat.frequency.secs", "time between a worker's heartbeats to its supervisor"
    ),
    seconds(
        "task.heartbeat.frequency.secs", "time between a worker's heartbeats to the cluster state"
    ),
    # Topology
    storms_text_or_null(
        "topology.name", "name of a topology; its workers' clients use it as their name"
    ),
    whole("topology.workers", "most workers that a topology may have", least=1),
    seconds(
        "topology.message.timeout.secs", "time for a message, and wait before a topology is killed"
    ),
    whole_or_null(
        "topology.min.replication.count",
        "copies of a topology's code that must exist before it starts; null: 2 where there are two"
        " Nimbuses, else 1",
        least=0,
    ),
    seconds_from(
        "topology.max.replication.wait.time.sec",
        "longest wait for these copies; 0 or -1: for ever",
        least=-1,
    ),
    seconds(
        "topology.error.throttle.interval.secs",
        "interval for which the number of a component's reported errors is limited",
    ),
    whole(
        "topology.max.error.report.per.interval",
        "most errors that a worker reports of one component in that interval",
        least=0,
    ),
    one_of(
        "topology.restart",
        Restart,
        "start a worker again that ended by itself: always, unless all of its queries have ended"
        " by themselves, or never",
    ),
    variables_or_null(
        "topology.environment", "environment variables of a topology's workers, by their names"
    ),
    seconds(
        "topology.stuck.batch.secs",
        "time after which a topology with a running batch is shown as stuck; nothing is ended",
    ),
    text_or_null(
        "topology.checkpoint.dir",
        "folder of a topology's checkpoints; null: checkpoints in storm.local.dir",
    ),
    switch(
        "topology.checkpoint.scripts",
        "queries of a plain script that name no checkpoint have it in the topology's folder",
    ),
    text_or_null(
        "topology.checkpoint.from",
        "killed topology, by its id or name, from whose checkpoints a topology goes on",
    ),
    texts(
        "topology.checkpoint.abandon",
        "queries that begin anew all the same, as their checkpoints are on a machine that is lost",
    ),
    Key(
        "topology.blobstore.map",
        dict[Text, Any] | None,
        "a mapping with the keys of blobs, or null",
        "blobs that a topology uses, which must be there when it is submitted",
    ),
    storms_text_or_null("topology.version", "a topology's own version, for people"),
    switch(
        "topology.checkpoint.shared",
        "that folder is the same on all machines, so that a query may move to another one",
    ),
    whole(
        "topology.worker.memory.mb",
        "most memory of a worker with all of its processes, in MB",
        least=1,
    ),
    # Heartbeat pipeline
    text_or_null(
        "pipeline.tables.dir",
        "the heartbeat pipeline's Parquet tables; null: tables in storm.local.dir",
    ),
    text_or_null(
        "pipeline.checkpoint.dir",
        "the heartbeat pipeline's checkpoints; null: .checkpoint beside each query's tables",
    ),
    seconds("pipeline.trigger.secs", "time between two looks at who is alive"),
    seconds_from(
        "pipeline.statistics.secs",
        "time between two readings of what was counted; 0: as often as of who is alive",
        least=0,
    ),
    whole_or_null(
        "pipeline.statistics.parts",
        "in how many parts that is read and made, each with some of the topologies; null: one for"
        " each 8,192 workers at the start",
        least=1,
    ),
    whole(
        "pipeline.retention.events.hours",
        "how long the heartbeat pipeline keeps what happened to workers, in hours",
        least=1,
    ),
    whole(
        "pipeline.retention.executor.stats.hours",
        "how long the heartbeat pipeline keeps every executor's readings, in hours",
        least=1,
    ),
    whole(
        "pipeline.retention.executor.stats.mb",
        "what these readings may take on disk, in megabytes; the oldest go first",
        least=1,
    ),
    whole(
        "pipeline.retention.rejected.hours",
        "how long the heartbeat pipeline keeps what it rejected, in hours",
        least=1,
    ),
    whole(
        "pipeline.retention.rollup.1m.hours",
        "how long the heartbeat pipeline keeps what was counted minute by minute, in hours",
        least=1,
    ),
    whole(
        "pipeline.retention.rollup.10m.hours",
        "how long the heartbeat pipeline keeps what was counted in each ten minutes, in hours",
        least=1,
    ),
    whole(
        "pipeline.retention.rollup.60m.hours",
        "how long the heartbeat pipeline keeps what was counted hour by hour, in hours",
        least=1,
    ),
    whole(
        "pipeline.retention.stats.hours",
        "how long the heartbeat pipeline keeps every reading of components and topologies, in "
        "hours",
        least=1,
    ),
    some_of("pipeline.analyses", Analysis, "which analyses the heartbeat pipeline makes"),
    seconds_from(
        "pipeline.analyses.secs",
        "time between two rounds of the heartbeat pipeline's analyses; 0: there are none",
        least=0,
    ),
    whole(
        "pipeline.retention.alerts.hours",
        "how long the heartbeat pipeline keeps the history of alerts, in hours",
        least=1,
    ),
    seconds_or_null(
        "pipeline.late.secs",
        "silence after which a worker counts as late; null: 3 times task.heartbeat.frequency.secs",
    ),
    port_or_null(
        "pipeline.metrics.port",
        "HTTP port of the heartbeat pipeline's metrics and health; 0: any free one; null: none",
    ),
    host_or_null("pipeline.metrics.bind.host", "address for that port; null: 127.0.0.1"),
    # User interface
    port("ui.port", "port of the web UI"),
)

SCHEMA: dict[str, Key] = {key.name: key for key in _KEYS}
