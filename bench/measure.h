/* Samples of a benchmark: collected in blocks, printed as one JSON object that bench/run reads.
 *
 * A series owns its samples. One thread. */
#ifndef KOPS_BENCH_MEASURE_H
#define KOPS_BENCH_MEASURE_H

#include <stddef.h>
#include <stdint.h>

struct series {
    const char *name; /* borrowed */
    double *samples;  /* microseconds */
    size_t n;
    size_t capacity;
};

/* Monotonic time in nanoseconds. */
uint64_t now_ns(void);

/* Room for `capacity` samples. Exits the program when there is no memory. */
void series_init(struct series *series, const char *name, size_t capacity);
void series_deinit(struct series *series);

/* Adds the time since `start_ns`. */
void series_add(struct series *series, uint64_t start_ns);
void series_add_us(struct series *series, double microseconds);

/* Prints `{"<name>": {"p50": …, "p90": …, "p99": …, "min": …, "max": …, "mean": …, "n": …}, …}` and a newline. Sorts
 * the samples.
 */
void series_print(struct series *const *all, size_t n_all);

/* A positive number of a command line option. Exits the program with a message when it is none. */
size_t parse_count(const char *option, const char *text);

#endif
