#define _GNU_SOURCE
#include "connections.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "measure.h"

/* Bytes read at a time, and requests written at a time. */
#define READ_BYTES (256 * 1024)
#define BATCH_BYTES (128 * 1024)
#define EVENTS_AT_ONCE 1024
/* ZooKeeper's backlog of connections is 50. */
#define SESSIONS_AT_ONCE 32
/* Requests of a rate that are sent before answers are read again. */
#define DUE_AT_ONCE 32
/* A closed loop looks at the clock at least this often (nanoseconds). */
#define LONGEST_WAIT 50000000
/* Requests of one connection that may be due and unanswered, before the server counts as lost. */
#define MOST_DUE (1u << 20)

struct connection {
    int descriptor;
    uint32_t index;
    bool waits_to_write;
    /* Numbers of the next request to be sent, and to be answered. */
    uint32_t next_sent;
    uint32_t next_answered;
    /* Requests that are due: not sent yet, and not answered yet. */
    uint32_t unsent;
    uint32_t unanswered;
    /* Requests that may still become due. */
    uint32_t left;
    /* When the unanswered became due: a ring. */
    uint64_t *due;
    uint32_t due_room;
    uint32_t due_first;
    /* What the socket did not take. */
    char *out;
    size_t out_length;
    size_t out_sent;
    size_t out_room;
    /* An answer that is not whole. */
    char *in;
    size_t in_length;
    size_t in_room;
};

static struct workload *work;
static struct connection *connections;
static struct pace pace;
static int poller;
static char *batch;
static uint32_t batch_requests;
static char *reading;
static bool is_measuring;
static bool is_stopping;
static uint64_t answered;
static uint64_t connections_done;

static void set_option(int descriptor, int level, int option) {
    int on = 1;
    setsockopt(descriptor, level, option, &on, sizeof on);
}

static int connect_to(const char *host, int port) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    if (inet_pton(AF_INET, host, &address.sin_addr) != 1) {
        fail("%s is not an IPv4 address", host);
    }
    int descriptor = socket(AF_INET, SOCK_STREAM, 0);
    if (descriptor < 0) {
        fail("no more sockets: raise the limit on open files (ulimit -n)");
    }
    if (connect(descriptor, (struct sockaddr *)&address, sizeof address) != 0) {
        fail("no connection to %s:%d", host, port);
    }
    set_option(descriptor, IPPROTO_TCP, TCP_NODELAY);
    return descriptor;
}

static void watch(struct connection *c, int operation) {
    struct epoll_event event = {.events = EPOLLIN, .data.u32 = c->index};
    if (c->waits_to_write) {
        event.events |= EPOLLOUT;
    }
    epoll_ctl(poller, operation, c->descriptor, &event);
}

static void end_sessions(struct connection *first, uint32_t count) {
    for (uint32_t i = 0; i < count; i++) {
        zookeeper_session_end(first[i].descriptor);
    }
}

void connect_all(struct workload *shared_work, const char *host, const int *ports, int port_count) {
    work = shared_work;
    batch_requests = (uint32_t)(BATCH_BYTES / longest_request(work));
    if (batch_requests == 0) {
        batch_requests = 1;
    }
    batch = allocate(batch_requests * longest_request(work));
    reading = allocate(READ_BYTES);
    connections = allocate(work->connections * sizeof *connections);
    poller = epoll_create1(EPOLL_CLOEXEC);
    uint32_t sessions_asked = 0;
    for (uint32_t i = 0; i < work->connections; i++) {
        struct connection *c = connections + i;
        c->index = i;
        c->due_room = 16;
        c->due = allocate(c->due_room * sizeof *c->due);
        c->descriptor = connect_to(host, ports[i % (uint32_t)port_count]);
        if (work->protocol == ZOOKEEPER) {
            zookeeper_session_begin(c->descriptor);
            sessions_asked++;
            if (sessions_asked == SESSIONS_AT_ONCE || i + 1 == work->connections) {
                end_sessions(c + 1 - sessions_asked, sessions_asked);
                sessions_asked = 0;
            }
        }
    }
    if (work->protocol == ZOOKEEPER) {
        zookeeper_make_parents(work, connections[0].descriptor);
    }
    for (uint32_t i = 0; i < work->connections; i++) {
        struct connection *c = connections + i;
        fcntl(c->descriptor, F_SETFL, O_NONBLOCK);
        watch(c, EPOLL_CTL_ADD);
    }
}

/* --- sending ------------------------------------------------------------------------------------ */

static void grow_due(struct connection *c) {
    if (c->due_room >= MOST_DUE) {
        errno = 0;
        fail("%u requests of one connection are unanswered: the server does not keep up",
             c->unanswered);
    }
    uint64_t *larger = allocate(2 * c->due_room * sizeof *larger);
    for (uint32_t i = 0; i < c->unanswered; i++) {
        larger[i] = c->due[(c->due_first + i) % c->due_room];
    }
    free(c->due);
    c->due = larger;
    c->due_first = 0;
    c->due_room *= 2;
}

