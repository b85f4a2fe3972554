#include "recorded_support.h"

enum { N = 1000 };

struct told told;

static void on_timed(void *context, uint64_t token, const struct backend_times *times)
{
    told.count++;
    told.token = token;
    told.times = *times;
}

int setup_with_cupti(void **state)
{
    told.count = 0;
    test_config.cuda_cupti = KOPS_STANDIN_CUPTI;
    test_host.timed = on_timed;
    return setup(state);
}

struct custom open_custom(void)
{
    struct custom c = {.memory = device_memory(N * sizeof(float)), .stream = stream_open(), .code = load_code()};

    c.function = load_function(c.code, "custom_kernel");
    return c;
}

void make_custom(const struct custom *c, struct test_job *t, enum backend_timing timing)
{
    KERNEL_JOB(t, c->function, N, OUT(c->memory, N), IN(c->memory, N), INT(N));
    t->job.timing = timing;
    t->job.token = timing == TIMING_STATISTIC ? 77 : 0;
}
