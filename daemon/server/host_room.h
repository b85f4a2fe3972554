/* Whether there is memory for pages that the daemon may have to touch first.
 *
 * A page of shared memory belongs, for the kernel, to whoever touches it first, and stays that one's while the file
 * lives, however long the daemon has let go of it. So the quotas, which count what is mapped now, are not all: holes
 * are taken on only where all that are mapped fit into what is available at that time. Memory whose pages are there
 * needs nothing. Thread: loop. */
#ifndef KOPS_SERVER_HOST_ROOM_H
#define KOPS_SERVER_HOST_ROOM_H

#include "util/error.h"

struct host_room {
    uint64_t holes; /* bytes that are mapped and had no page when they were taken on */
    uint64_t available, total;
    uint64_t asked_ns; /* when the kernel was asked for those; 0: never */
};

/* Takes so many bytes on, or refuses: -1, out_of_memory. `users_bytes` is the host's memory that the user has mapped,
 * these bytes included: a user with little of it may also take from a part that is kept for such users. */
int host_room_take(struct host_room *room, uint64_t users_bytes, uint64_t holes, struct error *e);
static inline void host_room_give(struct host_room *room, uint64_t holes)
{
    room->holes -= holes;
}

#endif