static void make_due(struct connection *c, uint64_t when) {
    if (c->left == 0) {
        return;
    }
    if (c->left != UNLIMITED) {
        c->left--;
    }
    if (c->unanswered == c->due_room) {
        grow_due(c);
    }
    c->due[(c->due_first + c->unanswered) % c->due_room] = when;
    c->unanswered++;
    c->unsent++;
}

static void wait_to_write(struct connection *c, bool waits) {
    if (c->waits_to_write != waits) {
        c->waits_to_write = waits;
        watch(c, EPOLL_CTL_MOD);
    }
}

/* Bytes that the socket takes now. */
static size_t send_some(struct connection *c, const char *bytes, size_t length) {
    ssize_t sent = send(c->descriptor, bytes, length, MSG_NOSIGNAL);
    if (sent >= 0) {
        return (size_t)sent;
    }
    if (errno != EAGAIN) {
        fail("a connection broke while sending");
    }
    return 0;
}

static void keep_unsent(struct connection *c, const char *bytes, size_t length) {
    if (c->out_room < length) {
        c->out = grow(c->out, length);
        c->out_room = length;
    }
    memcpy(c->out, bytes, length);
    c->out_length = length;
    c->out_sent = 0;
}

/* Sends what is due, until all is sent or the socket takes no more. */
static void flush(struct connection *c) {
    if (c->out_sent < c->out_length) {
        c->out_sent += send_some(c, c->out + c->out_sent, c->out_length - c->out_sent);
        if (c->out_sent < c->out_length) {
            wait_to_write(c, true);
            return;
        }
    }
    c->out_length = 0;
    c->out_sent = 0;
    while (c->unsent > 0) {
        size_t length = 0;
        for (uint32_t i = 0; i < batch_requests && c->unsent > 0; i++) {
            length += build_request(work, c->index, c->next_sent, batch + length);
            c->next_sent++;
            c->unsent--;
        }
        size_t sent = send_some(c, batch, length);
        if (sent < length) {
            keep_unsent(c, batch + sent, length - sent);
            wait_to_write(c, true);
            return;
        }
    }
    wait_to_write(c, false);
}

/* --- receiving ---------------------------------------------------------------------------------- */

static void take_answer(struct connection *c, uint64_t now) {
    uint64_t due = c->due[c->due_first];
    c->due_first = (c->due_first + 1) % c->due_room;
    c->unanswered--;
    c->next_answered++;
    answered++;
    if (is_measuring) {
        histogram_add(now > due ? now - due : 0);
    }
}

/* Takes the whole answers out of the bytes; returns how many bytes these had. */
static size_t take_answers(struct connection *c, const char *bytes, size_t length, uint32_t *count,
                           uint64_t *now) {
    size_t at = 0;
    while (at < length) {
        size_t used = 0;
        if (c->unanswered > 0) {
            used = check_answer(work, c->index, c->next_answered, bytes + at, length - at);
        } else {
            errno = 0;
            fail("bytes came that nobody asked for");
        }
        if (used == 0) {
            break;
        }
        at += used;
        if (*count == 0) {
            *now = nanoseconds();
        }
        (*count)++;
        take_answer(c, *now);
    }
    return at;
}

static void receive(struct connection *c) {
    char *bytes = reading;
    if (c->in_length > 0) {
        if (c->in_room < c->in_length + READ_BYTES) {
            c->in_room = c->in_length + READ_BYTES;
            c->in = grow(c->in, c->in_room);
        }
        bytes = c->in;
    }
    ssize_t received = recv(c->descriptor, bytes + c->in_length, READ_BYTES, 0);
    if (received < 0 && errno == EAGAIN) {
        return;
    }
    if (received <= 0) {
        errno = received == 0 ? 0 : errno;
        fail("the server closed a connection");
    }
    size_t length = c->in_length + (size_t)received;
    uint32_t count = 0;
    uint64_t now = 0;
    size_t used = take_answers(c, bytes, length, &count, &now);
    size_t rest = length - used;
    if (bytes == c->in) {
        memmove(c->in, c->in + used, rest);
    } else if (rest > 0) {
        if (c->in_room < rest) {
            c->in_room = rest;
            c->in = grow(c->in, c->in_room);
        }
        memcpy(c->in, bytes + used, rest);
    }
    c->in_length = rest;
    if (pace.rate == 0 && !is_stopping) {
        for (uint32_t i = 0; i < count; i++) {
            make_due(c, now);
        }
    }
    if (count > 0 && c->left == 0 && c->unanswered == 0) {
        connections_done++;
    }
    if (c->unsent > 0) {
        flush(c);
    }
}

/* --- the loop ----------------------------------------------------------------------------------- */

