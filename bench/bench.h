/* Shared by the benchmark programs: their options, a connection, and sides that are measured in turns. One thread. */
#ifndef KOPS_BENCH_BENCH_H
#define KOPS_BENCH_BENCH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <kops/kernel.h>
#include <kops/kops.h>

enum { EXIT_SKIPPED = 77 }; /* the machine or the daemon cannot run the measure; stderr says why */

/* ---- options ---- */

/* `--name VALUE`; exactly one of the three is set. A flag takes no value. The table ends with an empty name. */
struct bench_option {
    const char *name;
    const char **text;
    size_t *count; /* a positive number */
    bool *flag;
};

/* Ends the program with a message when an option is unknown or its value is wrong. */
void options_read(int argc, char **argv, const struct bench_option *options);

/* A positive number of a command line option. Ends the program with a message when it is none. */
size_t parse_count(const char *option, const char *text);

/* ---- the daemon ---- */

/* Connects by the transport auto (NULL), socket or shm, and polls as `spin` says: auto (NULL), none or microseconds.
 * Ends the program where that fails, with EXIT_SKIPPED when the daemon offers no such transport. */
kops_client *connect_or_exit(const char *socket, const char *transport, const char *spin);

/* Ends the program with EXIT_SKIPPED unless the daemon lists the feature. */
void need_feature(const kops_client *client, const char *feature);

/* Prints the error and returns -1 when `code` is one. */
int check_kops(enum kops_code code, const struct kops_error *error, const char *what);

/* Defines c[i] = a[i] + b[i] as a kernel of a user's, with arguments c, a, b, n. 0, or an exit status with a message.
 */
int user_add_compile(kops_client *client, kops_kernel **ret_kernel);

/* ---- samples ---- */

/* Monotonic time in nanoseconds. */
uint64_t now_ns(void);

struct series {
    const char *name; /* borrowed */
    double *samples;  /* owned; microseconds */
    size_t n, capacity;
};

/* Room for `capacity` samples; later ones are dropped. Ends the program when there is no memory. */
void series_init(struct series *series, const char *name, size_t capacity);
void series_deinit(struct series *series);
void series_add_us(struct series *series, double microseconds);

/* Prints `{"<name>": {"p50": …, "p99": …, "max": …, "n": …}, …}` and a newline. Sorts the samples. */
void series_print(struct series *all, size_t n_all);

/* One way to do a piece of work: 0, or -1 after a message. */
struct side {
    const char *name;
    int (*call)(void *bench, const void *how);
    const void *how;
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

#endif
