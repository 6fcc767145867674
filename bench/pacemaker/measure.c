#define _GNU_SOURCE
#include "measure.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/types.h>
#include <time.h>

void fail(const char *format, ...) {
    int error = errno;
    va_list arguments;
    va_start(arguments, format);
    fputs("load: ", stderr);
    vfprintf(stderr, format, arguments);
    va_end(arguments);
    if (error != 0) {
        fprintf(stderr, " (%s)", strerror(error));
    }
    fputc('\n', stderr);
    exit(2);
}

void *allocate(uint64_t bytes) {
    void *block = calloc(1, bytes > 0 ? bytes : 1);
    if (block == NULL) {
        fail("no memory for %llu bytes", (unsigned long long)bytes);
    }
    return block;
}

void *grow(void *block, uint64_t bytes) {
    block = realloc(block, bytes);
    if (block == NULL) {
        fail("no memory for %llu bytes", (unsigned long long)bytes);
    }
    return block;
}

uint64_t nanoseconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* --- latencies: 64 buckets for each power of two, and one for each value below 128 ------------ */

#define BUCKETS_PER_DOUBLING 64
#define BUCKETS (BUCKETS_PER_DOUBLING * 64)

static uint64_t buckets[BUCKETS];
static uint64_t counted;
static uint64_t longest;

static int bucket_of(uint64_t value) {
    if (value < 2 * BUCKETS_PER_DOUBLING) {
        return (int)value;
    }
    int shift = 63 - __builtin_clzll(value) - 6;
    return BUCKETS_PER_DOUBLING * shift + (int)(value >> shift);
}

static uint64_t lower_bound(int bucket) {
    if (bucket < 2 * BUCKETS_PER_DOUBLING) {
        return (uint64_t)bucket;
    }
    int shift = bucket / BUCKETS_PER_DOUBLING - 1;
    return (uint64_t)(bucket - BUCKETS_PER_DOUBLING * shift) << shift;
}

void histogram_clear(void) {
    memset(buckets, 0, sizeof buckets);
    counted = 0;
    longest = 0;
}

void histogram_add(uint64_t latency) {
    buckets[bucket_of(latency)]++;
    counted++;
    if (latency > longest) {
        longest = latency;
    }
}

uint64_t histogram_count(void) {
    return counted;
}

double histogram_quantile(double share) {
    uint64_t wanted = (uint64_t)((double)counted * share);
    uint64_t seen = 0;
    if (wanted < 1) {
        wanted = 1;
    }
    for (int bucket = 0; bucket < BUCKETS; bucket++) {
        seen += buckets[bucket];
        if (seen >= wanted) {
            return (double)lower_bound(bucket) / 1e6;
        }
    }
    return histogram_max();
}

double histogram_max(void) {
    return (double)longest / 1e6;
}

/* --- processes -------------------------------------------------------------------------------- */

#define MOST_PROCESSES 64

static pid_t processes[MOST_PROCESSES];
static int process_count;

void watch_processes(const char *pids) {
    char *rest = NULL;
    char *copy = strdup(pids);
    for (char *pid = strtok_r(copy, ",", &rest); pid; pid = strtok_r(NULL, ",", &rest)) {
        if (process_count == MOST_PROCESSES) {
            fail("more than %d processes to watch", MOST_PROCESSES);
        }
        processes[process_count++] = (pid_t)atoi(pid);
    }
    free(copy);
}

double processes_cpu(void) {
    double total = 0;
    for (int i = 0; i < process_count; i++) {
        clockid_t its_clock;
        struct timespec taken;
        if (clock_getcpuclockid(processes[i], &its_clock) != 0 ||
            clock_gettime(its_clock, &taken) != 0) {
            fail("process %d is not there: did the server end?", (int)processes[i]);
        }
        total += (double)taken.tv_sec + (double)taken.tv_nsec / 1e9;
    }
    return total;
}

/* The number after a label in a file below /proc/PID; -1 if it is not to be had. */
static int64_t labelled_number(pid_t pid, const char *file, const char *label) {
    char name[64];
    char line[256];
    int64_t number = -1;
    snprintf(name, sizeof name, "/proc/%d/%s", (int)pid, file);
    FILE *stream = fopen(name, "r");
    if (stream == NULL) {
        return -1;
    }
    while (number < 0 && fgets(line, sizeof line, stream) != NULL) {
        if (strncmp(line, label, strlen(label)) == 0) {
            number = atoll(line + strlen(label));
        }
    }
    fclose(stream);
    return number;
}

double processes_rss(void) {
    double total = 0;
    for (int i = 0; i < process_count; i++) {
        /* Exact, where the counters of "statm" may be off by some pages for each core. */
        int64_t kib = labelled_number(processes[i], "smaps_rollup", "Rss:");
        if (kib < 0) {
            kib = labelled_number(processes[i], "status", "VmRSS:");
        }
        total += (double)kib / 1024;
    }
    return total;
}

int64_t processes_written(void) {
    int64_t total = 0;
    for (int i = 0; i < process_count; i++) {
        int64_t bytes = labelled_number(processes[i], "io", "write_bytes:");
        if (bytes < 0) {
            return -1;
        }
        total += bytes;
    }
    return total;
}

double own_cpu(void) {
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
           (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) / 1e6;
}
