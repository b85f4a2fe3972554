/* Two processes that play ping-pong with nothing between them: the least that any protocol can cost.
 *
 * Over an AF_UNIX stream socket, where both sleep or poll first, or over two words in shared memory, polled. The child
 * answers every request of `request_bytes` with `reply_bytes`; it ends when the socket closes. */
#ifndef KOPS_BENCH_PAIR_H
#define KOPS_BENCH_PAIR_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

enum { PAIR_MAX_BYTES = 4096, PAIR_MAX_CLIENTS = 64 };

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

/* One process that answers on the sockets of several pairs, as a server does: it sleeps in epoll_wait(). */
struct pair_server {
    pid_t child;
    size_t n;
    int fds[PAIR_MAX_CLIENTS];
};

/* Starts it. 0, or negative errno. */
int pair_server_start(struct pair_server *server, size_t clients, size_t request_bytes, size_t reply_bytes);
/* The pair of one client, which stops it as any other. The server ends with its last client. */
void pair_of_server(struct pair *pair, struct pair_server *server, size_t client, size_t request_bytes,
                    size_t reply_bytes);
/* In the process that started it, and in those clients that have their pair: closes what is left. */
void pair_server_forget(struct pair_server *server);

/* One round trip. 0, or negative errno. */
int pair_call(const struct pair *pair);

/* Ends the child, when it is the pair's own, and waits for it. */
void pair_stop(struct pair *pair);

#endif
