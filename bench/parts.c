/* Where the time of a blocking call goes: its wall clock here, beside the parts that its result names. Prints JSON:
 * microseconds of the call (`wall`) and of each part, and how much of the call is in none of them, or twice (`unnamed`,
 * per cent). */
#include <math.h>
#include <stdio.h>

#include "measure.h"
#include "options.h"
#include "work.h"

enum { N_PARTS = 6, WALL = N_PARTS, UNNAMED, N_SERIES };

struct setting {
    struct bench_connection connection;
    const char *work, *dtype;
    size_t calls, warmup, elements;
};

static const char *const NAMES[N_SERIES] = {"send", "recv_to_start", "wait", "gpu", "end", "reply", "wall", "unnamed"};

static int call(struct work *work, struct series *series)
{
    const struct kops_options options = {0};
    struct kops_result result;
    double wall, named = 0;
    uint64_t start = now_ns();

    if (work_run(work, &options, &result))
        return -1;
    wall = (double)(now_ns() - start) * 1e-3;

    const double parts[N_PARTS] = {result.send_us, result.recv_to_start_us, result.wait_us,
                                   result.gpu_us,  result.end_us,           result.reply_us};

    for (size_t i = 0; i < N_PARTS; i++) {
        const double us = isnan(parts[i]) ? 0 : parts[i];

        series_add_us(&series[i], us);
        named += us;
    }
    series_add_us(&series[WALL], wall);
    series_add_us(&series[UNNAMED], 100 * fabs(wall - named) / wall);
    return 0;
}

static int measure(struct work *work, const struct setting *setting)
{
    struct series series[N_SERIES], *all[N_SERIES];
    int r = 0;

    for (size_t i = 0; i < N_SERIES; i++) {
        series_init(&series[i], NAMES[i], setting->warmup + setting->calls);
        all[i] = &series[i];
    }
    for (size_t i = 0; !r && i < setting->warmup; i++)
        r = call(work, series);
    for (size_t i = 0; i < N_SERIES; i++)
        series[i].n = 0;
    for (size_t i = 0; !r && i < setting->calls; i++)
        r = call(work, series);
    if (!r)
        series_print(all, N_SERIES);
    for (size_t i = 0; i < N_SERIES; i++)
        series_deinit(&series[i]);
    return r;
}

int main(int argc, char **argv)
{
    struct setting setting = {.work = "add", .calls = 1000, .warmup = 200, .elements = 1024};
    const struct bench_option options[] = {
        {.name = "socket", .text = &setting.connection.socket},
        {.name = "transport", .text = &setting.connection.transport},
        {.name = "spin", .text = &setting.connection.spin},
        {.name = "work", .text = &setting.work},
        {.name = "dtype", .text = &setting.dtype},
        {.name = "calls", .count = &setting.calls},
        {.name = "warmup", .count = &setting.warmup},
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
