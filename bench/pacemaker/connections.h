/* The generator's sockets: requests out, answers in, and how long each took. */
#ifndef CONNECTIONS_H
#define CONNECTIONS_H

#include <stdbool.h>
#include <stdint.h>

#include "protocol.h"

#define UNLIMITED UINT32_MAX
#define MOST_PORTS 64

/* How requests are made, for a while. */
struct pace {
    enum operation operation;
    /* Requests a second over all connections, whatever the server does; 0: each answer is followed
       by the next request, with so many outstanding on each connection. */
    double rate;
    uint32_t outstanding;
    /* Requests of each connection, after which it is done; or UNLIMITED. */
    uint32_t requests;
    double warmup_seconds;
    double seconds;
};

/* What came of it, measured from the end of the warm-up. */
struct outcome {
    uint64_t answered;
    /* Of a rate: what was due and not answered when the time was over. */
    uint64_t unanswered;
    double seconds;
    double server_cpu_seconds;
    double generator_cpu_seconds;
    int64_t server_written;
};

/* Connects to the servers in turn, one connection after another. */
void connect_all(struct workload *work, const char *host, const int *ports, int port_count);
/* Carries requests until the time is over or all connections are done. */
struct outcome carry(struct workload *work, struct pace pace);

#endif
