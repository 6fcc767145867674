package org.apache.storm.pacemaker;

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.HashMap;
import java.util.HexFormat;
import java.util.List;
import java.util.Map;
import java.util.Set;
import org.apache.storm.Config;
import org.apache.storm.assignments.InMemoryAssignmentBackend;
import org.apache.storm.cluster.ClusterStateContext;
import org.apache.storm.cluster.ClusterUtils;
import org.apache.storm.cluster.DaemonType;
import org.apache.storm.cluster.IStormClusterState;
import org.apache.storm.generated.Assignment;
import org.apache.storm.generated.ClusterWorkerHeartbeat;
import org.apache.storm.generated.Credentials;
import org.apache.storm.generated.ErrorInfo;
import org.apache.storm.generated.LogConfig;
import org.apache.storm.generated.NimbusSummary;
import org.apache.storm.generated.NodeInfo;
import org.apache.storm.generated.ProfileRequest;
import org.apache.storm.generated.StormBase;
import org.apache.storm.generated.SupervisorInfo;
import org.apache.storm.nimbus.NimbusInfo;
import org.apache.storm.thrift.TBase;
import org.apache.storm.thrift.TDeserializer;
import org.apache.storm.thrift.TException;
import org.apache.storm.thrift.protocol.TBinaryProtocol;

/**
 * {@code ClusterState write|check RECORDS [USER:PASSWORD]}: Storm's own cluster state on the
 * ZooKeeper of {@code storm.yaml}; for a topology with that digest user of its own.
 *
 * <p>RECORDS is a file of lines: a record's class and its plain Thrift in hexadecimal. {@code write}
 * writes them and waits for the end of input, as some live as long as the session; {@code check}
 * holds what is there against them.
 */
public final class ClusterState {
    private static final String TOPOLOGY = "wc-1-1700000000";
    private static final String SUPERVISOR = "sup-aaaa-10.0.0.1";
    private static final long PORT = 6700L;
    private static final String COMPONENT = "split bolt/\u00e9";
    private static final String HOST = "h1.example";
    private static final String ERROR = "boom \u2603";
    private static final String BLOB = TOPOLOGY + "-stormcode.ser";
    private static final NimbusInfo NIMBUS = new NimbusInfo("nimbus1.example", 6627, true);

    private final IStormClusterState state;
    private final Map<String, byte[]> records = new HashMap<>();
    private final Map<String, Object> topologyConf = new HashMap<>();

    private ClusterState(String[] arguments) throws Exception {
        Map<String, Object> conf = Peer.conf();
        for (String line : Files.readAllLines(Path.of(arguments[1]))) {
            String[] words = line.split(" ");
            records.put(words[0], HexFormat.of().parseHex(words[1]));
        }
        topologyConf.putAll(conf);
        if (arguments.length > 2) {
            topologyConf.put(Config.STORM_ZOOKEEPER_TOPOLOGY_AUTH_SCHEME, "digest");
            topologyConf.put(Config.STORM_ZOOKEEPER_TOPOLOGY_AUTH_PAYLOAD, arguments[2]);
        }
        InMemoryAssignmentBackend backend = new InMemoryAssignmentBackend();
        backend.prepare(conf);
        state = ClusterUtils.mkStormClusterState(conf, backend, new ClusterStateContext(DaemonType.NIMBUS, conf));
    }

    public static void main(String[] arguments) throws Exception {
        ClusterState driver = new ClusterState(arguments);
        if (arguments[0].equals("check")) {
            driver.check();
            Peer.finish();
        }
        driver.write();
        System.out.println("READY");
        new BufferedReader(new InputStreamReader(System.in)).readLine();
        System.exit(0);
    }

    private <T extends TBase<?, ?>> T record(T empty) throws TException {
        byte[] data = records.get(empty.getClass().getSimpleName());
        new TDeserializer(new TBinaryProtocol.Factory()).deserialize(empty, data);
        return empty;
    }

    private void write() throws Exception {
        state.activateStorm(TOPOLOGY, record(new StormBase()), topologyConf);
        state.setAssignment(TOPOLOGY, record(new Assignment()), topologyConf);
        state.supervisorHeartbeat(SUPERVISOR, record(new SupervisorInfo()));
        state.setupErrors(TOPOLOGY, topologyConf);
        state.reportError(TOPOLOGY, COMPONENT, HOST, PORT, new IllegalStateException(ERROR));
        state.setupHeatbeats(TOPOLOGY, topologyConf);
        state.workerHeartbeat(TOPOLOGY, SUPERVISOR, PORT, record(new ClusterWorkerHeartbeat()));
        state.addNimbusHost(NIMBUS.getHost(), record(new NimbusSummary()));
        state.setCredentials(TOPOLOGY, record(new Credentials()), topologyConf);
        state.setTopologyLogConfig(TOPOLOGY, record(new LogConfig()), topologyConf);
        state.setWorkerProfileRequest(TOPOLOGY, record(new ProfileRequest()));
        state.setupBlob(BLOB, NIMBUS, 1);
    }

    private void check() {
        Peer.check("topologies", () -> Peer.equal(List.of(TOPOLOGY), state.activeStorms()));
        Peer.check("StormBase", () -> Peer.equal(record(new StormBase()), state.stormBase(TOPOLOGY, null)));
        Peer.check("Assignment", () -> Peer.equal(record(new Assignment()), state.remoteAssignmentInfo(TOPOLOGY, null)));
        Peer.check("supervisors", () -> Peer.equal(List.of(SUPERVISOR), state.supervisors(null)));
        Peer.check("SupervisorInfo", () -> Peer.equal(record(new SupervisorInfo()), state.supervisorInfo(SUPERVISOR)));
        Peer.check("topologies with heartbeats", () -> Peer.equal(List.of(TOPOLOGY), List.copyOf(state.heartbeatStorms())));
        Peer.check("ClusterWorkerHeartbeat", () ->
            Peer.equal(record(new ClusterWorkerHeartbeat()), state.getWorkerHeartbeat(TOPOLOGY, SUPERVISOR, PORT)));
        Peer.check("NimbusSummary", () -> Peer.equal(List.of(record(new NimbusSummary())), state.nimbuses()));
        Peer.check("Credentials", () -> Peer.equal(record(new Credentials()), state.credentials(TOPOLOGY, null)));
        Peer.check("LogConfig", () -> Peer.equal(record(new LogConfig()), state.topologyLogConfig(TOPOLOGY, null)));
        Peer.check("ProfileRequest", () -> Peer.equal(
            List.of(record(new ProfileRequest())),
            state.getWorkerProfileRequests(TOPOLOGY, new NodeInfo(SUPERVISOR, Set.of(PORT)))));
        Peer.check("topologies with errors", () -> Peer.equal(List.of(TOPOLOGY), List.copyOf(state.errorTopologies())));
        Peer.check("ErrorInfo", () -> isError(state.errors(TOPOLOGY, COMPONENT).get(0)));
        Peer.check("the last ErrorInfo", () -> isError(state.lastError(TOPOLOGY, COMPONENT)));
        Peer.check("blobs", () -> Peer.equal(List.of(BLOB), state.blobstore(null)));
        Peer.check("who holds a blob", () -> {
            List<String> holders = state.blobstoreInfo(BLOB);
            return holders.size() == 1 && holders.get(0).startsWith(NIMBUS.toHostPortString()) ? true : holders;
        });
    }

    private static Object isError(ErrorInfo error) {
        boolean same = error.get_error().contains(ERROR) && error.get_host().equals(HOST) && error.get_port() == PORT;
        return same ? true : error;
    }
}
