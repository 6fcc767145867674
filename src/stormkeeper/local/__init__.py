"""A whole cluster on one machine: ZooKeeper, Pacemakers, a worker, the heartbeat pipeline."""
