/*
 * The limit of what a Pacemaker can do: a server that reads frames and answers with frames of the
 * right form, and stores nothing. Of a request it looks at the length, the type, and what it must
 * copy into the answer.
 *
 *     echo PORT [--store]
 *
 * GET_PULSE is answered with as many zeros as the last SEND_PULSE brought. There is one thread.
 *
 * With --store values are kept and sent back, in the simplest way that there could be: each has the
 * place that a few bits of its key name, wherever another one may have it too. What that costs more
 * is what the memory costs, of any server that stores.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#define READ_BYTES (256 * 1024)
#define EVENTS_AT_ONCE 1024
#define BACKLOG 4096
#define MOST_CONNECTIONS 65536
/* Places for values, of a power of two; and what one may have. */
#define PLACES 4096
#define PLACE_BYTES (64 * 1024)

#define SEND_PULSE 4
#define GET_PULSE 10

/* Places in a request, from its start after the length. */
#define TYPE_AT 6
#define GET_KEY_AT 13
#define SEND_KEY_AT 16
/* What closes every message: its id, and the end of the struct. */
#define TAIL_LENGTH 8
/* All of an answer but the key and the value of a pulse. */
#define ANSWER_ROOM 64

struct connection {
    int descriptor;
    /* A request that is not whole. */
    char *in;
    size_t in_length;
    size_t in_room;
    /* Answers that the socket did not take. */
    char *out;
    size_t out_length;
    size_t out_sent;
    size_t out_room;
};

static struct connection *connections[MOST_CONNECTIONS];
static int poller;
static int listener;
static char reading[READ_BYTES];
/* The answers to what was read at once. */
static char *answers;
static size_t answers_room;
/* Where values are kept, if they are. */
static char **places;
/* Length of the last value that was sent. */
static uint32_t value_length = 3072;

static void fail(const char *what) {
    perror(what);
    exit(1);
}

static char *grow(char *block, size_t bytes) {
    block = realloc(block, bytes);
    if (block == NULL) {
        fail("no memory");
    }
    return block;
}

static uint32_t read_u32(const char *bytes) {
    uint32_t number;
    memcpy(&number, bytes, sizeof number);
    return __builtin_bswap32(number);
}

static char *append(char *to, const void *bytes, size_t length) {
    memcpy(to, bytes, length);
    return to + length;
}

static char *append_u32(char *to, uint32_t number) {
    number = __builtin_bswap32(number);
    return append(to, &number, sizeof number);
}

static void watch(struct connection *c, int operation, uint32_t events) {
    struct epoll_event event = {.events = events, .data.fd = c->descriptor};
    epoll_ctl(poller, operation, c->descriptor, &event);
}

