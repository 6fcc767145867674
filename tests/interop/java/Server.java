package org.apache.storm.pacemaker;

import java.util.Map;
import org.apache.storm.metric.StormMetricsRegistry;

/** Storm's own Pacemaker, as {@code storm.yaml} says, until it is killed or its input ends. */
public final class Server {
    private Server() {}

    public static void main(String[] arguments) throws Exception {
        Map<String, Object> conf = Peer.conf();
        new PacemakerServer(new Pacemaker(conf, new StormMetricsRegistry()), conf);
        System.out.println("READY");
        while (System.in.read() >= 0) {
            continue;
        }
        System.exit(0);
    }
}
