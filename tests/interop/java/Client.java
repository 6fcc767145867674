package org.apache.storm.pacemaker;

import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.Set;
import java.util.TreeSet;
import java.util.concurrent.CyclicBarrier;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import org.apache.storm.Config;
import org.apache.storm.cluster.ClusterUtils;
import org.apache.storm.cluster.PaceMakerStateStorage;
import org.apache.storm.generated.ClusterWorkerHeartbeat;
import org.apache.storm.generated.HBMessage;
import org.apache.storm.generated.HBPulse;
import org.apache.storm.generated.HBServerMessageType;
import org.apache.storm.serialization.SerializationDelegate;
import org.apache.storm.utils.Utils;

/**
 * {@code Client login|stranger|all}: holds a Pacemaker to what Storm's own client wants of one.
 *
 * <p>{@code login} connects, authenticates as {@code storm.yaml} says, and reads, again and again,
 * as one answer may come before a connection is closed that should have stayed;
 * {@code stranger} does not authenticate where it should; {@code all} has everything else, and
 * Storm's store of heartbeats.
 */
public final class Client {
    private static final int LARGEST = 10_485_760 - 200; // a frame, and what stands around a value
    private static final byte[] ONE = "one".getBytes(StandardCharsets.UTF_8);
    private static final byte[] BINARY = {0, (byte) 0xff, 10, 13, 0};

    private final PacemakerClient client;
    private final String root = "/workerbeats-" + Long.toHexString(System.nanoTime());

    private Client(PacemakerClient client) {
        this.client = client;
    }

    public static void main(String[] arguments) {
        Map<String, Object> conf = Peer.conf();
        try {
            switch (arguments[0]) {
                case "login" -> checkLogin(conf);
                case "stranger" -> checkStranger();
                case "all" -> checkAll(conf);
                default -> throw new IllegalArgumentException(arguments[0]);
            }
        } catch (Exception error) {
            Peer.check("nothing goes wrong between two checks", () -> error);
        }
        Peer.finish();
    }

    private static void checkLogin(Map<String, Object> conf) {
        PacemakerClient client = open(conf);
        Peer.check("the client connects, authenticates where it has to, and reads", () -> {
            Client driver = new Client(client);
            for (int i = 0; i < 100; i++) {
                if (driver.exists("/none")) {
                    return "there";
                }
            }
            return true;
        });
        close(client);
    }

    private static void checkAll(Map<String, Object> conf) throws Exception {
        PacemakerClient client = open(conf);
        Client driver = new Client(client);
        driver.checkSingleRequests();
        driver.checkListings();
        driver.checkDeletes();
        driver.checkNamesAndSizes();
        driver.checkMany(conf);
        close(client);
        checkStorage(conf);
    }

    private static PacemakerClient open(Map<String, Object> conf) {
        return new PacemakerClient(conf, ((List<?>) conf.get(Config.PACEMAKER_SERVERS)).get(0).toString());
    }

    private static void close(PacemakerClient client) {
        client.shutdown();
        client.close();
    }

    /** Somebody who does not authenticate may write and delete, and reads nothing. */
    private static void checkStranger() throws Exception {
        PacemakerClient stranger = open(Peer.conf(Config.PACEMAKER_AUTH_METHOD, "NONE"));
        Client driver = new Client(stranger);
        String path = driver.root + "/topology/node-1";
        Peer.check("a stranger's CREATE_PATH is answered", () -> driver.acknowledged(HBServerMessageType.CREATE_PATH, path));
        Peer.check("a stranger's SEND_PULSE is taken", () -> driver.acknowledged(driver.send(path, ONE), HBServerMessageType.SEND_PULSE_RESPONSE));
        for (HBServerMessageType type : List.of(
                HBServerMessageType.EXISTS,
                HBServerMessageType.GET_PULSE,
                HBServerMessageType.GET_ALL_NODES_FOR_PATH,
                HBServerMessageType.GET_ALL_PULSE_FOR_PATH)) {
            Peer.check("a stranger's " + type + " is refused", () ->
                driver.acknowledged(stranger.send(Peer.path(type, path)), HBServerMessageType.NOT_AUTHORIZED));
        }
        Peer.check("a stranger's DELETE_PULSE_ID is taken", () -> driver.acknowledged(HBServerMessageType.DELETE_PULSE_ID, path));
        Peer.check("a stranger's DELETE_PATH is taken", () -> driver.acknowledged(HBServerMessageType.DELETE_PATH, path));
        close(stranger);
    }

