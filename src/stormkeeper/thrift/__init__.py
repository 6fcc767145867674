"""Storm's records: the IDL, the codec, compression, and their text for people.

=================  ===============================================================================
``records``        the classes of ``storm.thrift``: heartbeats, assignments, summaries, …
``pacemaker``      the classes of ``pacemaker.thrift``: Pacemaker's messages and our extensions
``serialization``  a record to and from the bytes of a znode or a pulse
``readable``       a record as JSON values and as text
=================  ===============================================================================

``idl``, ``reader``, ``scalars``, ``writer`` and ``compression`` serve these four; ``idl`` also
loads exceptions and services. ``framing`` cuts a stream of bytes into frames. Nothing is imported
here: each costs only whom it serves.
"""
