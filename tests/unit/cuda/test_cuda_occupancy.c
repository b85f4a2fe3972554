/* Occupancy: known launches on a multiprocessor of compute capability 9.0. */
#include <math.h>

#include "counters/launches.h"
#include "tests/support/unit.h"

static const struct occupancy_limits SM_90 = {
    .threads = 2048, .blocks = 32, .registers = 65536, .shared = 233472, .reserved_shared = 1024};

struct known {
    uint32_t block, registers, shared;
    double pct;
    enum counter_limiter limiter;
};

TEST(test_known_launches)
{
    static const struct known all[] = {
        {256, 32, 0, 100, LIMITED_BY_WARPS},       {256, 40, 0, 75, LIMITED_BY_REGISTERS},
        {1024, 64, 0, 50, LIMITED_BY_REGISTERS},   {32, 16, 0, 50, LIMITED_BY_BLOCKS},
        {768, 32, 0, 75, LIMITED_BY_WARPS},        {256, 32, 48 << 10, 50, LIMITED_BY_SHARED},
        {128, 255, 0, 12.5, LIMITED_BY_REGISTERS}, {33, 16, 0, 100, LIMITED_BY_WARPS},
        {1024, 65, 0, 0, LIMITED_BY_REGISTERS},    {256, 32, 227 << 10, 12.5, LIMITED_BY_SHARED},
    };

    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
        struct counter_launch launch = {
            .block = {all[i].block, 1, 1}, .registers = all[i].registers, .dynamic_shared = all[i].shared};

        occupancy_find(&SM_90, &launch);
        if (launch.occupancy_pct != all[i].pct || launch.limiter != all[i].limiter)
            fail_msg("%u threads, %u registers, %u bytes: %g, %s", all[i].block, all[i].registers, all[i].shared,
                     launch.occupancy_pct, counter_limiter_name(launch.limiter));
    }
}

TEST(test_what_is_not_known)
{
    const struct occupancy_limits none = {0};
    struct counter_launch launch = {.block = {256, 1, 1}, .registers = 32};

    occupancy_find(&none, &launch);
    assert_true(isnan(launch.occupancy_pct));
    launch.block[2] = 0;
    occupancy_find(&SM_90, &launch);
    assert_true(isnan(launch.occupancy_pct));
}
