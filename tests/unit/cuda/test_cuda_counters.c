/* Counters: CUPTI knows every metric, asked of the real library, where there is one, which answers for a chip that need
 * not be here; and the occupancy of known launches on a multiprocessor of compute capability 9.0. */
#include <math.h>

#include "counters/count.h"
#include "counters/profiler.h"
#include "counters/session.h"
#include "tests/support/unit.h"

static const struct cupti_profiling *cupti;

static void *host_of(const char *chip)
{
    struct cupti_initialize initialize = {.size = CUPTI_SIZE(cupti_initialize, none)};
    struct cupti_host_initialize host = {.size = CUPTI_SIZE(cupti_host_initialize, host), .chip = chip};
    struct error e;

    cupti = cupti_get(&e);
    if (!cupti) {
        print_message("%s\n", e.message);
        skip();
    }
    cupti->initialize(&initialize); /* fails without a driver; the host's side works all the same */
    assert_int_equal(cupti->host_initialize(&host), 0);
    return host.host;
}

TEST(test_every_metric_is_known)
{
    static const char *const chips[] = {"GH100", "GA100", "AD102"};

    for (size_t c = 0; c < sizeof(chips) / sizeof(chips[0]); c++) {
        void *host = host_of(chips[c]);
        const char *names[METRICS_MAX];
        struct cupti_add_metrics add = {
            .size = CUPTI_SIZE(cupti_add_metrics, n), .host = host, .metrics = names, .n = METRICS_MAX};

        for (unsigned i = 0; i < METRICS_MAX; i++) {
            struct cupti_metric_properties ask = {
                .size = CUPTI_SIZE(cupti_metric_properties, type), .host = host, .metric = cuda_metric(i)->name};

            assert_non_null(cuda_metric(i)->name);
            names[i] = ask.metric;
            if (cupti->metric_properties(&ask) == 0)
                continue;
            if (c == 0)
                fail_msg("%s has no %s", chips[c], ask.metric);
            names[i] = NULL; /* another generation may lack some */
        }
        if (c == 0)
            assert_int_equal(cupti->add_metrics(&add), 0);
    }
}

TEST(test_an_unknown_metric_is_not_known)
{
    struct cupti_metric_properties ask = {
        .size = CUPTI_SIZE(cupti_metric_properties, type), .host = host_of("GH100"), .metric = "sm__no_such.sum"};

    assert_int_not_equal(cupti->metric_properties(&ask), 0);
}

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
