"""Decides which worker runs which query on which machine, without I/O.

`planning.plan` is the whole decision. `worker_fate` says which workers stay and which queries need
a new worker; `placement` says on which machine a new worker may be, which queries share a worker,
and which topology comes first. So a rule such as "these two queries are never on one machine" is a
field of `cluster.Topology`, which `topology_cache` fills from the topology's conf, and a condition
in `placement.Placement`. Tests: `test_planning` has examples of whole decisions,
`test_planning_properties` rules that hold in every cluster, `test_placement` the capacity.
"""
