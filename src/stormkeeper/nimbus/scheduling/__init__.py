"""Decides which worker runs which query on which machine, without I/O: `planning.plan`.

A new rule ("these two queries are never on one machine") needs a field of `cluster.Topology`, read
in `nimbus.submitted`. `workers`, `placement`, `planning._release` and `planning.status_text` must
obey the rule.

Other modules tell the texts of `planning.status_text` apart by their beginnings, which
`topology.schedule_status` names.
"""
