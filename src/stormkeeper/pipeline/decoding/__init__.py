"""Decoding of heartbeats into Arrow's columns, without a Python object for each field.

`decoded_rows` chooses between two engines with one interface: `_compiled`, and `plain` in Python.
"""
