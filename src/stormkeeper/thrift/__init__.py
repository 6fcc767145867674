"""Storm's records: the IDL, the codec, compression, and their text for people.

=================  ===============================================================================
``records``        the classes of ``storm.thrift``: heartbeats, assignments, summaries, …
``pacemaker``      the classes of ``pacemaker.thrift``: Pacemaker's messages and our extensions
``nimbus``         the classes of ``nimbus.thrift``: Nimbus's service, and the records of its calls
``serialization``  a record to and from the bytes of a znode or a pulse
``readable``       a record as JSON values and as text
=================  ===============================================================================

``idl``, ``reader``, ``scalars``, ``writer``, ``compression`` and ``framing`` (a stream of bytes cut
into its frames) serve these five. Nothing is imported here: each costs only whom it serves.
"""
