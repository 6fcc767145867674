/*
 * Loads a server with heartbeats, or reads them, and measures both sides.
 *
 *     load --protocol pacemaker --port 6699 --operation send --connections 50 --bytes 3072 --seconds 2
 *
 * A closed loop (each answer is followed by the next request) measures what a server can do; a rate
 * (requests are due at their time, whatever the server does, and latency counts from then) measures
 * how long a worker waits. Every answer is checked. One JSON object comes out; times are in
 * milliseconds, `cpu_us` is the server's CPU time for a request, in microseconds.
 *
 * It is one thread: pin it to another core than the server.
 */
#include <errno.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "connections.h"
#include "measure.h"
#include "protocol.h"

#define FILL_OUTSTANDING 8

struct options {
    struct workload work;
    struct pace pace;
    const char *host;
    int ports[MOST_PORTS];
    int port_count;
    /* Whether every key is stored before the measurement. */
    bool fill;
};

enum {
    PROTOCOL,
    HOST,
    PORT,
    OPERATION,
    CONNECTIONS,
    OUTSTANDING,
    KEYS_PER_CONNECTION,
    FIRST_KEY,
    WORKERS_PER_TOPOLOGY,
    BYTES,
    JITTER,
    RATE,
    REQUESTS,
    WARMUP,
    SECONDS,
    PIDS,
    NO_FILL,
    NO_VERIFY
};

static const struct option known_options[] = {
    {"protocol", required_argument, NULL, PROTOCOL},
    {"host", required_argument, NULL, HOST},
    {"port", required_argument, NULL, PORT},
    {"operation", required_argument, NULL, OPERATION},
    {"connections", required_argument, NULL, CONNECTIONS},
    {"outstanding", required_argument, NULL, OUTSTANDING},
    {"keys-per-connection", required_argument, NULL, KEYS_PER_CONNECTION},
    {"first-key", required_argument, NULL, FIRST_KEY},
    {"workers-per-topology", required_argument, NULL, WORKERS_PER_TOPOLOGY},
    {"bytes", required_argument, NULL, BYTES},
    {"jitter", required_argument, NULL, JITTER},
    {"rate", required_argument, NULL, RATE},
    {"requests", required_argument, NULL, REQUESTS},
    {"warmup", required_argument, NULL, WARMUP},
    {"seconds", required_argument, NULL, SECONDS},
    {"pids", required_argument, NULL, PIDS},
    {"no-fill", no_argument, NULL, NO_FILL},
    {"no-verify", no_argument, NULL, NO_VERIFY},
    {NULL, 0, NULL, 0},
};

static const char usage[] =
    "usage: load --port PORT[,PORT..] [--host 127.0.0.1]\n"
    "  --protocol pacemaker|redis|memcached|zookeeper   --operation send|get|children\n"
    "  --connections N   --outstanding N (of each)       --keys-per-connection N\n"
    "  --bytes N (of a value)   --jitter N (more or less)   --first-key N\n"
    "  --workers-per-topology N   children asked for are checked against it\n"
    "  --rate N (a second, in all; 0: a closed loop)   --warmup S   --seconds S\n"
    "  --requests N   of each connection, then it ends, instead of --seconds\n"
    "  --pids PID[,PID..]   processes whose CPU and memory are measured\n"
    "  --no-fill   do not store every key first\n"
    "  --no-verify   values that come back need not be those that were sent\n";

/* The place of a word in a list that ends with NULL; ends the program if it is not there. */
static int choose(const char *what, const char *word, const char *const *words) {
    for (int i = 0; words[i] != NULL; i++) {
        if (strcmp(word, words[i]) == 0) {
            return i;
        }
    }
    fail("--%s: there is no %s", what, word);
}

static double number(const char *what, const char *text, double least) {
    char *end;
    double value = strtod(text, &end);
    if (*text == '\0' || *end != '\0' || value < least) {
        fail("--%s: %s is not a number from %g", what, text, least);
    }
    return value;
}

static void read_ports(struct options *options, const char *text) {
    char *rest = NULL;
    char *copy = strdup(text);
    for (char *port = strtok_r(copy, ",", &rest); port; port = strtok_r(NULL, ",", &rest)) {
        if (options->port_count == MOST_PORTS) {
            fail("--port: more than %d", MOST_PORTS);
        }
        options->ports[options->port_count++] = (int)number("port", port, 1);
    }
    free(copy);
}