    private void checkSingleRequests() {
        String topology = root + "/wc-1-1700000000";
        String path = topology + "/sup-aaaa-10.0.0.1-6700";
        Peer.check("CREATE_PATH is answered without data", () -> acknowledged(HBServerMessageType.CREATE_PATH, topology));
        Peer.check("CREATE_PATH makes no pulse", () -> Peer.equal(false, exists(topology)));
        Peer.check("EXISTS without a pulse is false", () -> Peer.equal(false, exists(path)));
        Peer.check("GET_PULSE without a pulse has the id, and no details", () -> {
            HBPulse pulse = ask(HBServerMessageType.GET_PULSE, path).get_data().get_pulse();
            return pulse.get_id().equals(path) && !pulse.is_set_details() ? true : pulse;
        });
        Peer.check("SEND_PULSE is answered without data", () -> acknowledged(send(path, ONE), HBServerMessageType.SEND_PULSE_RESPONSE));
        Peer.check("EXISTS with a pulse is true", () -> Peer.equal(true, exists(path)));
        Peer.check("EXISTS of what is above a pulse is false", () -> Peer.equal(false, exists(topology)));
        Peer.check("GET_PULSE gives the bytes", () -> Arrays.equals(ONE, get(path)));
        Peer.check("SEND_PULSE overwrites, whatever the bytes", () -> {
            send(path, BINARY);
            return Arrays.equals(BINARY, get(path));
        });
        Peer.check("no bytes at all are a value", () -> {
            send(path, new byte[0]);
            return Arrays.equals(new byte[0], get(path));
        });
        // Storm's servers answer it without data, always.
        Peer.check("GET_ALL_PULSE_FOR_PATH is answered", () -> ask(HBServerMessageType.GET_ALL_PULSE_FOR_PATH, topology) != null);
        Peer.check("every message id, 250 requests in turn", () -> {
            for (int i = 0; i < 250; i++) {
                ask(HBServerMessageType.CREATE_PATH, "/x");
            }
            return true;
        });
    }

    private void checkListings() throws Exception {
        String topology = root + "/wc-1-1700000000";
        send(topology + "/sup-aaaa-10.0.0.1-6700", ONE);
        send(topology + "/sup-bbbb-10.0.0.2-6701", ONE);
        send(root + "/other-2-1700000001/sup-aaaa-10.0.0.1-6702", ONE);
        Set<String> topologies = Set.of("wc-1-1700000000", "other-2-1700000001");
        Set<String> workers = Set.of("sup-aaaa-10.0.0.1-6700", "sup-bbbb-10.0.0.2-6701");
        Peer.check("names below /", () -> names("/").contains(root.substring(1)));
        Peer.check("names below the empty path", () -> names("").contains(root.substring(1)));
        Peer.check("names of topologies", () -> Peer.equal(topologies, names(root)));
        Peer.check("the same with a slash at the end", () -> Peer.equal(topologies, names(root + "/")));
        Peer.check("names of workers", () -> Peer.equal(workers, names(topology)));
        Peer.check("no names below a pulse", () -> Peer.equal(Set.of(), names(topology + "/sup-aaaa-10.0.0.1-6700")));
        Peer.check("no names where nothing is", () -> Peer.equal(Set.of(), names(root + "/nope")));
    }

