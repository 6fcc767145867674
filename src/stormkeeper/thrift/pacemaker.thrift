// What Pacemaker and its clients say to each other: Storm's names, field ids and types, and our
// extensions, which use message types and union ids from 100 up. A frame's length
// and the order of a conversation are not Thrift's business; see stormkeeper.pacemaker.wire.

enum HBServerMessageType {
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
  // 102 and 103 were used once, and stay free.
  // What is held for exactly a path: Changes with its pulse, or its tombstone, or nothing.
  HELD = 104
  HELD_RESPONSE = 105
  // HBNodes: the names directly below a path at or below which pulses were deleted lately.
  DELETED = 106
  DELETED_RESPONSE = 107
}

struct HBPulse {
  1: required string id
  2: binary details
}

struct HBRecords {
  1: list<HBPulse> pulses
}

struct HBNodes {
  1: list<string> pulseIds
}

// Asks for the newest pulse of every path at or below `path` whose revision is above `after`, at
// most `limit` of them (0 or less: as many as the server allows). `instance` is the server instance
// that gave `after`.
struct ChangesRequest {
  1: required string path
  2: required i64 after
  3: required i32 limit
  4: optional string instance
  5: optional bool values
}

// A pulse, or without details the tombstone of one. age_ms is the time since the server received
// it, on the server's monotonic clock.
struct Change {
  1: required string path
  2: optional binary details
  3: required i64 revision
  4: required i64 age_ms
}

// The answer, in revision order. Where `values` is false, `changes` is empty and the fields from 7
// say the same without the values: the paths with a NUL between two, and a list of each number. What
// is read by the ten thousand is read at once. A size of -1 is a tombstone's. `revision` is the server's newest; `more`: it was cut, and goes
// on after `next_after`; `reset`: `after` meant nothing to this server, it answered from the beginning.
struct Changes {
  1: required string instance
  2: required i64 revision
  3: required list<Change> changes
  4: required bool more
  5: required bool reset
  6: required i64 next_after
  7: optional string paths
  8: optional list<i64> revisions
  9: optional list<i64> ages_ms
  10: optional list<i32> sizes
}

// There is no member 6. A message_blob carries the tokens of authentications: its value is in no repr.
union HBMessageData {
  1: string path
  2: HBPulse pulse
  3: bool boolval
  4: HBRecords records
  5: HBNodes nodes
  7: binary message_blob (secret = "true")
  100: ChangesRequest changes_request
  101: Changes changes
}

// An answer to a message without message_id says -1; a request that has none leaves it out.
struct HBMessage {
  1: HBServerMessageType type
  2: HBMessageData data
  3: optional i32 message_id
}

// The details of the pulse at /.stormkeeper: what this server is and can do. A path without a pulse
// has been silent for at least horizon_ms, or never beat.
struct ServerInfo {
  1: required string instance
  2: required i64 uptime_ms
  3: required i64 horizon_ms
  4: required list<string> extensions
  5: required string version
  6: required i64 revision
  7: required i64 keys
  8: required i64 pulses_received
  9: required i64 connections
}
