"""The cluster's state as Storm's records: typed operations on top of a `ClusterState`.

===============  =================================================================================
``cluster``      `StormClusterState`: what every daemon, worker and tool may read and write
``leader``       `LeaderClusterState`: what only the leader may write, each write fenced
``snapshot``     all that a decision about the cluster needs, read in one go
``watching``     callbacks and streams that follow the changes of what was read
``codec``        records to bytes and back
``records``      what the families of operations are made of
===============  =================================================================================

The families are ``topologies``, ``workers``, ``heartbeats``, ``errors``, ``tasks``, ``daemons``,
``blobs`` and ``checkpoints``. Nothing is imported here: each costs only whom it serves.
"""
