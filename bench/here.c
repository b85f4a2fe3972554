/* Launches of a user's kernel in this process's context, thousands in a row, against launches of an equal kernel by the
 * driver. Prints JSON; exits with 77 where there is no GPU or the daemon hands out no code.
 *
 * A sample is the time of one round (launch everything, then wait for the stream) by the launches in it. */
#include <stdio.h>
#include <string.h>

#include <kops/kernel.h>

#include "kernel.h"
#include "measure.h"

struct setting {
    struct bench_connection connection;
    size_t rounds, ops, elements, calls;
};

struct bench {
    struct add_kernel add; /* the driver's side, and the vectors */
    kops_client *client;
    kops_kernel *kernel;
    size_t ops, calls;
};

static const char SOURCE[] =
    "extern \"C\" __global__ void add2_kernel(float *c, const float *a, const float *b, int n)\n"
    "{\n"
    "    int i = blockIdx.x * blockDim.x + threadIdx.x;\n"
    "    if (i < n) c[i] = a[i] + b[i];\n"
    "}\n";

static int define(struct bench *bench)
{
    static const struct kops_param params[] = {
        {.name = "c", .kind = KOPS_PARAM_OUT, .dtype = KOPS_F32, .elements = "n"},
        {.name = "a", .kind = KOPS_PARAM_IN, .dtype = KOPS_F32, .elements = "n"},
        {.name = "b", .kind = KOPS_PARAM_IN, .dtype = KOPS_F32, .elements = "n"},
        {.name = "n", .kind = KOPS_PARAM_SCALAR, .dtype = KOPS_I32},
    };
    const struct kops_source source = {.text = SOURCE};
    const struct kops_signature signature = {.entry = "add2_kernel",
                                             .params = params,
                                             .n_params = 4,
                                             .geometry = {.grid = {"ceil_div(n, 256)"}, .block = {"256"}}};
    struct kops_error error;

    return check_kops(kops_kernel_compile(bench->client, &source, &signature, &bench->kernel, NULL, &error), &error,
                      "compile");
}

static int round_here(struct bench *bench)
{
    const struct kops_tensor *t = bench->add.tensors;
    struct kops_argument args[] = {kops_arg_tensor(&t[2]), kops_arg_tensor(&t[0]), kops_arg_tensor(&t[1]),
                                   kops_arg_null()};
    const struct kops_launch_options how = {.options = {.where = KOPS_WHERE_HERE}};
    struct kops_error error;

    for (size_t i = 0; i < bench->ops; i++) {
        args[3] = kops_arg_int((int64_t)(bench->add.elements - i % bench->calls));
        if (check_kops(kops_kernel_enqueue(bench->kernel, args, 4, &how, bench->add.stream, &error), &error, "launch"))
            return -1;
    }
    return 0;
}

static int round_launches(struct bench *bench)
{
    for (size_t i = 0; i < bench->ops; i++)
        if (driver_check(&bench->add.driver, add_kernel_launch(&bench->add, 0, 1, 2), "launch"))
            return -1;
    return 0;
}

static const struct {
    const char *name;
    int (*round)(struct bench *bench);
} SIDES[] = {{"here", round_here}, {"launches", round_launches}};

enum { N_SIDES = sizeof(SIDES) / sizeof(SIDES[0]) };

static int one(struct bench *bench, size_t side, double *ret_us)
{
    const struct driver *driver = &bench->add.driver;
    const uint64_t start = now_ns();

    if (SIDES[side].round(bench) || driver_check(driver, driver->stream_synchronize(bench->add.stream), "synchronize"))
        return -1;
    *ret_us = (double)(now_ns() - start) * 1e-3 / (double)bench->ops;
    return 0;
}

static int measure(struct bench *bench, size_t rounds)
{
    struct series series[N_SIDES], *all[N_SIDES];
    double us;
    int r = -1;

    for (size_t i = 0; i < N_SIDES; i++) {
        series_init(&series[i], SIDES[i].name, rounds);
        all[i] = &series[i];
    }
    for (size_t round = 0; round <= rounds; round++)
        for (size_t i = 0; i < N_SIDES; i++) {
            if (one(bench, i, &us))
                goto free_series;
            if (round > 0) /* the first one warms up */
                series_add_us(&series[i], us);
        }
    series_print(all, N_SIDES);
    r = 0;

free_series:
    for (size_t i = 0; i < N_SIDES; i++)
        series_deinit(&series[i]);
    return r;
}

int main(int argc, char **argv)
{
    struct setting setting = {.rounds = 40, .ops = 500, .elements = 1024, .calls = 1};
    const struct bench_option options[] = {
        {.name = "socket", .text = &setting.connection.socket},
        {.name = "transport", .text = &setting.connection.transport},
        {.name = "spin", .text = &setting.connection.spin},
        {.name = "rounds", .count = &setting.rounds},
        {.name = "ops", .count = &setting.ops},
        {.name = "elements", .count = &setting.elements},
        {.name = "calls", .count = &setting.calls}, /* that differ, by turns */
        {0},
    };
    struct bench bench = {0};
    int r;

    options_read(argc, argv, options);
    r = add_kernel_prepare(&bench.add, setting.elements);
    if (r)
        return r;
    bench.ops = setting.ops;
    bench.calls = setting.calls ? setting.calls : 1;
    bench.client = connect_or_exit(&setting.connection);
    need_feature(bench.client, "code");
    r = add_kernel_register(&bench.add, bench.client) || define(&bench) || measure(&bench, setting.rounds) ? 1 : 0;
    kops_kernel_free(bench.kernel);
    add_kernel_release(&bench.add);
    kops_close(bench.client);
    add_kernel_free(&bench.add);
    return r;
}
