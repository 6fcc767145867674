"""The master of a cluster: who leads, and what it decides about topologies and their workers."""
