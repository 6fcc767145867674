"""A machine's part of the cluster: its slots, the worker processes in them, and their files.

====================  =========================================================================
``environments``      what topologies require, installed once for all that require the same
``kinship``           which processes belong to a worker, pure
``process_table``     the processes of a machine, by pid and start time
====================  =========================================================================
"""
