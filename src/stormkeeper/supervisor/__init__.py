"""A machine's part of the cluster.

================  ==========================================================================
``environments``  what topologies require, installed once for all that require the same
================  ==========================================================================
"""
