"""Decides which worker runs which query on which machine, without I/O: `planning.plan`.

A new rule ("these two queries are never on one machine") needs a field of `cluster.Topology`, read
in `nimbus.submitted`. `workers`, `placement`, `planning._release` and `planning.status_text` must
obey the rule.

Other modules match the beginnings of status texts, so a changed text of `planning.status_text`
needs changes there, too: `nimbus.health`, `client.topology_commands`, `cli.topology_tables` and
`local.run_view`.
"""