static void take_option(struct options *options, int option, const char *name, const char *text) {
    static const char *const protocols[] = {"pacemaker", "redis", "memcached", "zookeeper", NULL};
    static const char *const operations[] = {"send", "get", "children", NULL};
    struct workload *work = &options->work;
    struct pace *pace = &options->pace;
    switch (option) {
    case PROTOCOL:
        work->protocol = (enum protocol)choose(name, text, protocols);
        break;
    case HOST:
        options->host = text;
        break;
    case PORT:
        read_ports(options, text);
        break;
    case OPERATION:
        pace->operation = (enum operation)choose(name, text, operations);
        break;
    case CONNECTIONS:
        work->connections = (uint32_t)number(name, text, 1);
        break;
    case OUTSTANDING:
        pace->outstanding = (uint32_t)number(name, text, 1);
        break;
    case KEYS_PER_CONNECTION:
        work->keys_per_connection = (uint32_t)number(name, text, 1);
        break;
    case FIRST_KEY:
        work->first_key = (uint32_t)number(name, text, 0);
        break;
    case WORKERS_PER_TOPOLOGY:
        work->workers_per_topology = (uint32_t)number(name, text, 1);
        break;
    case BYTES:
        work->value_bytes = (uint32_t)number(name, text, 8);
        break;
    case JITTER:
        work->jitter = (uint32_t)number(name, text, 0);
        break;
    case RATE:
        pace->rate = number(name, text, 0);
        break;
    case REQUESTS:
        pace->requests = (uint32_t)number(name, text, 1);
        break;
    case WARMUP:
        pace->warmup_seconds = number(name, text, 0);
        break;
    case SECONDS:
        pace->seconds = number(name, text, 0);
        break;
    case PIDS:
        watch_processes(text);
        break;
    case NO_FILL:
        options->fill = false;
        break;
    case NO_VERIFY:
        work->verify = false;
        break;
    default:
        fputs(usage, stderr);
        exit(1);
    }
}

static struct options read_options(int count, char **arguments) {
    struct options options = {
        .work = {.connections = 50, .keys_per_connection = 20, .workers_per_topology = 24,
                 .value_bytes = 3072, .verify = true},
        .pace = {.outstanding = 1, .requests = UNLIMITED, .warmup_seconds = 0.5, .seconds = 2},
        .host = "127.0.0.1",
        .fill = true,
    };
    int place;
    int option;
    while ((option = getopt_long(count, arguments, "", known_options, &place)) != -1) {
        const char *name = option == '?' ? "" : known_options[place].name;
        take_option(&options, option, name, optarg);
    }
    errno = 0;
    if (options.port_count == 0 || optind < count) {
        fputs(usage, stderr);
        exit(1);
    }
    if (options.work.jitter + 8 > options.work.value_bytes) {
        fail("--jitter: %u leaves nothing of --bytes %u", options.work.jitter,
             options.work.value_bytes);
    }
    return options;
}

static void raise_file_limit(void) {
    struct rlimit limit;
    getrlimit(RLIMIT_NOFILE, &limit);
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit);
}

static void fill(struct options *options) {
    struct pace pace = {
        .operation = options->work.protocol == ZOOKEEPER ? CREATE : SEND,
        .outstanding = FILL_OUTSTANDING,
        .requests = options->work.keys_per_connection,
    };
    carry(&options->work, pace);
}

static void print_outcome(const struct outcome *outcome) {
    double requests = outcome->answered > 0 ? (double)outcome->answered : 1;
    printf("{\"requests\": %llu, \"unanswered\": %llu, \"seconds\": %.4f, ",
           (unsigned long long)outcome->answered, (unsigned long long)outcome->unanswered,
           outcome->seconds);
    printf("\"requests_per_s\": %.1f, \"cpu_us\": %.4f, ",
           (double)outcome->answered / outcome->seconds,
           outcome->server_cpu_seconds * 1e6 / requests);
    printf("\"p50_ms\": %.4f, \"p99_ms\": %.4f, \"p999_ms\": %.4f, \"max_ms\": %.4f, ",
           histogram_quantile(0.5), histogram_quantile(0.99), histogram_quantile(0.999),
           histogram_max());
    printf("\"server_cores\": %.4f, \"generator_cores\": %.4f, ",
           outcome->server_cpu_seconds / outcome->seconds,
           outcome->generator_cpu_seconds / outcome->seconds);
    printf("\"written_bytes\": %lld, \"rss_mib\": %.3f}\n", (long long)outcome->server_written,
           processes_rss());
}

int main(int count, char **arguments) {
    struct options options = read_options(count, arguments);
    raise_file_limit();
    if (options.pace.requests != UNLIMITED) {
        /* All of them are measured. */
        options.pace.warmup_seconds = 0;
    }
    prepare_workload(&options.work);
    connect_all(&options.work, options.host, options.ports, options.port_count);
    if (options.fill) {
        fill(&options);
    }
    struct outcome outcome = carry(&options.work, options.pace);
    print_outcome(&outcome);
    return 0;
}
