/* What always-on timing costs: a piece of work with and without it, in alternating rounds, or with `--side` one way
 * alone. Prints JSON: microseconds a call, with several under way (`timed`, `untimed`) and one after another
 * (`timed_blocking`, `untimed_blocking`), and what the daemon measured (`gpu`). */
#include <stdio.h>
#include <string.h>

#include "measure.h"
#include "options.h"
#include "work.h"

enum { DEPTH = 32, N_SIDES = 4 };

struct setting {
    struct bench_connection connection;
    const char *work, *dtype, *side;
    size_t rounds, calls, elements;
};

static int run_pipelined(struct work *work, const struct kops_options *options, size_t calls)
{
    kops_ticket tickets[DEPTH] = {0};
    struct kops_error error;

    for (size_t i = 0; i < calls + DEPTH; i++) {
        kops_ticket *ticket = &tickets[i % DEPTH];

        if (*ticket && check_kops(kops_wait(work->client, *ticket, 0, NULL, &error), &error, "wait"))
            return -1;
        *ticket = 0;
        if (i < calls && work_submit(work, options, ticket))
            return -1;
    }
    return 0;
}

static int run_blocking(struct work *work, const struct kops_options *options, size_t calls)
{
    for (size_t i = 0; i < calls; i++) {
        if (work_run(work, options, NULL))
            return -1;
    }
    return 0;
}

static const struct {
    const char *name;
    bool no_timing;
    int (*run)(struct work *work, const struct kops_options *options, size_t calls);
} SIDES[N_SIDES] = {
    {"timed", false, run_pipelined},
    {"untimed", true, run_pipelined},
    {"timed_blocking", false, run_blocking},
    {"untimed_blocking", true, run_blocking},
};

static bool is_wanted(const struct setting *setting, size_t side)
{
    return !setting->side || strcmp(setting->side, SIDES[side].name) == 0;
}

static int run_round(struct work *work, const struct setting *setting, size_t side, struct series *series)
{
    const struct kops_options options = {.no_timing = SIDES[side].no_timing};
    uint64_t start;

    if (SIDES[side].run(work, &options, setting->calls / 10 + 1))
        return -1;
    start = now_ns();
    if (SIDES[side].run(work, &options, setting->calls))
        return -1;
    series_add_us(series, (double)(now_ns() - start) * 1e-3 / (double)setting->calls);
    return 0;
}

static int run_gpu(struct work *work, struct series *series)
{
    const struct kops_options options = {0};
    struct kops_result result;

    if (work_run(work, &options, &result))
        return -1;
    series_add_us(series, result.gpu_us > 0 ? result.gpu_us : result.host_us);
    return 0;
}

static int measure_rounds(struct work *work, const struct setting *setting, struct series *series)
{
    const struct kops_options untimed = {.no_timing = true};

    if (run_pipelined(work, &untimed, setting->calls))
        return -1;
    for (size_t round = 0; round < setting->rounds; round++) {
        for (size_t side = 0; side < N_SIDES; side++) {
            if (is_wanted(setting, side) && run_round(work, setting, side, &series[side]))
                return -1;
        }
        if (!setting->side && run_gpu(work, &series[N_SIDES]))
            return -1;
    }
    return 0;
}

static int measure(struct work *work, const struct setting *setting)
{
    struct series series[N_SIDES + 1], *all[N_SIDES + 1];
    size_t n = 0;
    int r;

    for (size_t i = 0; i <= N_SIDES; i++) {
        series_init(&series[i], i < N_SIDES ? SIDES[i].name : "gpu", setting->rounds);
        if (i < N_SIDES ? is_wanted(setting, i) : !setting->side)
            all[n++] = &series[i];
    }
    r = measure_rounds(work, setting, series);
    if (!r)
        series_print(all, n);
    for (size_t i = 0; i <= N_SIDES; i++)
        series_deinit(&series[i]);
    return r;
}

int main(int argc, char **argv)
{
    struct setting setting = {.work = "add", .rounds = 20, .calls = 500, .elements = 1024};
    const struct bench_option options[] = {
        {.name = "socket", .text = &setting.connection.socket},
        {.name = "transport", .text = &setting.connection.transport},
        {.name = "spin", .text = &setting.connection.spin},
        {.name = "work", .text = &setting.work},
        {.name = "dtype", .text = &setting.dtype},
        {.name = "side", .text = &setting.side},
        {.name = "rounds", .count = &setting.rounds},
        {.name = "calls", .count = &setting.calls},
        {.name = "elements", .count = &setting.elements},
        {0},
    };
    struct work work;
    kops_client *client;
    int r;

    options_read(argc, argv, options);
    client = connect_or_exit(&setting.connection);
    r = work_make(&work, client, setting.work, setting.elements, setting.dtype);
    if (!r) {
        r = measure(&work, &setting) ? 1 : 0;
        work_release(&work);
    }
    kops_close(client);
    return r;
}
