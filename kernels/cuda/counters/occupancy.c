#include "occupancy.h"

#include <math.h>

/* Since compute capability 5: registers are given out by the warp in units of 256, to one of four parts of the
 * multiprocessor each; shared memory in units of 128 bytes (since 8.0). */
enum { WARP = 32, PARTS = 4, REGISTER_UNIT = 256, SHARED_UNIT = 128 };

static uint32_t round_up(uint32_t value, uint32_t unit)
{
    return (value + unit - 1) / unit * unit;
}

/* Blocks that the registers suffice for; UINT32_MAX: any number. */
static uint32_t by_registers(const struct occupancy_limits *limits, const struct counter_launch *launch, uint32_t warps)
{
    const uint32_t a_warp = round_up(launch->registers * WARP, REGISTER_UNIT);

    return a_warp ? limits->registers / PARTS / a_warp * PARTS / warps : UINT32_MAX;
}

static uint32_t by_shared(const struct occupancy_limits *limits, const struct counter_launch *launch)
{
    const uint32_t a_block =
        round_up(launch->static_shared + launch->dynamic_shared + limits->reserved_shared, SHARED_UNIT);

    return a_block ? limits->shared / a_block : UINT32_MAX;
}

void occupancy_find(const struct occupancy_limits *limits, struct counter_launch *launch)
{
    const uint64_t threads = (uint64_t)launch->block[0] * launch->block[1] * launch->block[2];
    const uint32_t warps = (uint32_t)((threads + WARP - 1) / WARP), most = limits->threads / WARP;
    uint32_t blocks[LIMITED_COUNT], least = LIMITED_BY_WARPS;

    launch->limiter = LIMITED_BY_WARPS;
    launch->occupancy_pct = NAN;
    if (!warps || !most)
        return;
    blocks[LIMITED_BY_WARPS] = most / warps;
    blocks[LIMITED_BY_BLOCKS] = limits->blocks;
    blocks[LIMITED_BY_REGISTERS] = by_registers(limits, launch, warps);
    blocks[LIMITED_BY_SHARED] = by_shared(limits, launch);
    for (uint32_t i = 0; i < LIMITED_COUNT; i++)
        if (blocks[i] < blocks[least])
            least = i;
    launch->limiter = least;
    launch->occupancy_pct = 100.0 * blocks[least] * warps / most;
}
