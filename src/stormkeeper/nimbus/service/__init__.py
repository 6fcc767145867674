"""Nimbus's Thrift service: what is done at each call.

=================  ===============================================================================
``handler``        all methods
``given``          what they need of the process that they are served by
``served``         what all groups of methods have: who calls, who leads, topologies by name
``submitting``     submission: the upload, the checks, and what is written in which order
``submissions``    the topologies that are being submitted
``structure``      whether a topology holds together, by itself and with its package
``topology_conf``  a topology's configuration, as it is sent and as it is saved
``living``         kill, activate, deactivate, rebalance
``settings``       credentials, log levels, sampling
``viewing``        reads what is told of topologies
``clusters``       what is told of the cluster as a whole
``topologies``     what is told of one topology
``sharing``        one read for all who wait for it at the same moment
``summaries``      the lines of topologies, supervisors, Nimbuses and owners
``pages``          the pages of topologies and components, in Storm's structs
``blobs``          blobs, made, read and deleted by clients and other Nimbuses
``reports``        what supervisors and workers send, and ask for
=================  ===============================================================================
"""