    private void checkDeletes() throws Exception {
        String topology = root + "/wc-1-1700000000";
        String first = topology + "/sup-aaaa-10.0.0.1-6700";
        String second = topology + "/sup-bbbb-10.0.0.2-6701";
        String other = root + "/other-2-1700000001/sup-aaaa-10.0.0.1-6702";
        Peer.check("DELETE_PULSE_ID is answered without data", () -> acknowledged(HBServerMessageType.DELETE_PULSE_ID, second));
        Peer.check("DELETE_PULSE_ID deletes", () -> get(second) == null);
        Peer.check("DELETE_PULSE_ID of nothing is answered", () -> acknowledged(HBServerMessageType.DELETE_PULSE_ID, second));
        Peer.check("DELETE_PULSE_ID leaves what is below", () -> {
            ask(HBServerMessageType.DELETE_PULSE_ID, topology);
            return get(first) != null;
        });
        Peer.check("DELETE_PATH deletes a topology, and no other", () -> {
            Object answered = acknowledged(HBServerMessageType.DELETE_PATH, topology);
            return get(first) == null && get(other) != null ? answered : "deleted wrongly";
        });
        for (String end : List.of("", "/")) {
            Peer.check("DELETE_PATH of PATH" + end + " deletes whole names", () -> {
                for (String path : List.of("/a", "/a/x-1", "/ab/x-1")) {
                    send(root + path, ONE);
                }
                ask(HBServerMessageType.DELETE_PATH, root + "/a" + end);
                return get(root + "/a") == null && get(root + "/a/x-1") == null && get(root + "/ab/x-1") != null;
            });
        }
    }

    private void checkNamesAndSizes() {
        String name = "t\u00f6p\u00f8-\u6e2c\u8a66-\ud83d\ude00-1-17";
        String path = root + "/" + name + "/n\u00f6de \u2603-6700";
        Peer.check("names in any script are sent, read, listed and deleted", () -> {
            send(path, ONE);
            boolean there = Arrays.equals(ONE, get(path)) && exists(path) && names(root).contains(name)
                && names(root + "/" + name).equals(Set.of("n\u00f6de \u2603-6700"));
            ask(HBServerMessageType.DELETE_PATH, root + "/" + name);
            return there && get(path) == null;
        });
        for (int size : new int[] {1 << 20, LARGEST}) {
            Peer.check("a value of " + size + " bytes", () -> {
                byte[] value = random(size);
                send(root + "/big/x-1", value);
                boolean same = Arrays.equals(value, get(root + "/big/x-1"));
                ask(HBServerMessageType.DELETE_PATH, root + "/big");
                return same;
            });
        }
    }

    private void checkMany(Map<String, Object> conf) {
        Peer.check("2,000 workers of one topology are listed, and deleted together", () -> {
            for (int i = 0; i < 2000; i++) {
                send(root + "/many/n-" + i, ONE);
            }
            int listed = names(root + "/many").size();
            ask(HBServerMessageType.DELETE_PATH, root + "/many");
            return listed == 2000 ? names(root + "/many").isEmpty() : listed;
        });
        Peer.check("50 requests at once on one connection get their own answers", () -> {
            Object found = null;
            // Where a second goes by, Storm's client asks again, and may take the second answer for
            // another request's: three tries, each with a client of its own.
            for (int i = 0; i < 3 && !Boolean.TRUE.equals(found); i++) {
                PacemakerClient several = open(conf);
                found = new Client(several).askAtOnce(50, 10);
                close(several);
            }
            return found;
        });
        Peer.check("all is deleted", () -> acknowledged(HBServerMessageType.DELETE_PATH, root));
    }

    /**
     * Ask from many threads. They wait for each other after each request: Storm's client frees the
     * place of an answer before its thread has read it.
     */
    private Object askAtOnce(int threads, int rounds) throws Exception {
        ExecutorService pool = Executors.newFixedThreadPool(threads);
        CyclicBarrier together = new CyclicBarrier(threads);
        List<Future<Boolean>> asking = new ArrayList<>();
        for (int thread = 0; thread < threads; thread++) {
            String path = root + "/at-once/" + thread;
            byte[] value = random(50 + thread * 37);
            asking.add(pool.submit(() -> {
                boolean right = true;
                for (int round = 0; round < rounds; round++) {
                    together.await(30, TimeUnit.SECONDS);
                    send(path, value);
                    together.await(30, TimeUnit.SECONDS);
                    right &= Arrays.equals(value, get(path));
                }
                return right;
            }));
        }
        boolean right = true;
        try {
            for (Future<Boolean> one : asking) {
                right &= one.get(60, TimeUnit.SECONDS);
            }
        } catch (Exception error) {
            return error;
        } finally {
            pool.shutdownNow();
        }
        return right;
    }

