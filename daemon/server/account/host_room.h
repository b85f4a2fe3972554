/* Room for holes: whether memory is available for pages that the daemon may have to touch first.
 *
 * The kernel charges a page of shared memory to the process that touches it first, for as long as the file lives, even
 * after the daemon has unmapped it. Quotas, which count mapped memory only, are not enough. So holes are accepted only
 * where the holes of all mapped files fit into the available memory, and each user may have a share of it only. Memory
 * whose pages exist needs no room. Thread: loop. */
#ifndef KOPS_SERVER_ACCOUNT_HOST_ROOM_H
#define KOPS_SERVER_ACCOUNT_HOST_ROOM_H

#include <stdbool.h>
#include <stdint.h>

#include "util/error.h"
#include "util/loop.h"

struct account;

struct host_room {
    uint64_t holes;  /* mapped bytes that had no page when they were taken on */
    uint64_t mapped; /* bytes of all mapped shared memory: its part that is not resident bounds the holes */
    uint64_t available, total, resident; /* the kernel's numbers */
    uint64_t asked_ns;                   /* when the kernel was asked; 0: never */
};

/* The room that one file takes. It has one holder. A zeroed part is empty: it may be given back and moved. */
struct host_part {
    struct account *account; /* a reference; NULL: an empty part */
    uint64_t holes, mapped;
};

/* Takes room for a file of which `size` bytes are mapped, `holes` of them without pages. Refuses with -1 and
 * out_of_memory, but never a file without holes. The user's QUOTA_HOST includes the file already: a user with little of
 * that quota may also take from a part kept for such users. *part is empty where `size` is 0 or the file is refused. */
int host_room_take(struct host_room *room, struct account *a, uint64_t size, uint64_t holes, struct host_part *part,
                   struct error *e);
/* Gives the part back. It is empty then. */
void host_room_give(struct host_room *room, struct host_part *part);

/* Moves the part to another holder; *from is empty then. */
static inline struct host_part host_part_move(struct host_part *from)
{
    struct host_part moved = *from;

    *from = (struct host_part){0};
    return moved;
}

/* Heap trimming: gives freed memory of programs, runs and messages back to the system. The allocator would keep free
 * memory in the middle of its heap. Thread: loop; the trimming itself runs on the pool. */

struct trimming {
    uv_timer_t timer;
    struct work work;
    uv_loop_t *loop;
    bool busy;
    uint64_t freed; /* bytes since the last trimming */
};

void trimming_init(struct trimming *t, uv_loop_t *loop);
void trimming_stop(struct trimming *t);
/* Notes that `bytes` were freed. */
void trimming_note(struct trimming *t, uint64_t bytes);

#endif
