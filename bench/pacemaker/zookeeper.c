/* ZooKeeper's client protocol (zookeeper.jute), as far as writing heartbeats needs it. */
#include <errno.h>
#include <string.h>
#include <sys/socket.h>

#include "measure.h"
#include "protocol.h"

/* ZooDefs.OpCode */
#define CREATE_NODE 1
#define SET_DATA 5
/* KeeperException.Code */
#define NODE_EXISTS (-110)
/* Any version of a node is overwritten. */
#define ANY_VERSION 0xffffffffu
#define ALL_PERMISSIONS 31
#define SESSION_TIMEOUT_MS 60000
#define PASSWORD_LENGTH 16
#define LONGEST_ANSWER 4096
#define ANSWER_HEADER 16

static char *append_text(char *to, const char *text, size_t length) {
    to = append_u32(to, (uint32_t)length);
    return append(to, text, length);
}

/* CreateRequest {path, data, list<ACL {perms, Id {scheme, id}}>, flags} with its RequestHeader. */
static size_t create_request(uint32_t xid, const char *path, size_t path_length, const char *value,
                             size_t value_length, char *out) {
    char *to = append_u32(out + 4, xid);
    to = append_u32(to, CREATE_NODE);
    to = append_text(to, path, path_length);
    to = append_text(to, value, value_length);
    to = append_u32(to, 1);
    to = append_u32(to, ALL_PERMISSIONS);
    to = append_text(to, "world", 5);
    to = append_text(to, "anyone", 6);
    to = append_u32(to, 0);
    append_u32(out, (uint32_t)(to - out - 4));
    return (size_t)(to - out);
}

/* SetDataRequest {path, data, version} with its RequestHeader {xid, type}. */
size_t zookeeper_request(struct workload *work, uint32_t connection, uint32_t number, char *out,
                         const char *value, uint32_t value_length) {
    int key_length;
    const char *key = key_of(work, connection, number, &key_length);
    uint32_t xid = number & 0x7fffffff;
    errno = 0;
    if (work->operation == CREATE) {
        return create_request(xid, key, (size_t)key_length, value, value_length, out);
    }
    if (work->operation != SEND) {
        fail("of ZooKeeper only writes are measured");
    }
    char *to = append_u32(out + 4, xid);
    to = append_u32(to, SET_DATA);
    to = append_text(to, key, (size_t)key_length);
    to = append_text(to, value, value_length);
    to = append_u32(to, ANY_VERSION);
    append_u32(out, (uint32_t)(to - out - 4));
    return (size_t)(to - out);
}

/* ReplyHeader {int xid, long zxid, int err} and what follows it. */
size_t zookeeper_answer(const struct workload *work, uint32_t number, const char *bytes,
                        size_t length) {
    if (length < 4) {
        return 0;
    }
    uint32_t frame = read_u32(bytes);
    errno = 0;
    if (frame < ANSWER_HEADER || frame > LONGEST_ANSWER) {
        fail("ZooKeeper answers with a frame of %u bytes", frame);
    }
    if (length < 4 + (size_t)frame) {
        return 0;
    }
    if (read_u32(bytes + 4) != (number & 0x7fffffff)) {
        fail("ZooKeeper answers request %u where %u's turn is", read_u32(bytes + 4), number);
    }
    int32_t error = (int32_t)read_u32(bytes + 16);
    if (error != 0 && !(work->operation == CREATE && error == NODE_EXISTS)) {
        fail("ZooKeeper refuses with code %d", error);
    }
    return 4 + (size_t)frame;
}

/* --- on blocking sockets, before the measurement ------------------------------------------------ */

static void send_all(int descriptor, const char *bytes, size_t length) {
    while (length > 0) {
        ssize_t sent = send(descriptor, bytes, length, MSG_NOSIGNAL);
        if (sent <= 0) {
            fail("ZooKeeper takes no request");
        }
        bytes += sent;
        length -= (size_t)sent;
    }
}

/* Reads one frame without its length into `out`; returns how long it is. */
static size_t receive_frame(int descriptor, char *out) {
    char head[4];
    if (recv(descriptor, head, 4, MSG_WAITALL) != 4) {
        fail("ZooKeeper closed a connection: does it take this many?");
    }
    size_t length = read_u32(head);
    if (length > LONGEST_ANSWER || recv(descriptor, out, length, MSG_WAITALL) != (ssize_t)length) {
        fail("ZooKeeper answers with a frame of %zu bytes", length);
    }
    return length;
}

/* ConnectRequest {int protocolVersion, long lastZxidSeen, int timeOut, long sessionId, passwd}. */
void zookeeper_session_begin(int descriptor) {
    char request[64];
    char password[PASSWORD_LENGTH] = {0};
    char *to = append_u32(request + 4, 0);
    to = append_u32(to, 0);
    to = append_u32(to, 0);
    to = append_u32(to, SESSION_TIMEOUT_MS);
    to = append_u32(to, 0);
    to = append_u32(to, 0);
    to = append_text(to, password, sizeof password);
    *to++ = 0; /* not for reading only */
    append_u32(request, (uint32_t)(to - request - 4));
    send_all(descriptor, request, (size_t)(to - request));
}

/* ConnectResponse {int protocolVersion, int timeOut, long sessionId, buffer passwd}. */
void zookeeper_session_end(int descriptor) {
    char answer[LONGEST_ANSWER];
    size_t length = receive_frame(descriptor, answer);
    errno = 0;
    if (length < 8 || read_u32(answer + 4) == 0) {
        fail("ZooKeeper grants no session");
    }
}

static void make_node(int descriptor, const char *path, size_t length) {
    char request[REQUEST_ROOM];
    char answer[LONGEST_ANSWER];
    send_all(descriptor, request, create_request(0, path, length, "\7", 1, request));
    receive_frame(descriptor, answer);
    int32_t error = (int32_t)read_u32(answer + 12);
    errno = 0;
    if (error != 0 && error != NODE_EXISTS) {
        fail("ZooKeeper refuses to make %.*s: code %d", (int)length, path, error);
    }
}

void zookeeper_make_parents(const struct workload *work, int descriptor) {
    size_t keys = (size_t)work->connections * work->keys_per_connection;
    uint32_t first = work->first_key / work->workers_per_topology;
    uint32_t last = (uint32_t)((work->first_key + keys - 1) / work->workers_per_topology);
    make_node(descriptor, "/storm", strlen("/storm"));
    make_node(descriptor, "/storm/workerbeats", strlen("/storm/workerbeats"));
    for (uint32_t topology = first; topology <= last; topology++) {
        char path[KEY_ROOM];
        int length = topology_path(work, topology, path);
        make_node(descriptor, path, (size_t)length);
    }
}
