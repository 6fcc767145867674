"""The cluster's state: Storm's records in ZooKeeper, and heartbeats there or in Pacemakers."""
