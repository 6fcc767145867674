"""The cluster's state as Storm's records: typed operations on top of a `ClusterState`.

===============  =================================================================================
``cluster``      `StormClusterState`: what every daemon, worker and tool may read and write
``leader``       `LeaderClusterState`: what only the leader may write, each write fenced
``streams``      values that follow the changes of what was read
``codec``        records to bytes and back, and the epoch of the leader that wrote one
===============  =================================================================================

``reading``, ``dispatch`` and ``writing`` carry the families of operations: ``topologies``,
``configs``, ``profiling``, ``supervisors``, ``nimbuses``, ``heartbeats``, ``errors``, ``tasks``,
``blobs`` and ``backpressure``. Nothing is imported here: each costs only whom it serves.
"""
