/* Calls on memory of the daemon, from a process without a context on a GPU: an add or a user's kernel of `--elements`
 * f32, or a gemm of that cubed. Prints JSON: microseconds a call.
 *
 *     bench_calls --rounds N --calls N [--untimed]   rounds of calls, several requests under way
 *     bench_calls --client                           one of many clients: says `"ready"`; reads a line, two moments of
 *                                                    CLOCK_MONOTONIC in ns, and makes blocking adds from the first to
 *                                                    the second; a further line is a further round */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "bench.h"

enum { DEPTH = 32, WARMUP = 100, SAMPLES = 1 << 20 };

struct bench {
    kops_client *client;
    kops_buffer *buffers[3]; /* owned */
    struct kops_tensor tensors[3];
    struct kops_request request;
    kops_kernel *kernel; /* owned; NULL: an op */
    size_t calls;
};

static int make(struct bench *bench, const char *work, size_t elements, bool bf16, bool untimed)
{
    const bool gemm = strcmp(work, "gemm") == 0;
    const int64_t shape[] = {(int64_t)elements, (int64_t)elements};
    const enum kops_dtype dtype = bf16 ? KOPS_BF16 : KOPS_F32;
    size_t bytes = kops_dtype_size(dtype) * elements * (gemm ? elements : 1);
    struct kops_error error;

    for (size_t i = 0; i < 3; i++) {
        if (check_kops(kops_buffer_alloc(bench->client, bytes, NULL, &bench->buffers[i], &error), &error, "alloc"))
            return 1;
        bench->tensors[i] = kops_tensor_of(bench->buffers[i], dtype, gemm ? 2 : 1, shape);
    }
    bench->request = (struct kops_request){.op = gemm ? "gemm" : "add",
                                           .inputs = bench->tensors,
                                           .n_inputs = 2,
                                           .outputs = &bench->tensors[2],
                                           .n_outputs = 1,
                                           .options = {.no_timing = untimed}};
    return strcmp(work, "kernel") == 0 ? user_add_compile(bench->client, &bench->kernel) : 0;
}

/* ---- rounds ---- */

static int submit(struct bench *bench, kops_ticket *ret_ticket)
{
    const struct kops_tensor *t = bench->tensors;
    const struct kops_argument args[] = {kops_arg_tensor(&t[2]), kops_arg_tensor(&t[0]), kops_arg_tensor(&t[1]),
                                         kops_arg_int(t[0].shape[0])};
    const struct kops_launch_options how = {.options = bench->request.options};
    struct kops_error error;
    enum kops_code code = bench->kernel ? kops_kernel_submit(bench->kernel, args, 4, &how, ret_ticket, &error)
                                        : kops_submit(bench->client, &bench->request, ret_ticket, &error);

    return check_kops(code, &error, "submit");
}

static int call_all(void *context, const void *how)
{
    struct bench *bench = context;
    kops_ticket tickets[DEPTH] = {0};
    struct kops_error error;

    (void)how;
    for (size_t i = 0; i < bench->calls + DEPTH; i++) {
        kops_ticket *ticket = &tickets[i % DEPTH];

        if (*ticket && check_kops(kops_wait(bench->client, *ticket, 0, NULL, &error), &error, "wait"))
            return -1;
        *ticket = 0;
        if (i < bench->calls && submit(bench, ticket))
            return -1;
    }
    return 0;
}

/* ---- one of many clients ---- */

static int call(struct bench *bench)
{
    struct kops_error error;

    return check_kops(kops_run(bench->client, &bench->request, NULL, &error), &error, "add");
}

static int work_between(struct bench *bench, uint64_t begin, uint64_t end)
{
    uint64_t now = now_ns();
    struct series series;

    series_init(&series, "calls", SAMPLES);
    if (now < begin)
        nanosleep(&(struct timespec){.tv_sec = (time_t)((begin - now) / 1000000000),
                                     .tv_nsec = (long)((begin - now) % 1000000000)},
                  NULL);
    for (now = now_ns(); now < end;) {
        uint64_t before = now;

        if (call(bench))
            return -1;
        now = now_ns();
        series_add_us(&series, (double)(now - before) * 1e-3);
    }
    series_print(&series, 1);
    series_deinit(&series);
    return 0;
}

static int be_client(struct bench *bench)
{
    uint64_t begin, end;

    for (size_t i = 0; i < WARMUP; i++) {
        if (call(bench))
            return 1;
    }
    for (printf("\"ready\"\n"); fflush(stdout), scanf(" [%" SCNu64 ", %" SCNu64 "]", &begin, &end) == 2;) {
        if (work_between(bench, begin, end))
            return 1;
    }
    return 0;
}

int main(int argc, char **argv)
{
    static const struct side side = {"calls", call_all, NULL};
    struct turns turns = {.blocks = 20, .calls = 1, .warmup = 1, .again = 1, .per = 500};
    struct bench bench = {0};
    const char *socket = NULL, *work = "add";
    size_t elements = 1024;
    bool bf16 = false, untimed = false, client = false;
    const struct bench_option options[] = {
        {.name = "socket", .text = &socket},
        {.name = "work", .text = &work},
        {.name = "bf16", .flag = &bf16},
        {.name = "untimed", .flag = &untimed},
        {.name = "rounds", .count = &turns.blocks},
        {.name = "calls", .count = &turns.per},
        {.name = "elements", .count = &elements},
        {.name = "client", .flag = &client},
        {0},
    };
    int r;

    options_read(argc, argv, options);
    bench.calls = turns.per;
    bench.client = connect_or_exit(socket, NULL, NULL);
    r = make(&bench, work, elements, bf16, untimed);
    if (!r)
        r = client ? be_client(&bench) : sides_measure(&side, 1, &bench, &turns);
    kops_kernel_free(bench.kernel);
    for (size_t i = 0; i < 3; i++)
        kops_buffer_release(bench.buffers[i]);
    kops_close(bench.client);
    return r;
}
