/* Two processes that play ping-pong with nothing between them: the least that any protocol can cost.
 *
 * Over an AF_UNIX stream socket, where both sleep or poll first, or over two words in shared memory, polled. The child
 * answers every request of `request_bytes` with `reply_bytes`; it ends when the socket closes. */
#ifndef KOPS_BENCH_PAIR_H
#define KOPS_BENCH_PAIR_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

enum { PAIR_MAX_BYTES = 4096 };

struct pair_words;

struct pair {
    int fd;
    pid_t child;
    size_t request_bytes;
    size_t reply_bytes;
    uint64_t spin_us;         /* both ends poll at most that long before they sleep */
    struct pair_words *words; /* of a pair in shared memory */
};

/* Starts the child. 0, or negative errno. */
int pair_start(struct pair *pair, size_t request_bytes, size_t reply_bytes, uint64_t spin_us);

/* The same with two words of shared memory in place of the socket. */
int pair_start_words(struct pair *pair);

/* One round trip. 0, or negative errno. */
int pair_call(const struct pair *pair);

/* Ends the child and waits for it. */
void pair_stop(struct pair *pair);

#endif
