#include "protocol.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "measure.h"

/* Bytes at either end of a value that are compared; the first eight say whose value it is. */
#define COMPARED 64
#define LONGEST_FRAME (64u << 20)

/* Storm's message types (storm.thrift, HBServerMessageType); an answer's is one higher. */
#define SEND_PULSE 4
#define GET_ALL_NODES_FOR_PATH 8
#define GET_PULSE 10
#define NOT_AUTHORIZED 18

/* Thrift's binary protocol, up to the number or the text that follows: HBMessage {1: i32 type, */
#define MESSAGE_TYPE "\x08\0\1"
/* 2: HBMessageData {1: string path, */
#define DATA_PATH "\x0c\0\2\x0b\0\1"
/* 2: HBMessageData {2: HBPulse {1: string id, */
#define DATA_PULSE_ID "\x0c\0\2\x0c\0\2\x0b\0\1"
/* 2: HBMessageData {5: HBNodes {1: list<string> */
#define DATA_NODES "\x0c\0\2\x0c\0\5\x0f\0\1\x0b"
/* 2: binary details, */
#define PULSE_DETAILS "\x0b\0\2"
/* the ends of the pulse or nodes, and of the data, */
#define END_END "\0\0"
/* 3: i32 message_id, and the end. */
#define MESSAGE_ID "\x08\0\3"
#define TAIL_LENGTH 8

/* A literal without its final zero, and its length. */
#define LITERAL(text) (text), (sizeof(text) - 1)

char *append(char *to, const void *bytes, size_t length) {
    memcpy(to, bytes, length);
    return to + length;
}

char *append_u32(char *to, uint32_t number) {
    number = __builtin_bswap32(number);
    return append(to, &number, sizeof number);
}

uint32_t read_u32(const char *bytes) {
    uint32_t number;
    memcpy(&number, bytes, sizeof number);
    return __builtin_bswap32(number);
}

static uint32_t random_u32(void) {
    static uint32_t state = 12345;
    state ^= state << 13;
    state ^= state >> 17;
    state ^= state << 5;
    return state;
}

/* --- keys and values --------------------------------------------------------------------------- */

int topology_path(const struct workload *work, uint32_t topology, char *out) {
    const char *root = work->protocol == ZOOKEEPER ? "/storm" : "";
    return snprintf(out, KEY_ROOM, "%s/workerbeats/wc-%u-1434561979", root, topology);
}

/* As a worker's: <topology>/<node>-<port>. */
static int make_key(const struct workload *work, uint32_t worker, char *out) {
    int length = topology_path(work, worker / work->workers_per_topology, out);
    return length + snprintf(out + length, (size_t)(KEY_ROOM - length),
                             "/%08x-2f94-4b21-b04b-a70ab359074a-%u", worker * 2654435761u,
                             6700 + worker % 24);
}

void prepare_workload(struct workload *work) {
    size_t count = (size_t)work->connections * work->keys_per_connection;
    work->keys = allocate(count * KEY_ROOM);
    work->key_lengths = allocate(count);
    for (size_t i = 0; i < count; i++) {
        uint32_t worker = work->first_key + (uint32_t)i;
        work->key_lengths[i] = (uint8_t)make_key(work, worker, work->keys + i * KEY_ROOM);
    }
    work->whole_topologies = (uint32_t)(count / work->workers_per_topology);
    if (work->whole_topologies == 0) {
        work->whole_topologies = 1;
    }
    size_t longest = work->value_bytes + work->jitter;
    work->value = allocate(longest + COMPARED);
    for (size_t i = 0; i < longest; i++) {
        work->value[i] = (char)(random_u32() >> 9);
    }
}

size_t longest_request(const struct workload *work) {
    return REQUEST_ROOM + work->value_bytes + work->jitter;
}

const char *key_of(const struct workload *work, uint32_t connection, uint32_t number, int *length) {
    size_t key = (size_t)connection * work->keys_per_connection + number % work->keys_per_connection;
    *length = work->key_lengths[key];
    return work->keys + key * KEY_ROOM;
}

static uint32_t value_length(const struct workload *work) {
    if (work->jitter == 0) {
        return work->value_bytes;
    }
    return work->value_bytes - work->jitter + random_u32() % (2 * work->jitter + 1);
}

static void stamp_value(struct workload *work, uint32_t connection, uint32_t number) {
    uint32_t key = number % work->keys_per_connection;
    memcpy(work->value, &connection, sizeof connection);
    memcpy(work->value + sizeof connection, &key, sizeof key);
}

void check_value(const struct workload *work, uint32_t connection, uint32_t number,
                 const char *value, size_t length) {
    uint32_t key = number % work->keys_per_connection;
    errno = 0;
    if (work->jitter == 0 && length != work->value_bytes) {
        fail("a value of %zu bytes came back for one of %u", length, work->value_bytes);
    }
    if (!work->verify || length < 2 * COMPARED) {
        return;
    }
    size_t ending = length - COMPARED;
    if (memcmp(value, &connection, 4) != 0 || memcmp(value + 4, &key, 4) != 0 ||
        memcmp(value + 8, work->value + 8, COMPARED - 8) != 0 ||
        memcmp(value + ending, work->value + ending, COMPARED) != 0) {
        fail("another value came back than was sent");
    }
}

