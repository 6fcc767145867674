"""Heartbeats from bytes to Arrow's columns, without an object of Python's for each field.

=============  ====================================================================================
``values``     the way in: the values of pulses, compressed or not, become columns
``layout``     the types of the columns, and the limits
``engine``     which of the two engines runs
``plain``      the one in plain Python, which also says what is wrong with a value
``_compiled``  the compiled one
=============  ====================================================================================
"""
