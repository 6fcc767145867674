"""Decides which worker runs which query on which machine, without I/O.

`planning.plan` is the whole decision. `worker_fate` says which workers stay and which queries need
a new worker; `placement` says where a new worker may be and which comes first. A rule such as
"these two queries never share a machine" belongs into `placement`, its tests into `test_placement`
and `test_planning_properties`.
"""