/* --- Pacemaker --------------------------------------------------------------------------------- */

static char pacemaker_type(enum operation operation) {
    switch (operation) {
    case SEND:
        return SEND_PULSE;
    case GET:
        return GET_PULSE;
    default:
        return GET_ALL_NODES_FOR_PATH;
    }
}

static size_t pacemaker_request(struct workload *work, uint32_t connection, uint32_t number,
                                char *out, const char *value, uint32_t value_length) {
    int key_length;
    const char *key = key_of(work, connection, number, &key_length);
    char *to = out + 4;
    to = append(to, LITERAL(MESSAGE_TYPE "\0\0\0"));
    *to++ = pacemaker_type(work->operation);
    if (work->operation == SEND) {
        to = append(to, LITERAL(DATA_PULSE_ID));
        to = append_u32(to, (uint32_t)key_length);
        to = append(to, key, (size_t)key_length);
        to = append(to, LITERAL(PULSE_DETAILS));
        to = append_u32(to, value_length);
        to = append(to, value, value_length);
        to = append(to, LITERAL(END_END));
    } else {
        char topology[KEY_ROOM];
        if (work->operation == CHILDREN) {
            key_length = topology_path(work, number % work->whole_topologies, topology);
            key = topology;
        }
        to = append(to, LITERAL(DATA_PATH));
        to = append_u32(to, (uint32_t)key_length);
        to = append(to, key, (size_t)key_length);
        *to++ = 0;
    }
    to = append(to, LITERAL(MESSAGE_ID));
    to = append_u32(to, number & 0x7fffffff);
    *to++ = 0;
    append_u32(out, (uint32_t)(to - out - 4));
    return (size_t)(to - out);
}

/* Checks a pulse that was asked for; returns where it ends. */
static const char *pacemaker_pulse(const struct workload *work, uint32_t connection,
                                   uint32_t number, const char *at, const char *end) {
    int key_length;
    const char *key = key_of(work, connection, number, &key_length);
    size_t head = sizeof(DATA_PULSE_ID) - 1;
    size_t least = head + 4 + (size_t)key_length + 3 + 4 + 2;
    if ((size_t)(end - at) < least || memcmp(at, DATA_PULSE_ID, head) != 0 ||
        read_u32(at + head) != (uint32_t)key_length ||
        memcmp(at + head + 4, key, (size_t)key_length) != 0) {
        fail("an answer that is not the pulse asked for");
    }
    at += head + 4 + key_length;
    if (memcmp(at, PULSE_DETAILS, 3) != 0) {
        fail("nothing is stored at %.*s", key_length, key);
    }
    uint32_t length = read_u32(at + 3);
    if ((size_t)(end - at) < 3 + 4 + (size_t)length + 2) {
        fail("a pulse that is longer than its frame");
    }
    check_value(work, connection, number, at + 7, length);
    return at + 7 + length + 2;
}

/* Checks the number of children; returns where they end. */
static const char *pacemaker_nodes(const struct workload *work, const char *at, const char *end) {
    size_t head = sizeof(DATA_NODES) - 1;
    if ((size_t)(end - at) < head + 4 || memcmp(at, DATA_NODES, head) != 0) {
        fail("an answer without children");
    }
    uint32_t count = read_u32(at + head);
    if (work->verify && count != work->workers_per_topology) {
        fail("%u children where %u are stored", count, work->workers_per_topology);
    }
    return end - TAIL_LENGTH;
}

static size_t pacemaker_answer(const struct workload *work, uint32_t connection, uint32_t number,
                               const char *bytes, size_t length) {
    if (length < 4) {
        return 0;
    }
    uint32_t frame = read_u32(bytes);
    errno = 0;
    if (frame > LONGEST_FRAME) {
        fail("a frame of %u bytes", frame);
    }
    if (length < 4 + (size_t)frame) {
        return 0;
    }
    const char *at = bytes + 4;
    const char *end = at + frame;
    if (frame < 7 + TAIL_LENGTH || memcmp(at, MESSAGE_TYPE, 3) != 0) {
        fail("an answer that begins with no type");
    }
    uint32_t type = read_u32(at + 3);
    uint32_t due = (uint32_t)pacemaker_type(work->operation) + 1;
    if (type == NOT_AUTHORIZED) {
        fail("the server refuses (NOT_AUTHORIZED): its log or its metrics say why");
    }
    if (type != due) {
        fail("an answer of type %u where %u is due", type, due);
    }
    at += 7;
    if (work->operation == GET) {
        at = pacemaker_pulse(work, connection, number, at, end);
    } else if (work->operation == CHILDREN) {
        at = pacemaker_nodes(work, at, end);
    }
    if (end - at != TAIL_LENGTH || memcmp(at, MESSAGE_ID, 3) != 0 || at[7] != 0) {
        fail("an answer that ends otherwise than with its message id");
    }
    if (read_u32(at + 3) != (number & 0x7fffffff)) {
        fail("the answer to request %u where %u's is due", read_u32(at + 3), number & 0x7fffffff);
    }
    return 4 + (size_t)frame;
}

