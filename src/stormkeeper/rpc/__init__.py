"""Thrift over sockets: a service's calls, in frames of the binary protocol.

================  =================================================================================
``messages``      a call, an answer or a fault, to and from bytes
``connection``    one client's bytes in, its calls out, in order; without I/O
``dispatching``   a call's arguments to the handler, and what it returns or raises to an answer
``working``       the threads in which handlers run, and the calls that wait for one
``channel``       the socket of one client, and its time limits
``limits``        how much a server takes: bytes, connections, calls, seconds
``serving``       the server: sockets in one thread, handlers in theirs
``dialing``       connects, with a deadline
``calling``       the client: one call at a time, each with a deadline
``head_starts``   attempts that may hang, each begun a moment after the one before it
``leader``        the client that finds the leading Nimbus
================  =================================================================================

The server's half is ``connection`` to ``serving``, the client's ``dialing`` to ``leader``.
"""
