"""Pacemaker's wire protocol, without I/O: messages to bytes and back.

A frame is a big-endian i32 length and an ``HBMessage`` in Thrift's binary protocol: ``{1: i32 type,
2: HBMessageData data, 3: i32 message_id}``. ``HBMessageData`` is a union: ``{1: string path, 2:
HBPulse pulse, 3: bool boolval, 4: HBRecords records, 5: HBNodes nodes, 7: binary message_blob}`` as
in Storm's ``storm.thrift``, and Stormkeeper's ``{100: ChangesRequest, 101: Changes}``; 102 and 103
stay free.
"""

from stormkeeper.pacemaker.wire.decoder import (
    MAX_REQUEST_VALUES,
    PacemakerFrameSplitter,
    decode,
    decode_request,
)
from stormkeeper.pacemaker.wire.encoder import (
    CHANGE_OVERHEAD,
    CHANGES_OVERHEAD,
    PULSE_OVERHEAD,
    RECORDS_OVERHEAD,
    SIZE_OVERHEAD,
    SIZES_OVERHEAD,
    encode,
)
from stormkeeper.pacemaker.wire.messages import (
    AUTHENTICATING,
    DEFAULT_MAX_SIZE,
    RESERVED_PATH,
    TOMBSTONE,
    VERBS,
    Changes,
    ChangesRequest,
    Columns,
    Message,
    MessageType,
    Pulse,
    check_request,
)

__all__ = [
    "AUTHENTICATING",
    "CHANGES_OVERHEAD",
    "CHANGE_OVERHEAD",
    "DEFAULT_MAX_SIZE",
    "MAX_REQUEST_VALUES",
    "PULSE_OVERHEAD",
    "RECORDS_OVERHEAD",
    "RESERVED_PATH",
    "SIZES_OVERHEAD",
    "SIZE_OVERHEAD",
    "TOMBSTONE",
    "VERBS",
    "Changes",
    "ChangesRequest",
    "Columns",
    "Message",
    "MessageType",
    "PacemakerFrameSplitter",
    "Pulse",
    "check_request",
    "decode",
    "decode_request",
    "encode",
]
