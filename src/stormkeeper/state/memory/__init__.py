"""The cluster's state in one process, for tests: as ZooKeeper keeps it, with failures on demand."""
