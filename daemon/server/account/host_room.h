/* Whether there is memory for pages that the daemon may have to touch first.
 *
 * A page of shared memory belongs, for the kernel, to whoever touches it first, and stays that one's while the file
 * lives, however long the daemon has let go of it. So the quotas, which count what is mapped now, are not all: holes
 * are taken on only where all that are mapped fit into what is available at that time, and by one user only a share of
 * it. Memory whose pages are there needs nothing. Thread: loop. */
#ifndef KOPS_SERVER_ACCOUNT_HOST_ROOM_H
#define KOPS_SERVER_ACCOUNT_HOST_ROOM_H

#include "util/error.h"

struct account;

struct host_room {
    uint64_t holes;  /* bytes that are mapped and had no page when they were taken on */
    uint64_t mapped; /* bytes of all shared memory that is mapped: what is not resident of it bounds the holes */
    uint64_t available, total, resident; /* as the kernel said */
    uint64_t asked_ns;                   /* when it was asked for those; 0: never */
};

/* What one file takes, and who has it is its one holder. Zeroes are nothing, which may be given and moved. */
struct host_part {
    struct account *account; /* a reference; NULL: nothing is taken */
    uint64_t holes, mapped;
};

/* Takes on a file of which `size` bytes are mapped, `holes` of them without pages, or refuses: -1, out_of_memory, and
 * never for a file without holes.
 * The user's QUOTA_HOST includes them already: one who has little of that may also take from a part that is kept for
 * such users. *part is nothing where it is refused, or nothing was asked for. */
int host_room_take(struct host_room *room, struct account *a, uint64_t size, uint64_t holes, struct host_part *part,
                   struct error *e);
/* It is nothing afterwards. */
void host_room_give(struct host_room *room, struct host_part *part);

/* Another holder has it from now on. */
static inline struct host_part host_part_move(struct host_part *from)
{
    struct host_part moved = *from;

    *from = (struct host_part){0};
    return moved;
}

#endif