static void accept_one(void) {
    int on = 1;
    int descriptor = accept4(listener, NULL, NULL, SOCK_NONBLOCK);
    if (descriptor < 0) {
        return;
    }
    if (descriptor >= MOST_CONNECTIONS) {
        close(descriptor);
        return;
    }
    setsockopt(descriptor, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    struct connection *c = calloc(1, sizeof *c);
    if (c == NULL) {
        fail("no memory");
    }
    c->descriptor = descriptor;
    connections[descriptor] = c;
    watch(c, EPOLL_CTL_ADD, EPOLLIN);
}

static void close_connection(struct connection *c) {
    connections[c->descriptor] = NULL;
    close(c->descriptor);
    free(c->in);
    free(c->out);
    free(c);
}

/* The place of a key, which begins with its length. */
static char *place_of(const char *key) {
    uint32_t length = read_u32(key);
    uint32_t bits = 0;
    for (uint32_t i = 0; i < length; i++) {
        bits = bits * 31 + (uint8_t)key[4 + i];
    }
    char **place = &places[bits % PLACES];
    if (*place == NULL) {
        *place = grow(NULL, PLACE_BYTES);
        memset(*place, 0, PLACE_BYTES);
    }
    return *place;
}

/* Writes the answer to a request; returns its length. */
static size_t answer(const char *request, uint32_t length, char *out) {
    char type = request[TYPE_AT];
    char *to = append(out + 4, "\x08\0\1\0\0\0", 6);
    *to++ = (char)(type + 1);
    if (type == SEND_PULSE) {
        uint32_t key_length = read_u32(request + SEND_KEY_AT);
        value_length = read_u32(request + SEND_KEY_AT + 4 + key_length + 3);
        if (places != NULL && value_length <= PLACE_BYTES) {
            memcpy(place_of(request + SEND_KEY_AT), request + SEND_KEY_AT + 4 + key_length + 7,
                   value_length);
        }
    } else if (type == GET_PULSE) {
        uint32_t key_length = read_u32(request + GET_KEY_AT);
        to = append(to, "\x0c\0\2\x0c\0\2\x0b\0\1", 9);
        to = append(to, request + GET_KEY_AT, 4 + key_length);
        to = append(to, "\x0b\0\2", 3);
        to = append_u32(to, value_length);
        if (places != NULL && value_length <= PLACE_BYTES) {
            memcpy(to, place_of(request + GET_KEY_AT), value_length);
        } else {
            memset(to, 0, value_length);
        }
        to = append(to + value_length, "\0\0", 2);
    }
    to = append(to, request + length - TAIL_LENGTH, TAIL_LENGTH);
    append_u32(out, (uint32_t)(to - out - 4));
    return (size_t)(to - out);
}

/* Answers the whole requests among the bytes; returns how many bytes these had. */
static size_t answer_all(const char *bytes, size_t length, size_t *answers_length) {
    size_t at = 0;
    while (length - at >= 4) {
        uint32_t frame = read_u32(bytes + at);
        if (length - at < 4 + (size_t)frame) {
            break;
        }
        size_t room = *answers_length + frame + value_length + ANSWER_ROOM;
        if (answers_room < room) {
            answers_room = 2 * room;
            answers = grow(answers, answers_room);
        }
        *answers_length += answer(bytes + at + 4, frame, answers + *answers_length);
        at += 4 + frame;
    }
    return at;
}

/* Sends what was left; returns whether all of it went, or -1 if the connection broke. */
static int send_rest(struct connection *c) {
    ssize_t sent = send(c->descriptor, c->out + c->out_sent, c->out_length - c->out_sent,
                        MSG_NOSIGNAL);
    if (sent < 0) {
        return errno == EAGAIN ? 0 : -1;
    }
    c->out_sent += (size_t)sent;
    if (c->out_sent < c->out_length) {
        return 0;
    }
    c->out_length = 0;
    watch(c, EPOLL_CTL_MOD, EPOLLIN);
    return 1;
}

/* Sends answers; what the socket does not take waits, and nothing is read meanwhile. */
static int send_answers(struct connection *c, size_t length) {
    ssize_t sent = send(c->descriptor, answers, length, MSG_NOSIGNAL);
    if (sent < 0 && errno != EAGAIN) {
        return -1;
    }
    size_t rest = length - (sent > 0 ? (size_t)sent : 0);
    if (rest > 0) {
        if (c->out_room < rest) {
            c->out = grow(c->out, rest);
            c->out_room = rest;
        }
        memcpy(c->out, answers + length - rest, rest);
        c->out_length = rest;
        c->out_sent = 0;
        watch(c, EPOLL_CTL_MOD, EPOLLOUT);
    }
    return 0;
}

static void keep_rest(struct connection *c, char *bytes, size_t used, size_t length) {
    size_t rest = length - used;
    if (bytes == c->in) {
        memmove(c->in, c->in + used, rest);
    } else if (rest > 0) {
        if (c->in_room < rest) {
            c->in_room = rest + READ_BYTES;
            c->in = grow(c->in, c->in_room);
        }
        memcpy(c->in, bytes + used, rest);
    }
    c->in_length = rest;
}

/* Serves a connection once; returns whether it lives on. */
static int serve(struct connection *c) {
    if (c->out_length > 0) {
        int all_went = send_rest(c);
        if (all_went <= 0) {
            return all_went == 0;
        }
    }
    char *bytes = reading;
    if (c->in_length > 0) {
        if (c->in_room < c->in_length + READ_BYTES) {
            c->in_room = c->in_length + READ_BYTES;
            c->in = grow(c->in, c->in_room);
        }
        bytes = c->in;
    }
    ssize_t received = recv(c->descriptor, bytes + c->in_length, READ_BYTES, 0);
    if (received <= 0) {
        return received < 0 && errno == EAGAIN;
    }
    size_t answers_length = 0;
    size_t length = c->in_length + (size_t)received;
    size_t used = answer_all(bytes, length, &answers_length);
    keep_rest(c, bytes, used, length);
    return answers_length == 0 || send_answers(c, answers_length) == 0;
}

static void listen_on(int port) {
    int on = 1;
    struct sockaddr_in address = {
        .sin_family = AF_INET,
        .sin_port = htons((uint16_t)port),
        .sin_addr.s_addr = htonl(INADDR_LOOPBACK),
    };
    listener = socket(AF_INET, SOCK_STREAM, 0);
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (bind(listener, (struct sockaddr *)&address, sizeof address) != 0 ||
        listen(listener, BACKLOG) != 0) {
        fail("cannot listen");
    }
    struct epoll_event event = {.events = EPOLLIN, .data.fd = listener};
    epoll_ctl(poller, EPOLL_CTL_ADD, listener, &event);
}

static void raise_file_limit(void) {
    struct rlimit limit;
    getrlimit(RLIMIT_NOFILE, &limit);
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit);
}

int main(int count, char **arguments) {
    static struct epoll_event events[EVENTS_AT_ONCE];
    if (count < 2 || count > 3 || (count == 3 && strcmp(arguments[2], "--store") != 0)) {
        fputs("usage: echo PORT [--store]\n", stderr);
        return 1;
    }
    if (count == 3) {
        places = calloc(PLACES, sizeof *places);
        if (places == NULL) {
            fail("no memory");
        }
    }
    raise_file_limit();
    poller = epoll_create1(0);
    listen_on(atoi(arguments[1]));
    for (;;) {
        int ready = epoll_wait(poller, events, EVENTS_AT_ONCE, -1);
        for (int i = 0; i < ready; i++) {
            int descriptor = events[i].data.fd;
            if (descriptor == listener) {
                accept_one();
            } else if (!serve(connections[descriptor])) {
                close_connection(connections[descriptor]);
            }
        }
    }
}
