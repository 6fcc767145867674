package org.apache.storm.pacemaker;

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import org.apache.storm.Config;
import org.apache.storm.cluster.ClusterUtils;
import org.apache.storm.cluster.PaceMakerStateStorage;
import org.apache.storm.generated.ClusterWorkerHeartbeat;
import org.apache.storm.utils.Utils;

/**
 * {@code Fleet WORKERS TOPOLOGY}: Storm's store of heartbeats as so many workers, who do not
 * authenticate, and as one Nimbus, who does as {@code storm.yaml} says.
 *
 * <p>Of each line of standard input: {@code beat TIME} has every worker send a heartbeat of that
 * time, and prints how many could; {@code read TIME} prints how many workers Nimbus sees with a
 * heartbeat of that time; {@code delete} has Nimbus delete the topology's, and prints how many are
 * left. The end of input ends it.
 */
public final class Fleet {
    private static final String NODE = "node";
    private static final int FIRST_PORT = 6700;

    private final String topology;
    private final List<PaceMakerStateStorage> workers = new ArrayList<>();
    private final PaceMakerStateStorage nimbus;
    private final ExecutorService threads;

    private Fleet(String[] arguments) throws Exception {
        int count = Integer.parseInt(arguments[0]);
        for (int i = 0; i < count; i++) {
            workers.add(Peer.storage(Peer.conf(Config.PACEMAKER_AUTH_METHOD, "NONE")));
        }
        nimbus = Peer.storage(Peer.conf());
        topology = arguments[1];
        threads = Executors.newFixedThreadPool(count);
    }

    public static void main(String[] arguments) throws Exception {
        Fleet fleet = new Fleet(arguments);
        System.out.println("READY");
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in));
        for (String line = input.readLine(); line != null; line = input.readLine()) {
            String[] words = line.split(" ");
            switch (words[0]) {
                case "beat" -> System.out.println(fleet.beat(Long.parseLong(words[1])));
                case "read" -> System.out.println(fleet.read(Long.parseLong(words[1])));
                case "delete" -> System.out.println(fleet.delete());
                default -> throw new IllegalArgumentException(line);
            }
        }
        System.exit(0);
    }

    private int beat(long time) throws Exception {
        byte[] beat = Utils.serialize(Peer.heartbeat(topology, time));
        List<Future<?>> sending = new ArrayList<>();
        for (int i = 0; i < workers.size(); i++) {
            PaceMakerStateStorage worker = workers.get(i);
            String path = ClusterUtils.workerbeatPath(topology, NODE, (long) FIRST_PORT + i);
            sending.add(threads.submit(() -> worker.set_worker_hb(path, beat, null)));
        }
        int sent = 0;
        for (Future<?> one : sending) {
            try {
                one.get();
                sent++;
            } catch (ExecutionException error) {
                System.err.println("not sent: " + error.getCause());
            }
        }
        return sent;
    }

    private int read(long time) {
        ClusterWorkerHeartbeat wanted = Peer.heartbeat(topology, time);
        int seen = 0;
        try {
            for (String name : names()) {
                byte[] found = nimbus.get_worker_hb(ClusterUtils.workerbeatStormRoot(topology) + "/" + name, false);
                if (found != null && wanted.equals(Utils.deserialize(found, ClusterWorkerHeartbeat.class))) {
                    seen++;
                }
            }
        } catch (RuntimeException error) {
            System.err.println("not read: " + error);
        }
        return seen;
    }

    private int delete() {
        nimbus.delete_worker_hb(ClusterUtils.workerbeatStormRoot(topology));
        return names().size();
    }

    private List<String> names() {
        return nimbus.get_worker_hb_children(ClusterUtils.workerbeatStormRoot(topology), false);
    }
}
