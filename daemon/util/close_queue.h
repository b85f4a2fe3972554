/* Closes descriptors that clients sent, on threads of its own.
 *
 * A client can make the close of such a descriptor last: a socket lingers over unsent bytes, a user's own file system
 * answers when it likes, and the close of a socket also closes descriptors that wait in it unread. So no thread that
 * others need may close them. Each queue has one thread, which runs while the queue has entries and closes them in
 * order; queues do not wait for each other. The thread of a queue with too many entries is interrupted by a signal: a
 * socket then stops lingering, a file system may ignore it. So files whose file system may be asked at a close have
 * queues of their own.
 *
 * Thread: all functions are the loop's. */
#ifndef KOPS_UTIL_CLOSE_QUEUE_H
#define KOPS_UTIL_CLOSE_QUEUE_H

#include <pthread.h>
#include <stdbool.h>
#include <uv.h>

#include "util/list.h"

struct close_queues; /* the threads' common state */
struct closing;

/* Part of its owner, which stays until done() was called for every entry. */
struct close_queue {
    struct list link; /* in the busy queues, while it has entries */
    struct closing *now;
    pthread_t thread; /* while it has entries */
    struct list waiting;
    unsigned n_waiting;
    void (*done)(struct close_queue *queue, unsigned count); /* on the loop's thread: `count` descriptors are closed */
};

/* NULL: no memory. */
struct close_queues *close_queues_new(uv_loop_t *loop);
/* Ends the queues; no entries may follow. Descriptors that are still open are left to the end of the process: done() is
 * called for all of them. */
void close_queues_stop(struct close_queues *queues);
/* After the loop's end. NULL is allowed; returns NULL. */
struct close_queues *close_queues_free(struct close_queues *queues);

void close_queue_init(struct close_queue *queue, void (*done)(struct close_queue *queue, unsigned count));

/* Adds descriptors and takes ownership of them. Without memory or a thread they are closed at once. */
void close_queue_add(struct close_queues *queues, struct close_queue *queue, const int *fds, unsigned count);

/* Returns the number of entries above the queue's limit, and interrupts the queue's thread if there are any. The queue
 * does not refuse entries: the caller slows down the client that sends them. */
unsigned close_queue_excess(struct close_queues *queues, struct close_queue *queue);

/* Closes a connected Unix socket at once and returns true if no descriptors wait in it. Otherwise it only shuts the
 * socket down, and the caller gives it to a queue. */
bool close_queue_close_socket(int socket);

#endif
