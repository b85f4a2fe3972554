/* Heap trimming: gives freed memory of programs, runs and messages back to the system. The allocator would keep free
 * memory in the middle of its heap. Thread: loop; the trimming itself runs on the pool. */
#ifndef KOPS_SERVER_ACCOUNT_TRIMMING_H
#define KOPS_SERVER_ACCOUNT_TRIMMING_H

#include <stdbool.h>
#include <stdint.h>

#include "util/work.h"

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
