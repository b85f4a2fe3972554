/* CUPTI knows every metric, and takes them in few passes: asked of the real library, where there is one, which answers
 * for a chip that need not be here. */
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
