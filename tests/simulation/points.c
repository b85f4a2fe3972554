/* Changes of threads between two calls of the C library, in a build with KOPS_POINTS: at basic blocks. */
#include <stdlib.h>

#include "preload.h"

static __thread uint32_t left;   /* blocks until the next change */
static __thread uint32_t closed; /* the C library holds a lock of its own that a call of ours waits for */

EXPORT void kops_simulation_point(uintptr_t block);

/* Where threads meet is not where they are long: so short distances come as often as long ones. */
static uint32_t distance(void)
{
    const uint64_t scale = 1U << world_random(world) % world->scales;

    return (uint32_t)(scale + world_random(world) % scale);
}

/* Of programs, not of libraries, which lie elsewhere in each process. */
static void note(uintptr_t block)
{
    enum { LIBRARIES = 40 };

    if (block >> LIBRARIES <= 0x5f)
        world->blocks[((block ^ program_hash) * 0x9e3779b97f4a7c15U) >> (64 - BLOCKS_BITS)] = 1;
    if (world->trace_blocks && simulated())
        world_tell(world, "%llx\n", (unsigned long long)block & 0xffffff);
}

void kops_simulation_point(uintptr_t block)
{
    if (!me)
        return;
    note(block);
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
