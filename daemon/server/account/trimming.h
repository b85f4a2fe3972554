/* Gives memory back to the system that programs, runs and messages have left: the allocator keeps what is free in the
 * middle of its heap for itself. Thread: loop; the work is the pool's. */
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
    uint64_t freed; /* bytes since the last time */
};

void trimming_init(struct trimming *t, uv_loop_t *loop);
void trimming_stop(struct trimming *t);
/* So much was freed. */
void trimming_note(struct trimming *t, uint64_t bytes);

#endif
