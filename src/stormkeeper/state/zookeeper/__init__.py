"""The cluster's state in ZooKeeper, through kazoo.

=================  ===============================================================================
``state``          the session, as a `ClusterState`
``tree``           operations on nodes, each of as few requests as it takes
``requests``       what a server is asked, through kazoo's own calls
``connection``     makes requests, one or many, and waits until their deadline
``handler``        what kazoo lets its user bring: threads, sockets, results of requests
``overrides``      what is private to kazoo and overridden by us, and why
``recovery``       the thread that puts a lost session's registrations and watches back
``registrations``  the ephemeral nodes that are made again in each new session
``settings``       from the configuration: which servers
``security``       as whom
``tls``            over what
``errors``         kazoo's exceptions as ours
=================  ===============================================================================
"""