/* --- Redis (RESP 2) ---------------------------------------------------------------------------- */

static size_t redis_request(struct workload *work, uint32_t connection, uint32_t number, char *out,
                            const char *value, uint32_t value_length) {
    int key_length;
    const char *key = key_of(work, connection, number, &key_length);
    char *to = out;
    if (work->operation == SEND) {
        to += sprintf(to, "*3\r\n$3\r\nSET\r\n$%d\r\n", key_length);
        to = append(to, key, (size_t)key_length);
        to += sprintf(to, "\r\n$%u\r\n", value_length);
        to = append(to, value, value_length);
    } else {
        to += sprintf(to, "*2\r\n$3\r\nGET\r\n$%d\r\n", key_length);
        to = append(to, key, (size_t)key_length);
    }
    to = append(to, "\r\n", 2);
    return (size_t)(to - out);
}

static size_t redis_answer(const struct workload *work, uint32_t connection, uint32_t number,
                           const char *bytes, size_t length) {
    errno = 0;
    if (work->operation == SEND) {
        if (length < 5) {
            return 0;
        }
        if (memcmp(bytes, "+OK\r\n", 5) != 0) {
            fail("Redis answers %.40s", bytes);
        }
        return 5;
    }
    const char *line_end = memchr(bytes, '\n', length < 32 ? length : 32);
    if (line_end == NULL) {
        return 0;
    }
    long value_length = *bytes == '$' ? atol(bytes + 1) : -1;
    if (value_length < 0) {
        fail("Redis has no value for a key that was set");
    }
    size_t whole = (size_t)(line_end + 1 - bytes) + (size_t)value_length + 2;
    if (length < whole) {
        return 0;
    }
    check_value(work, connection, number, line_end + 1, (size_t)value_length);
    return whole;
}

/* --- memcached (text) -------------------------------------------------------------------------- */

static size_t memcached_request(struct workload *work, uint32_t connection, uint32_t number,
                                char *out, const char *value, uint32_t value_length) {
    int key_length;
    const char *key = key_of(work, connection, number, &key_length);
    char *to = append(out, work->operation == SEND ? "set " : "get ", 4);
    to = append(to, key, (size_t)key_length);
    if (work->operation == SEND) {
        to += sprintf(to, " 0 0 %u\r\n", value_length);
        to = append(to, value, value_length);
    }
    to = append(to, "\r\n", 2);
    return (size_t)(to - out);
}

static size_t memcached_answer(const struct workload *work, uint32_t connection, uint32_t number,
                               const char *bytes, size_t length) {
    errno = 0;
    if (work->operation == SEND) {
        if (length < 8) {
            return 0;
        }
        if (memcmp(bytes, "STORED\r\n", 8) != 0) {
            fail("memcached answers %.40s", bytes);
        }
        return 8;
    }
    const char *line_end = memchr(bytes, '\n', length < 256 ? length : 256);
    if (line_end == NULL) {
        return 0;
    }
    if (memcmp(bytes, "VALUE ", 6) != 0) {
        fail("memcached has no value for a key that was set");
    }
    const char *digits = line_end;
    while (digits[-1] != ' ') {
        digits--;
    }
    long value_length = atol(digits);
    size_t whole = (size_t)(line_end + 1 - bytes) + (size_t)value_length + sizeof("\r\nEND\r\n") - 1;
    if (length < whole) {
        return 0;
    }
    check_value(work, connection, number, line_end + 1, (size_t)value_length);
    return whole;
}

/* --- all of them -------------------------------------------------------------------------------- */

size_t build_request(struct workload *work, uint32_t connection, uint32_t number, char *out) {
    uint32_t length = value_length(work);
    if (work->operation == SEND || work->operation == CREATE) {
        stamp_value(work, connection, number);
    }
    switch (work->protocol) {
    case PACEMAKER:
        return pacemaker_request(work, connection, number, out, work->value, length);
    case REDIS:
        return redis_request(work, connection, number, out, work->value, length);
    case MEMCACHED:
        return memcached_request(work, connection, number, out, work->value, length);
    default:
        return zookeeper_request(work, connection, number, out, work->value, length);
    }
}

size_t check_answer(const struct workload *work, uint32_t connection, uint32_t number,
                    const char *bytes, size_t length) {
    switch (work->protocol) {
    case PACEMAKER:
        return pacemaker_answer(work, connection, number, bytes, length);
    case REDIS:
        return redis_answer(work, connection, number, bytes, length);
    case MEMCACHED:
        return memcached_answer(work, connection, number, bytes, length);
    default:
        return zookeeper_answer(work, number, bytes, length);
    }
}
