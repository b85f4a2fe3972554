/* A server that does nothing: one process that sleeps in epoll_wait() and answers so many bytes with so many others,
 * as a ping and its answer have. What is left of a daemon when nothing is decoded, checked or kept. */
#ifndef KOPS_BENCH_LOAD_PEER_H
#define KOPS_BENCH_LOAD_PEER_H

#include <sys/types.h>

struct peer {
    pid_t child;
    char path[108]; /* of its socket */
};

/* Exits the program when it cannot be started. */
void peer_start(struct peer *peer);
/* Ends it; its processor time, in seconds. */
double peer_stop(struct peer *peer);

#endif