    private static void checkStorage(Map<String, Object> conf) throws Exception {
        PaceMakerStateStorage storage = Peer.storage(conf);
        String topology = "wc-" + Long.toHexString(System.nanoTime()) + "-1-1700000000";
        String top = ClusterUtils.workerbeatStormRoot(topology);
        String path = ClusterUtils.workerbeatPath(topology, "sup-aaaa-10.0.0.1", 6700L);
        ClusterWorkerHeartbeat beat = Peer.heartbeat(topology, 1_700_000_300L);
        for (Map.Entry<String, SerializationDelegate> delegate : Peer.delegates(conf).entrySet()) {
            byte[] data = delegate.getValue().serialize(beat);
            if (!isRead(data)) {
                continue; // the configured delegate, by which the store ranks copies, is for others
            }
            Peer.check("the store has a heartbeat by " + delegate.getKey(), () -> {
                storage.set_worker_hb(path, data, null);
                byte[] found = storage.get_worker_hb(path, false);
                return Arrays.equals(data, found) && beat.equals(Utils.deserialize(found, ClusterWorkerHeartbeat.class));
            });
        }
        Peer.check("the store has null where no heartbeat is", () -> storage.get_worker_hb(path + "9", false) == null);
        storage.set_worker_hb(path + "1", Utils.serialize(beat), null);
        Peer.check("the store lists topologies", () -> storage.get_worker_hb_children(ClusterUtils.WORKERBEATS_SUBTREE, false).contains(topology));
        Set<String> both = Set.of("sup-aaaa-10.0.0.1-6700", "sup-aaaa-10.0.0.1-67001");
        Peer.check("the store lists workers", () -> Peer.equal(both, new HashSet<>(storage.get_worker_hb_children(top, false))));
        Peer.check("the store deletes a worker", () -> {
            storage.delete_worker_hb(path + "1");
            return Peer.equal(List.of("sup-aaaa-10.0.0.1-6700"), storage.get_worker_hb_children(top, false));
        });
        Peer.check("the store deletes a topology", () -> {
            storage.delete_worker_hb(top);
            return storage.get_worker_hb_children(top, false).isEmpty() && storage.get_worker_hb(path, false) == null;
        });
    }

    private static boolean isRead(byte[] data) {
        try {
            return Utils.deserialize(data, ClusterWorkerHeartbeat.class) != null;
        } catch (RuntimeException error) {
            return false;
        }
    }

    private HBMessage send(String path, byte[] details) throws Exception {
        HBMessage answer = client.send(Peer.pulse(path, details));
        if (answer.get_type() != HBServerMessageType.SEND_PULSE_RESPONSE) {
            throw new IllegalStateException("" + answer);
        }
        return answer;
    }

    /** Ask for something at a path; an answer of another kind is an error. */
    private HBMessage ask(HBServerMessageType type, String path) throws Exception {
        HBMessage answer = client.send(Peer.path(type, path));
        if (answer.get_type() != HBServerMessageType.findByValue(type.getValue() + 1)) {
            throw new IllegalStateException("" + answer);
        }
        return answer;
    }

    private Object acknowledged(HBServerMessageType type, String path) throws Exception {
        return acknowledged(ask(type, path), HBServerMessageType.findByValue(type.getValue() + 1));
    }

    private Object acknowledged(HBMessage answer, HBServerMessageType wanted) {
        return answer.get_type() == wanted && !answer.is_set_data() ? true : answer;
    }

    private boolean exists(String path) throws Exception {
        return ask(HBServerMessageType.EXISTS, path).get_data().get_boolval();
    }

    private byte[] get(String path) throws Exception {
        HBPulse pulse = ask(HBServerMessageType.GET_PULSE, path).get_data().get_pulse();
        if (!pulse.get_id().equals(path)) {
            throw new IllegalStateException("the answer to another request: " + pulse.get_id());
        }
        return pulse.get_details();
    }

    private Set<String> names(String path) throws Exception {
        return new TreeSet<>(ask(HBServerMessageType.GET_ALL_NODES_FOR_PATH, path).get_data().get_nodes().get_pulseIds());
    }

    private static byte[] random(int size) {
        byte[] value = new byte[size];
        new Random(size).nextBytes(value);
        return value;
    }
}
