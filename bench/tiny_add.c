/* One small add on the GPU, blocking, through the daemon, against launching an equal kernel in this process and waiting
 * for its stream with timing events around it. Alternating blocks, since two processes that share a GPU without MPS
 * pay at every switch. Prints JSON; exits with 77 where there is no GPU. */
#include <getopt.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <kops/kops.h>

#include "driver.h"
#include "measure.h"

enum { EXIT_SKIPPED = 77, AFTER_A_TURN = 20, THREADS = 256 };

/* out[i] = a[i] + b[i] for i < n. */
static const char PTX[] = ".version 6.4\n"
                          ".target sm_75\n"
                          ".address_size 64\n"
                          ".visible .entry add(.param .u64 a, .param .u64 b, .param .u64 out, .param .u32 n)\n"
                          "{\n"
                          "  .reg .pred %p;\n"
                          "  .reg .b32 %r<6>;\n"
                          "  .reg .b64 %d<5>;\n"
                          "  .reg .f32 %f<4>;\n"
                          "  ld.param.u64 %d1, [a];\n"
                          "  ld.param.u64 %d2, [b];\n"
                          "  ld.param.u64 %d3, [out];\n"
                          "  ld.param.u32 %r5, [n];\n"
                          "  mov.u32 %r1, %ctaid.x;\n"
                          "  mov.u32 %r2, %ntid.x;\n"
                          "  mov.u32 %r3, %tid.x;\n"
                          "  mad.lo.u32 %r4, %r1, %r2, %r3;\n"
                          "  setp.ge.u32 %p, %r4, %r5;\n"
                          "  @%p bra end;\n"
                          "  mul.wide.u32 %d4, %r4, 4;\n"
                          "  add.u64 %d1, %d1, %d4;\n"
                          "  add.u64 %d2, %d2, %d4;\n"
                          "  add.u64 %d3, %d3, %d4;\n"
                          "  ld.global.f32 %f1, [%d1];\n"
                          "  ld.global.f32 %f2, [%d2];\n"
                          "  add.f32 %f3, %f1, %f2;\n"
                          "  st.global.f32 [%d3], %f3;\n"
                          "end:\n"
                          "  ret;\n"
                          "}\n";

struct setting {
    const char *socket;
    size_t blocks, calls, warmup, elements, spin_us;
};

/* What both sides work on, and the peer's own kernel. */
struct bench {
    struct driver driver;
    cu_deviceptr memory[3]; /* a, b, out */
    cu_function kernel;
    cu_stream stream;
    cu_event from, to;
    kops_client *client;
    kops_buffer *buffers[3];
    struct kops_tensor tensors[3];
    struct series ours, ours_gpu, peer, peer_gpu;
};

static int read_setting(struct setting *setting, int argc, char **argv)
{
    static const struct option options[] = {
        {"socket", required_argument, NULL, 's'},
        {"blocks", required_argument, NULL, 'b'},
        {"calls", required_argument, NULL, 'c'},
        {"warmup", required_argument, NULL, 'w'},
        {"elements", required_argument, NULL, 'n'},
        {"client-spin-us", required_argument, NULL, 'p'},
        {0},
    };
    int option;

    *setting = (struct setting){.blocks = 5, .calls = 500, .warmup = 500, .elements = 1024};
    while ((option = getopt_long(argc, argv, "", options, NULL)) != -1) {
        switch (option) {
        case 's':
            setting->socket = optarg;
            break;
        case 'b':
            setting->blocks = parse_count("--blocks", optarg);
            break;
        case 'c':
            setting->calls = parse_count("--calls", optarg);
            break;
        case 'w':
            setting->warmup = parse_count("--warmup", optarg);
            break;
        case 'n':
            setting->elements = parse_count("--elements", optarg);
            break;
        case 'p':
            setting->spin_us = parse_count("--client-spin-us", optarg);
            break;
        default:
            fprintf(stderr,
                    "usage: %s [--socket PATH] [--blocks N] [--calls N] [--warmup N] [--elements N]"
                    " [--client-spin-us N]\n",
                    argv[0]);
            return -1;
        }
    }
    return 0;
}

