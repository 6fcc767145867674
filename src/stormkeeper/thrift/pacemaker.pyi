# The classes of pacemaker.thrift, with Storm's own field names.
# ruff: noqa: A002, N803, N815

from enum import IntEnum

from thriftpy2.thrift import TPayload

__all__ = [
    "Change",
    "Changes",
    "ChangesRequest",
    "HBMessage",
    "HBMessageData",
    "HBNodes",
    "HBPulse",
    "HBRecords",
    "HBServerMessageType",
    "ServerInfo",
]

class HBServerMessageType(IntEnum):
    CREATE_PATH = 0
    CREATE_PATH_RESPONSE = 1
    EXISTS = 2
    EXISTS_RESPONSE = 3
    SEND_PULSE = 4
    SEND_PULSE_RESPONSE = 5
    GET_ALL_PULSE_FOR_PATH = 6
    GET_ALL_PULSE_FOR_PATH_RESPONSE = 7
    GET_ALL_NODES_FOR_PATH = 8
    GET_ALL_NODES_FOR_PATH_RESPONSE = 9
    GET_PULSE = 10
    GET_PULSE_RESPONSE = 11
    DELETE_PATH = 12
    DELETE_PATH_RESPONSE = 13
    DELETE_PULSE_ID = 14
    DELETE_PULSE_ID_RESPONSE = 15
    CONTROL_MESSAGE = 16
    SASL_MESSAGE_TOKEN = 17
    NOT_AUTHORIZED = 18
    CHANGES = 100
    CHANGES_RESPONSE = 101
    HELD = 104
    HELD_RESPONSE = 105
    DELETED = 106
    DELETED_RESPONSE = 107

class HBPulse(TPayload):
    id: str
    details: bytes | None
    def __init__(self, id: str, details: bytes | None = None) -> None: ...

class HBRecords(TPayload):
    pulses: list[HBPulse] | None
    def __init__(self, pulses: list[HBPulse] | None = None) -> None: ...

class HBNodes(TPayload):
    pulseIds: list[str] | None
    def __init__(self, pulseIds: list[str] | None = None) -> None: ...

class ChangesRequest(TPayload):
    path: str
    after: int
    limit: int
    instance: str | None
    values: bool | None
    def __init__(
        self,
        path: str,
        after: int,
        limit: int,
        instance: str | None = None,
        values: bool | None = None,
    ) -> None: ...

class Change(TPayload):
    path: str
    details: bytes | None
    revision: int
    age_ms: int
    def __init__(self, path: str, details: bytes | None, revision: int, age_ms: int) -> None: ...

class Changes(TPayload):
    instance: str
    revision: int
    changes: list[Change]
    more: bool
    reset: bool
    next_after: int
    paths: str | None
    revisions: list[int] | None
    ages_ms: list[int] | None
    sizes: list[int] | None
    def __init__(
        self,
        instance: str,
        revision: int,
        changes: list[Change],
        more: bool,
        reset: bool,
        next_after: int,
        paths: str | None = None,
        revisions: list[int] | None = None,
        ages_ms: list[int] | None = None,
        sizes: list[int] | None = None,
    ) -> None: ...

class HBMessageData(TPayload):
    path: str | None
    pulse: HBPulse | None
    boolval: bool | None
    records: HBRecords | None
    nodes: HBNodes | None
    message_blob: bytes | None
    changes_request: ChangesRequest | None
    changes: Changes | None
    def __init__(
        self,
        path: str | None = None,
        pulse: HBPulse | None = None,
        boolval: bool | None = None,
        records: HBRecords | None = None,
        nodes: HBNodes | None = None,
        message_blob: bytes | None = None,
        changes_request: ChangesRequest | None = None,
        changes: Changes | None = None,
    ) -> None: ...

class HBMessage(TPayload):
    type: HBServerMessageType | None
    data: HBMessageData | None
    message_id: int | None
    def __init__(
        self,
        type: HBServerMessageType | None = None,
        data: HBMessageData | None = None,
        message_id: int | None = None,
    ) -> None: ...

class ServerInfo(TPayload):
    instance: str
    uptime_ms: int
    horizon_ms: int
    extensions: list[str]
    version: str
    revision: int
    keys: int
    pulses_received: int
    connections: int
    def __init__(
        self,
        instance: str,
        uptime_ms: int,
        horizon_ms: int,
        extensions: list[str],
        version: str,
        revision: int,
        keys: int,
        pulses_received: int,
        connections: int,
    ) -> None: ...
