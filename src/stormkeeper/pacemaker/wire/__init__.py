"""Pacemaker's wire protocol, without I/O: messages to bytes and back.

A frame is a big-endian i32 length and an ``HBMessage`` in Thrift's binary protocol: ``{1: i32 type,
2: HBMessageData data, 3: i32 message_id}``. ``HBMessageData`` is a union: ``{1: string path, 2:
HBPulse pulse, 3: bool boolval, 4: HBRecords records, 5: HBNodes nodes, 7: binary message_blob}`` as
in Storm's ``storm.thrift``, and Stormkeeper's ``{100: ChangesRequest, 101: Changes}``; 102 and 103
stay free.
"""
