/* The page of timelines that one connection shares with the daemon, and the watcher thread for it.
 *
 * Word s is the *ready* value of the caller's stream s, word 256 + s its *done* value; both only rise. Streams of this
 * process wait for *done* in the GPU's front end, where nothing but a write to the page wakes them. When the connection
 * ends, the daemon writes nothing more, or only values of work under way. So a watcher thread writes the far end into
 * every done word, again and again with growing pauses, until the page is closed. Before, it sleeps in poll(2). It
 * takes no lock and calls no driver, so it works while the rest of the process hangs in the driver.
 *
 * A page belongs to one connection (`generation`) and is never used after it. Thread: any, under the client's lock. */
#ifndef KOPS_CLIENT_TIMELINE_H
#define KOPS_CLIENT_TIMELINE_H

#include <pthread.h>
#include <stdatomic.h>

#include "cuda/cuda_driver.h"
#include "wire/wire.h"

enum { TIMELINE_STREAMS = 256, TIMELINE_BYTES = 4096 };

struct timeline {
    struct timeline *next; /* older pages */
    uint32_t generation;
    const struct cuda_driver *driver;
    cuda_context context;   /* context in which the words were registered */
    _Atomic int64_t *words; /* mapped, and registered with the driver */
    int socket;             /* a duplicate of the connection's socket */
    int stop;               /* eventfd */
    atomic_bool over;       /* the connection has ended */
    pthread_t watcher;
};

/* Opens the page. Takes the daemon's descriptor, also on failure. `socket` stays the caller's. A context must be
 * current. */
enum kops_code timeline_open(const struct cuda_driver *d, const struct wire_timelines *made, int socket,
                             uint32_t generation, struct timeline **ret, struct kops_error *e);

/* Ends the watcher and frees the page. No stream may wait on the page any more. Returns NULL. */
struct timeline *timeline_close(struct timeline *t);

/* Frees the struct in a child, which has no watcher; the parent's watcher goes on. */
void timeline_forget(struct timeline *t);

static inline uint64_t timeline_ready_offset(unsigned stream)
{
    return 8 * (uint64_t)stream;
}

static inline uint64_t timeline_done_offset(unsigned stream)
{
    return 8 * ((uint64_t)stream + TIMELINE_STREAMS);
}

#endif
