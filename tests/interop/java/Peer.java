package org.apache.storm.pacemaker; // some of what is driven can be seen from there only

import java.lang.reflect.Proxy;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.Map;
import org.apache.storm.cluster.IStateStorage;
import org.apache.storm.cluster.PaceMakerStateStorage;
import org.apache.storm.generated.BoltStats;
import org.apache.storm.generated.ClusterWorkerHeartbeat;
import org.apache.storm.generated.ExecutorInfo;
import org.apache.storm.generated.ExecutorSpecificStats;
import org.apache.storm.generated.ExecutorStats;
import org.apache.storm.generated.GlobalStreamId;
import org.apache.storm.generated.HBMessage;
import org.apache.storm.generated.HBMessageData;
import org.apache.storm.generated.HBPulse;
import org.apache.storm.generated.HBServerMessageType;
import org.apache.storm.generated.SpoutStats;
import org.apache.storm.serialization.SerializationDelegate;
import org.apache.storm.utils.Utils;

/**
 * What the drivers share: configuration, requests, records, and checks that are counted.
 *
 * <p>{@code Peer} alone prints which release of Storm this is by its records, 2 or 3, and the names
 * of its serialization delegates.
 */
final class Peer {
    private static final String PACKAGE = "org.apache.storm.serialization.";
    private static final String[] DELEGATES = {
        "ThriftSerializationDelegate",
        "GzipThriftSerializationDelegate",
        "GzipBridgeThriftSerializationDelegate",
        "ZstdThriftSerializationDelegate",
        "ZstdBridgeThriftSerializationDelegate",
    };

    private static int passed;
    private static int failed;

    private Peer() {}

    public static void main(String[] arguments) throws Exception {
        System.out.println(release());
        for (SerializationDelegate delegate : delegates(conf()).values()) {
            System.out.println(delegate.getClass().getName());
        }
    }

    /** What a check does: it passes by returning true; anything else says what was wrong. */
    interface Check {
        Object run() throws Exception;
    }

    static void check(String name, Check check) {
        Object found;
        try {
            found = check.run();
        } catch (Exception | LinkageError error) {
            found = error.getCause() == null ? error : error + " / " + error.getCause();
        }
        if (Boolean.TRUE.equals(found)) {
            passed++;
            System.out.println("PASS " + name);
        } else {
            failed++;
            System.out.println("FAIL " + name + " -- " + found);
        }
    }

    /** Say how many checks passed, and end the process. */
    static void finish() {
        System.out.printf("TOTAL %d of %d%n", passed, passed + failed);
        System.exit(failed == 0 ? 0 : 1);
    }

    static Object equal(Object wanted, Object found) {
        return wanted.equals(found) ? Boolean.TRUE : "wanted " + wanted + ", found " + found;
    }

    /**
     * What the {@code storm.yaml} on the class path says, and Storm's defaults; with other values
     * for some keys: key, value, key, value…
     */
    static Map<String, Object> conf(Object... changes) {
        Map<String, Object> conf = new HashMap<>(Utils.readStormConfig());
        for (int i = 0; i < changes.length; i += 2) {
            conf.put((String) changes[i], changes[i + 1]);
        }
        return conf;
    }

    /** Storm's store of heartbeats over Pacemakers, without a ZooKeeper beside it. */
    static PaceMakerStateStorage storage(Map<String, Object> conf) throws Exception {
        Class<?>[] types = {IStateStorage.class};
        Object none = Proxy.newProxyInstance(Peer.class.getClassLoader(), types, (self, method, arguments) -> {
            if (method.getName().equals("close")) {
                return null;
            }
            throw new UnsupportedOperationException(method.getName());
        });
        return new PaceMakerStateStorage(new PacemakerClientPool(conf), (IStateStorage) none);
    }

    /** The delegates that this release of Storm has, by their names. */
    static Map<String, SerializationDelegate> delegates(Map<String, Object> conf) throws Exception {
        Map<String, SerializationDelegate> found = new LinkedHashMap<>();
        for (String name : DELEGATES) {
            try {
                found.put(name, delegate(PACKAGE + name, conf));
            } catch (ClassNotFoundException error) {
                continue; // Storm 2 has no zstd
            }
        }
        return found;
    }

    static SerializationDelegate delegate(String name, Map<String, Object> conf) throws Exception {
        Object made = Class.forName(name).getDeclaredConstructor().newInstance();
        SerializationDelegate delegate = (SerializationDelegate) made;
        delegate.prepare(conf);
        return delegate;
    }

    static HBMessage path(HBServerMessageType type, String path) {
        return new HBMessage(type, HBMessageData.path(path));
    }

    static HBMessage pulse(String path, byte[] details) {
        HBPulse pulse = new HBPulse();
        pulse.set_id(path);
        pulse.set_details(details);
        return new HBMessage(HBServerMessageType.SEND_PULSE, HBMessageData.pulse(pulse));
    }

    /** A heartbeat of a spout and a bolt, as whichever release of Storm this is declares its time. */
    static ClusterWorkerHeartbeat heartbeat(String topology, long time) {
        Map<ExecutorInfo, ExecutorStats> stats = new LinkedHashMap<>();
        stats.put(new ExecutorInfo(1, 1), spout());
        stats.put(new ExecutorInfo(2, 3), bolt());
        ClusterWorkerHeartbeat beat = new ClusterWorkerHeartbeat();
        beat.set_storm_id(topology);
        beat.set_executor_stats(stats);
        Object asDeclared = release() == 2 ? (Object) (int) time : (Object) time;
        beat.setFieldValue(ClusterWorkerHeartbeat._Fields.TIME_SECS, asDeclared);
        beat.set_uptime_secs(4242);
        return beat;
    }

    /** 2 where a heartbeat's time is an int, 3 where it is a long. */
    static int release() {
        try {
            return ClusterWorkerHeartbeat.class.getMethod("get_time_secs").getReturnType() == int.class ? 2 : 3;
        } catch (NoSuchMethodException error) {
            throw new IllegalStateException(error);
        }
    }

    private static ExecutorStats spout() {
        Map<String, Map<String, Long>> counts = Map.of(":all-time", Map.of("default", 5_000_000_000L));
        SpoutStats spout = new SpoutStats(counts, Map.of(), Map.of("600", Map.of("default", 3.25)));
        return new ExecutorStats(counts, counts, ExecutorSpecificStats.spout(spout), 1.0);
    }

    private static ExecutorStats bolt() {
        Map<String, Map<String, Long>> emitted = Map.of("600", Map.of("s\u00e9cond", 20L));
        GlobalStreamId from = new GlobalStreamId("spout", "default");
        Map<String, Map<GlobalStreamId, Long>> counts = Map.of("600", Map.of(from, 990L));
        Map<String, Map<GlobalStreamId, Double>> times = Map.of("600", Map.of(from, 0.125));
        BoltStats bolt = new BoltStats(counts, Map.of(), times, counts, times);
        return new ExecutorStats(emitted, emitted, ExecutorSpecificStats.bolt(bolt), 0.05);
    }
}