static void poll_once(int64_t nanoseconds_at_most) {
    static struct epoll_event events[EVENTS_AT_ONCE];
    struct timespec wait = {.tv_nsec = nanoseconds_at_most};
    int count = epoll_pwait2(poller, events, EVENTS_AT_ONCE, &wait, NULL);
    if (count < 0 && errno != EINTR) {
        fail("epoll");
    }
    for (int i = 0; i < count; i++) {
        struct connection *c = connections + events[i].data.u32;
        if (events[i].events & EPOLLOUT) {
            flush(c);
        }
        if (events[i].events & ~(uint32_t)EPOLLOUT) {
            receive(c);
        }
    }
}

static void begin_closed_loop(void) {
    for (uint32_t i = 0; i < work->connections; i++) {
        uint64_t now = nanoseconds();
        for (uint32_t k = 0; k < pace.outstanding; k++) {
            make_due(connections + i, now);
        }
        flush(connections + i);
        /* The first answers are not left to wait for the last connection's requests. */
        if (i % 32 == 31) {
            poll_once(0);
        }
    }
}

/*
 * Makes due what the rate has had become due since the beginning, some at most, so that answers are
 * read though the generator is late; returns when the next will be due.
 */
static uint64_t follow_rate(uint64_t began, uint64_t *made) {
    double gap = 1e9 / pace.rate;
    uint64_t due = began + (uint64_t)((double)*made * gap);
    for (int i = 0; i < DUE_AT_ONCE && due <= nanoseconds(); i++) {
        struct connection *c = connections + *made % work->connections;
        make_due(c, due);
        flush(c);
        (*made)++;
        due = began + (uint64_t)((double)*made * gap);
    }
    return due;
}

static void begin(void) {
    answered = 0;
    connections_done = 0;
    is_measuring = false;
    is_stopping = false;
    histogram_clear();
    work->operation = pace.operation;
    for (uint32_t i = 0; i < work->connections; i++) {
        struct connection *c = connections + i;
        c->next_sent = 0;
        c->next_answered = 0;
        c->left = pace.requests;
    }
}

/* Of a rate, what is unanswered at the end counts with the time that it has waited until then. */
static uint64_t count_unanswered(uint64_t now) {
    uint64_t count = 0;
    if (pace.rate == 0) {
        return 0;
    }
    for (uint32_t i = 0; i < work->connections; i++) {
        struct connection *c = connections + i;
        for (uint32_t k = 0; k < c->unanswered; k++) {
            histogram_add(now - c->due[(c->due_first + k) % c->due_room]);
        }
        count += c->unanswered;
    }
    return count;
}

/* What there was when measuring began. */
struct baseline {
    uint64_t at;
    uint64_t answered;
    double server_cpu;
    double generator_cpu;
    int64_t written;
};

static struct baseline start_measuring(void) {
    struct baseline found = {
        .answered = answered,
        .server_cpu = processes_cpu(),
        .generator_cpu = own_cpu(),
        .written = processes_written(),
    };
    is_measuring = true;
    found.at = nanoseconds();
    return found;
}

struct outcome carry(struct workload *shared_work, struct pace wanted) {
    struct outcome outcome = {0};
    work = shared_work;
    pace = wanted;
    begin();
    uint64_t began = nanoseconds();
    uint64_t measure_at = began + (uint64_t)(pace.warmup_seconds * 1e9);
    uint64_t end_at = measure_at + (uint64_t)(pace.seconds * 1e9);
    uint64_t made = 0;
    struct baseline before = {0};
    if (measure_at == began) {
        /* From the first request on, which may be answered before the last one is made. */
        before = start_measuring();
    }
    if (pace.rate == 0) {
        begin_closed_loop();
    }
    for (;;) {
        uint64_t now = nanoseconds();
        if (!is_measuring && now >= measure_at) {
            before = start_measuring();
        }
        bool is_over = pace.requests == UNLIMITED ? now >= end_at
                                                  : connections_done == work->connections;
        if (is_over) {
            break;
        }
        int64_t wait = LONGEST_WAIT;
        if (pace.rate > 0) {
            uint64_t next = follow_rate(began, &made);
            now = nanoseconds();
            wait = next > now ? (int64_t)(next - now) : 0;
            wait = wait < LONGEST_WAIT ? wait : LONGEST_WAIT;
        }
        poll_once(wait);
    }
    uint64_t ended = nanoseconds();
    is_stopping = true;
    outcome.answered = answered - before.answered;
    outcome.seconds = (double)(ended - before.at) / 1e9;
    outcome.server_cpu_seconds = processes_cpu() - before.server_cpu;
    outcome.generator_cpu_seconds = own_cpu() - before.generator_cpu;
    outcome.server_written = processes_written() - before.written;
    outcome.unanswered = count_unanswered(ended);
    return outcome;
}
