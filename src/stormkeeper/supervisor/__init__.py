"""A machine's part of the cluster: its slots, the worker processes in them, and their files.

====================  =========================================================================
``process``           the supervisor as a process
``slot_loop``         the thread that lives the slots' lives
``means``             what that works with, and what can be seen of the slots
``waiting``           waits at one place for all that may happen
``records``           what a slot is to run, and what a restarted supervisor must know of it
``events``            what happens to a slot, and what its machine has done about it
``slots``             one slot's life, pure
``preparation``       what precedes a launch, pure
``times``             how long each step of a slot's life may take
``assignments``       follows what the cluster has assigned
``orders``            what of that the slots are to run, pure
``registration``      what the supervisor says of itself
``preparing``         carries out preparations, each on a thread
``topology_code``     the code of topologies: fetched, checked, laid out
``environments``      what topologies require, installed once for all that require the same
``launching``         how a worker is launched: files, command line, environment
``worker_processes``  the processes of workers: start, look, signals, memory
``control_groups``    limits of their memory that the kernel keeps
``process_table``     the processes of a machine, and which of them are a worker's
``directories``       where everything is on the disk, and the removal of what nobody needs
``tidying``           has it removed
``checkpoints``       removes those of topologies that are gone
``log_files``         the logs that workers have left, and nothing else, listed and read
``log_pages``         the pages that have them
``local_state``       what outlives a supervisor: its id and its slots
``reports``           what went wrong with workers, for their users
``ending``            ends all workers of a machine
``health``            whether a machine is fit for new work, looked at again and again
``pages``             metrics and health, over HTTP
``metrics``           the metrics
====================  =========================================================================
"""
