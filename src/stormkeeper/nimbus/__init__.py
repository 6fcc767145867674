"""The master of a cluster: who leads, and what it decides about topologies and their workers.

===================  =============================================================================
``process``          ``storm nimbus``: all of this as a process
``service``          its Thrift service
``elector``          one Nimbus among those that would lead: what a daemon calls
``election``         how a Nimbus comes to lead, and stops: decisions, without I/O
``election_events``  what the election is told, and what it says is to be done
``queueing``         carries out what it asks of the store
``reigning``         carries out what it asks of the Nimbus
``readiness``        what a Nimbus needs before it leads: code, and topologies that are its own
``leading``          what a Nimbus does while it leads
``reign``            what its service has of that
``scheduler``        reads the cluster, decides, and writes what follows
``deciding``         one round of that, without I/O
``knowing``          what it has to know of topologies, out of their code
``cleaning``         removes what is left of topologies that are gone
``retaining``        has their checkpoints removed, when their time is over
``checkpoints``      where checkpoints are, and who goes on from them
``scheduling``       who runs where
``lifecycle``        what a topology may do next, by its status
``conf_changes``     what rebalances change in confs, though the leader is lost meanwhile
``deadlines``        the time at which a kill or a rebalance is due
``health``           how topologies do, by what supervisors and heartbeats say
``submitted``        what was submitted of topologies, out of their blobs
``history``          which topologies it has removed
``times``            the times that are configured
``sight``            what is seen of the cluster, for log and metrics
``metrics``          the pages of metrics and health
===================  =============================================================================
"""
