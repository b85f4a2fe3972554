/* Changes of threads between two calls of the C library, in a build with KOPS_POINTS: at basic blocks. */
#include <stdlib.h>

#include "preload.h"

static __thread uint32_t left;   /* blocks until the next change */
static __thread uint32_t closed; /* the C library holds a lock of its own that a call of ours waits for */

EXPORT void kops_simulation_point(void);

/* Where threads meet is not where they are long: so short distances come as often as long ones. */
static uint32_t distance(void)
{
    const uint64_t scale = 1U << world_random(world) % world->scales;

    return (uint32_t)(scale + world_random(world) % scale);
}

void kops_simulation_point(void)
{
    if (left > 1) {
        left--;
        return;
    }
    if (!simulated() || closed)
        return;
    if (left == 1)
        step_within();
    left = distance();
}

EXPORT int pthread_once(pthread_once_t *once, void (*run)(void))
{
    int r;

    closed++;
    r = REAL(pthread_once)(once, run);
    closed--;
    return r;
}
