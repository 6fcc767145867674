"""The cluster's state: Storm's znodes in ZooKeeper or in memory, heartbeats in Pacemaker.

===================  =============================================================================
``storm``            Storm's records in a store: what daemons, workers and tools call
``storage``          a store: `StateReader`, `StateWriter`, and `ClusterState`, which is both
``transactions``     the operations that are written together
``zookeeper``        the store in ZooKeeper
``memory``           the same in one process, with failures on demand
``factory``          connects to ZooKeeper, and to where the configuration has heartbeats go
``node_heartbeats``  heartbeats as nodes of the store, where there is no Pacemaker
``access``           who may read and write which node
``callbacks``        the one thread that tells callbacks what happened
``watches``          the watches that a session has left, and what they missed
``locks``            the queue of those who would lead
``fences``           the proof of being its first, and the writer that checks it with each write
``survey``           all nodes, read at once for tools
``decoding``         what the values of nodes say
``checking``         what should not be there
===================  =============================================================================
"""
