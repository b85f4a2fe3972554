/* One small add on the GPU, blocking, through the daemon (`add`), against launching an equal kernel in this process and
 * waiting for its stream with timing events around it (`launch`); both without timing too (`add_untimed`,
 * `launch_untimed`), and a request that does nothing (`ping`), to see where time goes. Alternating blocks, since two
 * processes that share a GPU without MPS pay at every switch. Prints JSON; exits with 77 where there is no GPU. */
#include <stdio.h>

#include "kernel.h"
#include "measure.h"

enum { AFTER_A_TURN = 20 };

struct setting {
    struct bench_connection connection;
    size_t blocks, calls, warmup, elements;
};

struct bench {
    struct add_kernel kernel;
    cu_event from, to;
    kops_client *client;
    double gpu_us; /* of the latest timed call */
};

static int add(struct bench *bench, bool timed)
{
    const struct kops_options options = {.no_timing = !timed};
    const struct kops_tensor *t = bench->kernel.tensors;
    struct kops_result result;
    struct kops_error error;

    if (check_kops(kops_add(bench->client, &t[0], &t[1], &t[2], &options, &result, &error), &error, "add"))
        return -1;
    bench->gpu_us = result.gpu_us;
    return 0;
}

static int add_timed(struct bench *bench)
{
    return add(bench, true);
}

static int add_untimed(struct bench *bench)
{
    return add(bench, false);
}

static int launch(struct bench *bench, bool timed)
{
    const struct driver *driver = &bench->kernel.driver;
    cu_stream stream = bench->kernel.stream;
    float milliseconds = 0;

    if ((timed && driver->event_record(bench->from, stream)) || add_kernel_launch(&bench->kernel, 0, 1, 2) ||
        (timed && driver->event_record(bench->to, stream)) || driver->stream_synchronize(stream) ||
        (timed && driver->event_elapsed(&milliseconds, bench->from, bench->to))) {
        fprintf(stderr, "bench_tiny_add: the in-process launch failed\n");
        return -1;
    }
    bench->gpu_us = (double)milliseconds * 1e3;
    return 0;
}

static int launch_timed(struct bench *bench)
{
    return launch(bench, true);
}

static int launch_untimed(struct bench *bench)
{
    return launch(bench, false);
}

static int ping(struct bench *bench)
{
    struct kops_error error;

    return check_kops(kops_ping(bench->client, 0, &error), &error, "ping");
}

static const struct {
    const char *name, *gpu_name; /* NULL: the GPU's time is not measured */
    int (*call)(struct bench *bench);
} SIDES[] = {
    {"add", "add_gpu", add_timed},
    {"launch", "launch_gpu", launch_timed},
    {"add_untimed", NULL, add_untimed},
    {"launch_untimed", NULL, launch_untimed},
    {"ping", NULL, ping},
};

enum { N_SIDES = sizeof(SIDES) / sizeof(SIDES[0]) };

/* `series` NULL: only warms up. */
static int run_block(struct bench *bench, size_t side, size_t calls, struct series *series, struct series *gpu)
{
    for (size_t i = 0; i < calls; i++) {
        uint64_t start = now_ns();

        if (SIDES[side].call(bench))
            return -1;
        if (series)
            series_add(series, start);
        if (gpu)
            series_add_us(gpu, bench->gpu_us);
    }
    return 0;
}

static int measure(struct bench *bench, const struct setting *setting)
{
    size_t room = setting->blocks * setting->calls, n = 0;
    struct series times[N_SIDES], gpu[N_SIDES], *all[2 * N_SIDES];
    int r = -1;

    for (size_t i = 0; i < N_SIDES; i++) {
        series_init(&times[i], SIDES[i].name, room);
        series_init(&gpu[i], SIDES[i].gpu_name, room);
        all[n++] = &times[i];
        if (SIDES[i].gpu_name)
            all[n++] = &gpu[i];
    }
    for (size_t block = 0; block < setting->blocks; block++) {
        for (size_t i = 0; i < N_SIDES; i++) {
            if (run_block(bench, i, block ? AFTER_A_TURN : setting->warmup, NULL, NULL) ||
                run_block(bench, i, setting->calls, &times[i], SIDES[i].gpu_name ? &gpu[i] : NULL))
                goto free_series;
        }
    }
    series_print(all, n);
    r = 0;

free_series:
    for (size_t i = 0; i < N_SIDES; i++) {
        series_deinit(&times[i]);
        series_deinit(&gpu[i]);
    }
    return r;
}

int main(int argc, char **argv)
{
    struct setting setting = {.blocks = 5, .calls = 500, .warmup = 500, .elements = 1024};
    const struct bench_option options[] = {
        {.name = "socket", .text = &setting.connection.socket},
        {.name = "transport", .text = &setting.connection.transport},
        {.name = "spin", .text = &setting.connection.spin},
        {.name = "blocks", .count = &setting.blocks},
        {.name = "calls", .count = &setting.calls},
        {.name = "warmup", .count = &setting.warmup},
        {.name = "elements", .count = &setting.elements},
        {0},
    };
    struct bench bench = {0};
    const struct driver *driver = &bench.kernel.driver;
    int r;

    options_read(argc, argv, options);
    r = add_kernel_prepare(&bench.kernel, setting.elements);
    if (r)
        return r;
    bench.client = connect_or_exit(&setting.connection);
    r = 1;
    if (!driver_check(driver, driver->event_create(&bench.from, 0), "create an event") &&
        !driver_check(driver, driver->event_create(&bench.to, 0), "create an event") &&
        !add_kernel_register(&bench.kernel, bench.client) && !measure(&bench, &setting))
        r = 0;
    add_kernel_release(&bench.kernel);
    kops_close(bench.client);
    add_kernel_free(&bench.kernel);
    return r;
}
