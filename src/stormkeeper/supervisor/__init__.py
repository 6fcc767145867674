"""A machine's part of the cluster: its slots, the worker processes in them, and their files."""
