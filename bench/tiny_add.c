/* One small add on the GPU, blocking, through the daemon, against launching an equal kernel in this process and waiting
 * for its stream with timing events around it. Alternating blocks, since two processes that share a GPU without MPS
 * pay at every switch. Prints JSON; exits with 77 where there is no GPU. */
#include <stdio.h>

#include "kernel.h"
#include "measure.h"

enum { AFTER_A_TURN = 20 };

struct setting {
    struct bench_connection connection;
    size_t blocks, calls, warmup, elements;
    bool no_timing;
};

struct bench {
    struct add_kernel kernel;
    cu_event from, to;
    kops_client *client;
    struct kops_options options;
    struct series ours, ours_gpu, peer, peer_gpu;
};

static int run_ours(struct bench *bench, size_t calls, bool keep)
{
    const struct kops_tensor *t = bench->kernel.tensors;
    struct kops_result result;
    struct kops_error error;

    for (size_t i = 0; i < calls; i++) {
        uint64_t start = now_ns();

        if (check_kops(kops_add(bench->client, &t[0], &t[1], &t[2], &bench->options, &result, &error), &error, "add"))
            return -1;
        if (keep) {
            series_add(&bench->ours, start);
            series_add_us(&bench->ours_gpu, bench->options.no_timing ? 0 : result.gpu_us);
        }
    }
    return 0;
}

static int run_peer(struct bench *bench, size_t calls, bool keep)
{
    const struct driver *driver = &bench->kernel.driver;
    cu_stream stream = bench->kernel.stream;

    for (size_t i = 0; i < calls; i++) {
        uint64_t start = now_ns();
        float milliseconds = 0;

        if (driver->event_record(bench->from, stream) || add_kernel_launch(&bench->kernel, 0, 1, 2) ||
            driver->event_record(bench->to, stream) || driver->stream_synchronize(stream) ||
            driver->event_elapsed(&milliseconds, bench->from, bench->to)) {
            fprintf(stderr, "bench_tiny_add: the in-process launch failed\n");
            return -1;
        }
        if (keep) {
            series_add(&bench->peer, start);
            series_add_us(&bench->peer_gpu, (double)milliseconds * 1e3);
        }
    }
    return 0;
}

static int measure(struct bench *bench, const struct setting *setting)
{
    struct series *all[] = {&bench->ours, &bench->peer, &bench->ours_gpu, &bench->peer_gpu};

    if (run_ours(bench, setting->warmup, false) || run_peer(bench, setting->warmup, false))
        return -1;
    for (size_t block = 0; block < setting->blocks; block++) {
        if (run_ours(bench, AFTER_A_TURN, false) || run_ours(bench, setting->calls, true) ||
            run_peer(bench, AFTER_A_TURN, false) || run_peer(bench, setting->calls, true))
            return -1;
    }
    series_print(all, 4);
    return 0;
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
        {.name = "no-timing", .flag = &setting.no_timing},
        {0},
    };
    struct bench bench = {0};
    const struct driver *driver = &bench.kernel.driver;
    size_t room;
    int r;

    options_read(argc, argv, options);
    r = add_kernel_prepare(&bench.kernel, setting.elements);
    if (r)
        return r;
    bench.options.no_timing = setting.no_timing;
    room = setting.blocks * setting.calls;
    series_init(&bench.ours, "kops_add", room);
    series_init(&bench.peer, "launch_sync", room);
    series_init(&bench.ours_gpu, "kops_add_gpu", room);
    series_init(&bench.peer_gpu, "launch_sync_gpu", room);
    bench.client = connect_or_exit(&setting.connection);
    r = 1;
    if (!driver_check(driver, driver->event_create(&bench.from, 0), "create an event") &&
        !driver_check(driver, driver->event_create(&bench.to, 0), "create an event") &&
        !add_kernel_register(&bench.kernel, bench.client) && !measure(&bench, &setting))
        r = 0;

    add_kernel_release(&bench.kernel);
    kops_close(bench.client);
    add_kernel_free(&bench.kernel);
    series_deinit(&bench.peer_gpu);
    series_deinit(&bench.ours_gpu);
    series_deinit(&bench.peer);
    series_deinit(&bench.ours);
    return r;
}