static int prepare_peer(struct bench *bench, const struct setting *setting)
{
    const struct driver *driver = &bench->driver;
    cu_module module;

    for (size_t i = 0; i < 3; i++) {
        if (driver_check(driver, driver->memory_alloc(&bench->memory[i], setting->elements * sizeof(float)), "alloc") ||
            driver_check(driver, driver->memory_set(bench->memory[i], 0x3f800000, setting->elements), "set"))
            return -1;
    }
    if (driver_check(driver, driver->module_load(&module, PTX), "load the kernel") ||
        driver_check(driver, driver->module_function(&bench->kernel, module, "add"), "find the kernel") ||
        driver_check(driver, driver->stream_create(&bench->stream, 1), "create a stream") ||
        driver_check(driver, driver->event_create(&bench->from, 0), "create an event") ||
        driver_check(driver, driver->event_create(&bench->to, 0), "create an event") ||
        driver_check(driver, driver->stream_synchronize(NULL), "synchronize"))
        return -1;
    return 0;
}

static int prepare_ours(struct bench *bench, const struct setting *setting)
{
    struct kops_connect_options options = {.socket = setting->socket, .spin_us = (unsigned)setting->spin_us};
    struct kops_error error;

    if (kops_connect(&options, &bench->client, &error))
        goto failed;
    for (size_t i = 0; i < 3; i++) {
        if (kops_buffer_register_cuda(bench->client, bench->memory[i], KOPS_ACCESS_RW, &bench->buffers[i], &error))
            goto failed;
        bench->tensors[i] = kops_vector(bench->buffers[i], KOPS_F32, (int64_t)setting->elements);
    }
    return 0;

failed:
    fprintf(stderr, "bench_tiny_add: %s\n", error.message);
    return -1;
}

static int run_ours(struct bench *bench, size_t calls, bool keep)
{
    struct kops_result result;
    struct kops_error error;

    for (size_t i = 0; i < calls; i++) {
        uint64_t start = now_ns();

        if (kops_add(bench->client, &bench->tensors[0], &bench->tensors[1], &bench->tensors[2], NULL, &result,
                     &error)) {
            fprintf(stderr, "bench_tiny_add: %s\n", error.message);
            return -1;
        }
        if (keep) {
            series_add(&bench->ours, start);
            series_add_us(&bench->ours_gpu, result.gpu_us);
        }
    }
    return 0;
}

static int run_peer(struct bench *bench, const struct setting *setting, size_t calls, bool keep)
{
    const struct driver *driver = &bench->driver;
    uint32_t n = (uint32_t)setting->elements;
    void *parameters[] = {&bench->memory[0], &bench->memory[1], &bench->memory[2], &n};

    for (size_t i = 0; i < calls; i++) {
        uint64_t start = now_ns();
        float milliseconds;

        if (driver->event_record(bench->from, bench->stream) ||
            driver->launch(bench->kernel, (n + THREADS - 1) / THREADS, 1, 1, THREADS, 1, 1, 0, bench->stream,
                           parameters, NULL) ||
            driver->event_record(bench->to, bench->stream) || driver->stream_synchronize(bench->stream) ||
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

    if (run_ours(bench, setting->warmup, false) || run_peer(bench, setting, setting->warmup, false))
        return -1;
    for (size_t block = 0; block < setting->blocks; block++) {
        if (run_ours(bench, AFTER_A_TURN, false) || run_ours(bench, setting->calls, true) ||
            run_peer(bench, setting, AFTER_A_TURN, false) || run_peer(bench, setting, setting->calls, true))
            return -1;
    }
    series_print(all, 4);
    return 0;
}

int main(int argc, char **argv)
{
    struct setting setting;
    struct bench bench = {0};
    char why[256];
    size_t room;
    int r = 1;

    if (read_setting(&setting, argc, argv))
        return 2;
    if (driver_load(&bench.driver, why, sizeof(why))) {
        fprintf(stderr, "%s\n", why);
        return EXIT_SKIPPED;
    }
    room = setting.blocks * setting.calls;
    series_init(&bench.ours, "kops_add", room);
    series_init(&bench.peer, "launch_sync", room);
    series_init(&bench.ours_gpu, "kops_add_gpu", room);
    series_init(&bench.peer_gpu, "launch_sync_gpu", room);
    if (!prepare_peer(&bench, &setting) && !prepare_ours(&bench, &setting) && !measure(&bench, &setting))
        r = 0;

    for (size_t i = 0; i < 3; i++)
        kops_buffer_release(bench.buffers[i]);
    kops_close(bench.client);
    for (size_t i = 0; i < 3; i++) {
        if (bench.memory[i])
            bench.driver.memory_free(bench.memory[i]);
    }
    series_deinit(&bench.peer_gpu);
    series_deinit(&bench.ours_gpu);
    series_deinit(&bench.peer);
    series_deinit(&bench.ours);
    return r;
}
