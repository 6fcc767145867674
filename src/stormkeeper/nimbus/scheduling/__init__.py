"""Decides which worker runs which query on which machine, without I/O.

A machine here is a supervisor; several supervisors may share a host. `planning.plan` is the whole
decision. `worker_fate` says which workers stay, which queries need a new worker, and which machine
such a query needs. `placement` says which topology comes first, chooses slots, and divides queries.
`Placement.new_workers` divides the queries only after all slots are taken.

A rule such as "these two queries are never on one machine" needs a field of
`conversion.TopologyFacts` and of `cluster.Topology`. `stormkeeper.nimbus.submitted` reads the
field from the topology's conf, and `conversion` copies the field. `worker_fate`, `placement`,
`planning._release` and `status_text` must obey the rule.

Tests: `test_planning` has examples of whole decisions, `test_planning_properties` rules that hold
in every cluster, `test_placement` the capacity.
"""
