/* Two processes that play ping-pong over a raw AF_UNIX stream socket: the least that any protocol over one can cost.
 *
 * The child answers every request of `request_bytes` with `reply_bytes`; it ends when the socket closes. */
#ifndef KOPS_BENCH_PAIR_H
#define KOPS_BENCH_PAIR_H

#include <stddef.h>
#include <sys/types.h>

enum { PAIR_MAX_BYTES = 4096 };

struct pair {
    int fd;
    pid_t child;
    size_t request_bytes;
    size_t reply_bytes;
};

/* Starts the child. 0, or negative errno. */
int pair_start(struct pair *pair, size_t request_bytes, size_t reply_bytes);

/* One round trip. 0, or negative errno. */
int pair_call(const struct pair *pair);

/* Ends the child and waits for it. */
void pair_stop(struct pair *pair);

#endif
