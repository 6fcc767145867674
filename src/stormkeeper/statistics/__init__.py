"""Storm's windowed statistics: what Nimbus's summaries and pages say of a topology; pure.

============  ====================================================================================
``tasks``     which component a task belongs to
``reports``   what each executor has reported: an assignment and its workers' heartbeats, joined
``tallies``   the arithmetic: what counts, how averages are weighed, capacity
``pages``     the page of a topology, of a component, and the workers
============  ====================================================================================

Results have the field names of Storm's Thrift structs, so that these are a plain mapping of them.
"""
