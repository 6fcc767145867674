"""Storm's records in a store: typed reads and writes on top of a `ClusterState`."""
