"""Pacemaker's wire protocol, without I/O: messages to bytes and back.

A frame is a big-endian i32 length and an ``HBMessage`` of ``thrift/pacemaker.thrift`` in Thrift's
binary protocol.
"""
