"""A machine's part of the cluster: slots, worker processes, and files."""
