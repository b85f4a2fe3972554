/* What always-on timing costs: adds of one size with and without it, in alternating rounds. Prints JSON: microseconds
 * an add, with several under way (`timed`, `untimed`) and one after another (`timed_blocking`, `untimed_blocking`), and
 * what the daemon measured (`gpu`). */
#include <stdio.h>

#include "measure.h"
#include "operands.h"
#include "options.h"

enum { DEPTH = 32, N_SIDES = 4 };

struct setting {
    struct bench_connection connection;
    size_t rounds, calls, elements;
};

static int run_pipelined(kops_client *client, const struct kops_request *request, size_t calls)
{
    kops_ticket tickets[DEPTH] = {0};
    struct kops_error error;

    for (size_t i = 0; i < calls + DEPTH; i++) {
        kops_ticket *ticket = &tickets[i % DEPTH];

        if (*ticket && check_kops(kops_wait(client, *ticket, 0, NULL, &error), &error, "add"))
            return -1;
        *ticket = 0;
        if (i < calls && check_kops(kops_submit(client, request, ticket, &error), &error, "submit"))
            return -1;
    }
    return 0;
}

static int run_blocking(kops_client *client, const struct kops_request *request, size_t calls)
{
    struct kops_error error;

    for (size_t i = 0; i < calls; i++) {
        if (check_kops(kops_run(client, request, NULL, &error), &error, "add"))
            return -1;
    }
    return 0;
}

static const struct {
    const char *name;
    bool no_timing;
    int (*run)(kops_client *client, const struct kops_request *request, size_t calls);
} SIDES[N_SIDES] = {
    {"timed", false, run_pipelined},
    {"untimed", true, run_pipelined},
    {"timed_blocking", false, run_blocking},
    {"untimed_blocking", true, run_blocking},
};

static int run_round(kops_client *client, struct kops_request *request, const struct setting *setting, size_t side,
                     struct series *series)
{
    uint64_t start;

    request->options.no_timing = SIDES[side].no_timing;
    if (SIDES[side].run(client, request, setting->calls / 10 + 1))
        return -1;
    start = now_ns();
    if (SIDES[side].run(client, request, setting->calls))
        return -1;
    series_add_us(series, (double)(now_ns() - start) * 1e-3 / (double)setting->calls);
    return 0;
}

static int measure(kops_client *client, struct kops_request *request, const struct setting *setting)
{
    struct series series[N_SIDES + 1], *all[N_SIDES + 1];
    struct kops_result result;
    struct kops_error error;
    int r = -1;

    for (size_t i = 0; i <= N_SIDES; i++) {
        series_init(&series[i], i < N_SIDES ? SIDES[i].name : "gpu", setting->rounds);
        all[i] = &series[i];
    }
    if (run_pipelined(client, request, setting->calls))
        goto free_series;
    for (size_t round = 0; round < setting->rounds; round++) {
        for (size_t side = 0; side < N_SIDES; side++) {
            if (run_round(client, request, setting, side, &series[side]))
                goto free_series;
        }
        request->options.no_timing = false;
        if (check_kops(kops_run(client, request, &result, &error), &error, "add"))
            goto free_series;
        series_add_us(&series[N_SIDES], result.gpu_us > 0 ? result.gpu_us : result.host_us);
    }
    series_print(all, N_SIDES + 1);
    r = 0;

free_series:
    for (size_t i = 0; i <= N_SIDES; i++)
        series_deinit(&series[i]);
    return r;
}

int main(int argc, char **argv)
{
    struct setting setting = {.rounds = 20, .calls = 500, .elements = 1024};
    const struct bench_option options[] = {
        {.name = "socket", .text = &setting.connection.socket},
        {.name = "transport", .text = &setting.connection.transport},
        {.name = "spin", .text = &setting.connection.spin},
        {.name = "rounds", .count = &setting.rounds},
        {.name = "calls", .count = &setting.calls},
        {.name = "elements", .count = &setting.elements},
        {0},
    };
    struct operands operands;
    kops_client *client;
    int64_t elements;
    int r = 1;

    options_read(argc, argv, options);
    elements = (int64_t)setting.elements;
    client = connect_or_exit(&setting.connection);
    if (!operands_make(&operands, client, "add", 1, &elements)) {
        r = measure(client, &operands.request, &setting) ? 1 : 0;
        operands_release(&operands);
    }
    kops_close(client);
    return r;
}
