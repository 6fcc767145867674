"""The cluster's state: Storm's znodes in ZooKeeper or in memory, heartbeats in Pacemaker."""
