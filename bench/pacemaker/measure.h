/* Clock, latency histogram, and what a server's processes take. */
#ifndef MEASURE_H
#define MEASURE_H

#include <stdint.h>

/* Ends the program with a message, and what the system says if it said anything. */
void fail(const char *format, ...) __attribute__((noreturn, format(printf, 1, 2)));

/* Memory that is there, or the end of the program. */
void *allocate(uint64_t bytes);
void *grow(void *block, uint64_t bytes);

/* Nanoseconds of the monotonic clock. */
uint64_t nanoseconds(void);

/* Forgets all latencies. */
void histogram_clear(void);
/* Adds one latency, in nanoseconds; buckets are at most 1.6 % wide. */
void histogram_add(uint64_t latency);
uint64_t histogram_count(void);
/* The latency (milliseconds) that a share of the requests did not exceed. */
double histogram_quantile(double share);
double histogram_max(void);

/* The processes that serve: "4711" or "4711,4712"; none for an empty text. */
void watch_processes(const char *pids);
/* Seconds of CPU that they took since their start, to the nanosecond. */
double processes_cpu(void);
/* Their resident memory, in MiB. */
double processes_rss(void);
/* Bytes that they had the disks write; -1 where the system does not tell. */
int64_t processes_written(void);
/* Seconds of CPU that this process took. */
double own_cpu(void);

#endif
