/* The page of timelines that one connection shares with the daemon, and the thread that watches over it.
 *
 * Word s says how far the caller's stream s is ready, word 256 + s how far the daemon's work for it is done; both only
 * rise.
 * Streams of this process wait for the latter, in the GPU's front end, where nothing but a write to the page wakes
 * them. When the connection ends, its daemon writes nothing more, or only values of work under way. So a thread of our
 * own writes the far end into every done word, again and again with pauses that grow, until the page is closed. It
 * sleeps in poll(2) till then, takes no lock and calls no driver: it works while the rest of the process hangs in the
 * driver.
 *
 * A page belongs to one connection (`generation`) and is never used again after it. Thread: all but the watcher's under
 * the client's lock. */
#ifndef KOPS_CLIENT_TIMELINE_H
#define KOPS_CLIENT_TIMELINE_H

#include <pthread.h>
#include <stdatomic.h>

#include "cuda/cuda_driver.h"
#include "wire/wire.h"

enum { TIMELINE_STREAMS = 256, TIMELINE_BYTES = 4096 };

struct timeline {
    struct timeline *next; /* older ones */
    uint32_t generation;
    const struct cuda_driver *driver;
    cuda_context context;   /* in which the words were registered */
    _Atomic int64_t *words; /* mapped, and registered with the driver */
    int socket;             /* a duplicate of the connection's */
    int stop;               /* eventfd */
    atomic_bool over;       /* the connection has ended */
    pthread_t watcher;
};

/* Takes the daemon's descriptor, also on failure. `socket` stays the caller's. A context is current. */
enum kops_code timeline_open(const struct cuda_driver *d, const struct wire_timelines *made, int socket,
                             uint32_t generation, struct timeline **ret, struct kops_error *e);

/* No stream waits on the page any more: ends the watcher, gives everything back. Returns NULL. */
struct timeline *timeline_close(struct timeline *t);

/* The watcher goes on; only the struct's descriptors are closed. For a child, where there is no watcher. */
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
