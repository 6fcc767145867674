/* What is asked of a server, in its protocol, and what must come back: bytes without sockets. */
#ifndef PROTOCOL_H
#define PROTOCOL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum protocol { PACEMAKER, REDIS, MEMCACHED, ZOOKEEPER };

/* CREATE is ZooKeeper's alone, where a value has a node before it can be set. */
enum operation { SEND, GET, CHILDREN, CREATE };

/* Room for a key, and for all of a request but its value. */
#define KEY_ROOM 128
#define REQUEST_ROOM 512

struct workload {
    enum protocol protocol;
    enum operation operation;
    /* A connection has keys of its own, and uses them in turn. */
    uint32_t connections;
    uint32_t keys_per_connection;
    /* Keys before the first of this run: workers of another generation have other names. */
    uint32_t first_key;
    uint32_t workers_per_topology;
    /* A value has `value_bytes`, more or less by up to `jitter`. */
    uint32_t value_bytes;
    uint32_t jitter;
    /* Whether values that come back must be those that were sent. */
    bool verify;

    /* Filled by prepare_workload. */
    char *keys;
    uint8_t *key_lengths;
    char *value;
    uint32_t whole_topologies;
};

/* Makes the keys and the value. */
void prepare_workload(struct workload *work);
/* The longest request. */
size_t longest_request(const struct workload *work);
/* The name of a topology, as in the keys; returns its length. */
int topology_path(const struct workload *work, uint32_t topology, char *out);

/*
 * Writes the request of a number (the first of a connection is 0) to `out`, which has room for the
 * longest; returns its length.
 */
size_t build_request(struct workload *work, uint32_t connection, uint32_t number, char *out);

/*
 * Looks at the answer to the request of a number. Returns its length, or 0 if more bytes must come;
 * ends the program if it is not the answer that is due.
 */
size_t check_answer(const struct workload *work, uint32_t connection, uint32_t number,
                    const char *bytes, size_t length);

/* --- for the protocols' own files --------------------------------------------------------------- */

const char *key_of(const struct workload *work, uint32_t connection, uint32_t number, int *length);
/* Ends the program unless a value is the one that was sent for the key of a request. */
void check_value(const struct workload *work, uint32_t connection, uint32_t number,
                 const char *value, size_t length);
char *append(char *to, const void *bytes, size_t length);
char *append_u32(char *to, uint32_t number);
uint32_t read_u32(const char *bytes);

size_t zookeeper_request(struct workload *work, uint32_t connection, uint32_t number, char *out,
                         const char *value, uint32_t value_length);
size_t zookeeper_answer(const struct workload *work, uint32_t number, const char *bytes,
                        size_t length);
/* Sends the request for a session on a blocking socket; begin all, then end all. */
void zookeeper_session_begin(int descriptor);
void zookeeper_session_end(int descriptor);
/* Makes the nodes that the keys' nodes are to be below, on a blocking socket with a session. */
void zookeeper_make_parents(const struct workload *work, int descriptor);

#endif
