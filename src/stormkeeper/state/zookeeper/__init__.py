"""The cluster's state in ZooKeeper, through kazoo."""
