"""The master of a cluster: who leads, and what it decides about topologies and their workers.

===================  =============================================================================
``elector``          one Nimbus among those that would lead: what a daemon calls
``election``         how a Nimbus comes to lead, and stops: decisions, without I/O
``election_events``  what the election is told, and what it says is to be done
``queueing``         carries out what it asks of the store
``reigning``         carries out what it asks of the Nimbus
``readiness``        what a Nimbus needs before it leads: code, and topologies that are its own
``lifecycle``        what a topology may do next, by its status
``deadlines``        the time at which a kill or a rebalance is due
``scheduling``       who runs where
===================  =============================================================================
"""
