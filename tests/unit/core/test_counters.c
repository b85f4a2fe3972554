/* Counters: what is believed of another process, and the verdict. */
#include <math.h>

#include "core/counters.h"
#include "tests/support/unit.h"

static struct backend_counters counters_of(double memory, double sm)
{
    struct backend_counters c = {.warm = true};

    counters_clear(&c);
    c.values[COUNTER_MEMORY] = memory;
    c.values[COUNTER_SM] = sm;
    return c;
}

static void expect(const struct backend_counters *c, enum counter_verdict verdict, const char *says)
{
    char why[COUNTER_WHY_BYTES] = "";

    assert_int_equal(counters_judge(c, why), verdict);
    if (!strstr(why, says))
        fail_msg("\"%s\" does not say \"%s\"", why, says);
}

TEST(test_numbers_of_another_process)
{
    struct backend_counters c = counters_of(INFINITY, -1);

    c.values[COUNTER_DRAM] = NAN;
    c.values[COUNTER_L2_HIT] = 146;
    c.values[COUNTER_DURATION] = 1e300;
    c.values[COUNTER_ISSUE] = 40;
    c.stalls[STALL_WAIT] = -INFINITY;
    c.launch.limiter = 4000000000U;
    c.launch.occupancy_pct = -5;
    memset(c.kernel, 'x', sizeof(c.kernel));
    c.kernel[1] = '\n';
    counters_accept(&c);
    assert_true(isnan(c.values[COUNTER_MEMORY]) && isnan(c.values[COUNTER_SM]) && isnan(c.values[COUNTER_DRAM]));
    assert_true(isnan(c.values[COUNTER_DURATION]) && isnan(c.stalls[STALL_WAIT]) && isnan(c.launch.occupancy_pct));
    assert_true(c.values[COUNTER_L2_HIT] == 100 && c.values[COUNTER_ISSUE] == 40);
    assert_string_equal(counter_limiter_name(c.launch.limiter), "warps");
    assert_int_equal(strlen(c.kernel), sizeof(c.kernel) - 1);
    assert_int_equal(c.kernel[1], '?');
}

TEST(test_verdicts)
{
    static const struct {
        double memory, sm, dram, l2, tensor;
        enum counter_verdict verdict;
        const char *says;
    } cases[] = {
        {91, 40, 87.5, 80, 0, BOUND_BY_MEMORY, "DRAM is at 87.5 %"},
        {91, 40, 20, 80, 0, BOUND_BY_MEMORY, "L2 cache is at 80.0 %"},
        {91, 40, 20, 30, 0, BOUND_BY_MEMORY, "L1 or shared memory"},
        {60, 59.9, 20, 30, 0, BOUND_BY_MEMORY, ""},
        {61, 95, 0, 0, 0, BOUND_BY_COMPUTE, "pipeline of the multiprocessors is at 95.0 %"},
        {61, 95, 0, 0, 94, BOUND_BY_COMPUTE, "tensor cores work in 94.0 %"},
        {59.9, 59.9, 0, 0, 0, BOUND_BY_LATENCY, "neither memory"},
        {NAN, NAN, NAN, NAN, NAN, BOUND_BY_LATENCY, "neither memory"},
    };

    for (unsigned i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct backend_counters c = counters_of(cases[i].memory, cases[i].sm);

        assert_true(isnan(c.values[COUNTER_DRAM]) && isnan(counters_stall_pct(&c, STALL_BARRIER)));
        c.values[COUNTER_DRAM] = cases[i].dram;
        c.values[COUNTER_L2] = cases[i].l2;
        c.values[COUNTER_TENSOR] = cases[i].tensor;
        expect(&c, cases[i].verdict, cases[i].says);
    }
}

TEST(test_bound_by_latency)
{
    struct backend_counters c = counters_of(59.9, 59.9);

    c.stalls[STALL_SELECTED] = 10; /* of warps that do not wait */
    c.stalls[STALL_BARRIER] = 3;
    c.stalls[STALL_LONG_SCOREBOARD] = 7;
    assert_true(fabs(counters_stall_pct(&c, STALL_LONG_SCOREBOARD) - 35) < 1e-9);
    expect(&c, BOUND_BY_LATENCY, "35 % of their time for data of global");
    c.has_launch = true;
    c.multiprocessors = 132;
    c.launch.grid[0] = c.launch.grid[1] = c.launch.grid[2] = 4;
    expect(&c, BOUND_BY_LATENCY, "64 blocks for 132 multiprocessors");
    c.launch.grid[0] = 16;
    expect(&c, BOUND_BY_LATENCY, "data of global");
}
