"""A machine's part of the cluster: its slots, the worker processes in them, and their files.

====================  =========================================================================
``records``           what a slot is to run, and what a restarted supervisor must know of it
``events``            what happens to a slot, and what its machine has done about it
``slots``             one slot's life, pure
``preparation``       what precedes a launch, pure
``times``             how long each step of a slot's life may take
``environments``      what topologies require, installed once for all that require the same
``worker_processes``  the processes of workers: start, look, signals, memory
``kinship``           which processes belong to a worker, pure
``process_table``     the processes of a machine, by pid and start time
``directories``       where everything is on the disk, and the removal of what nobody needs
``local_state``       what outlives a supervisor: its id and its slots
``health``            the operator's own checks of a machine
====================  =========================================================================
"""
