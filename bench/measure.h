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

void series_add_us(struct series *series, double microseconds);

/* Prints `{"<name>": {"p50": …, "p90": …, "p99": …, "min": …, "max": …, "mean": …, "n": …}, …}` and a newline. Sorts
 * the samples.
 */
void series_print(struct series *const *all, size_t n_all);

/* One way to do a piece of work: 0, or -1 after a message. */
struct side {
    const char *name;
    int (*call)(void *bench);
};

/* How sides take turns: in blocks, since two processes that share a GPU without MPS pay at every switch. */
struct turns {
    size_t blocks, calls; /* of a block */
    size_t warmup, again; /* calls that are not counted: before a side's first block, before each other one */
    size_t per;           /* pieces of work in a call: a sample is of one */
};

/* Measures the sides in turns and prints their series. After some time there are no more blocks. 0, or 1 when a call
 * has failed. */
int sides_measure(const struct side *sides, size_t n, void *bench, const struct turns *turns);

/* A positive number of a command line option. Exits the program with a message when it is none. */
size_t parse_count(const char *option, const char *text);

#endif
