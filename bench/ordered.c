/* Ops as part of a CUDA stream, thousands in a row, against launches of an equal kernel in this process. Prints JSON;
 * exits with 77 where there is no GPU or the daemon has no ordered calls.
 *
 * A sample is the time of one round (issue everything, then wait for the stream) by the ops in it. `own`: each op waits
 * for the stream and the stream for it. `batch`: all ops of a round in one batch. `chain`: a kernel of this process, an
 * op, a kernel of this process, each reading what the one before wrote; the peer does all three itself. */
#include <stdio.h>
#include <string.h>

#include "kernel.h"
#include "measure.h"

struct setting {
    struct bench_connection connection;
    size_t rounds, ops, elements;
};

struct bench {
    struct add_kernel kernel;
    kops_client *client;
    size_t ops;
};

static int enqueue(struct bench *bench, unsigned a, unsigned b, unsigned out)
{
    const struct kops_tensor inputs[] = {bench->kernel.tensors[a], bench->kernel.tensors[b]};
    const struct kops_request request = {
        .op = "add", .inputs = inputs, .n_inputs = 2, .outputs = &bench->kernel.tensors[out], .n_outputs = 1};
    struct kops_error error;

    return check_kops(kops_enqueue(bench->client, &request, bench->kernel.stream, &error), &error, "enqueue");
}

static int finish(struct bench *bench)
{
    const struct driver *driver = &bench->kernel.driver;
    struct kops_error error;

    return driver_check(driver, driver->stream_synchronize(bench->kernel.stream), "synchronize") ||
                   check_kops(kops_synchronize(bench->client, bench->kernel.stream, 0, &error), &error, "synchronize")
               ? -1
               : 0;
}

static int launch(struct bench *bench, unsigned a, unsigned b, unsigned out)
{
    return driver_check(&bench->kernel.driver, add_kernel_launch(&bench->kernel, a, b, out), "launch");
}

static int round_own(struct bench *bench)
{
    for (size_t i = 0; i < bench->ops; i++) {
        if (enqueue(bench, 0, 1, 2))
            return -1;
    }
    return finish(bench);
}

static int round_batch(struct bench *bench)
{
    struct kops_error error;

    if (check_kops(kops_batch_begin(bench->client, bench->kernel.stream, &error), &error, "begin a batch"))
        return -1;
    for (size_t i = 0; i < bench->ops; i++) {
        if (enqueue(bench, 0, 1, 2))
            return -1;
    }
    if (check_kops(kops_batch_end(bench->client, bench->kernel.stream, &error), &error, "end a batch"))
        return -1;
    return finish(bench);
}

static int round_launches(struct bench *bench)
{
    for (size_t i = 0; i < bench->ops; i++) {
        if (launch(bench, 0, 1, 2))
            return -1;
    }
    return driver_check(&bench->kernel.driver, bench->kernel.driver.stream_synchronize(bench->kernel.stream),
                        "synchronize");
}

/* 2 = 0 + 1 here, 3 = 2 + 1 in the daemon, 0 = 3 + 1 here. */
static int round_chain(struct bench *bench)
{
    for (size_t i = 0; i < bench->ops; i++) {
        if (launch(bench, 0, 1, 2) || enqueue(bench, 2, 1, 3) || launch(bench, 3, 1, 0))
            return -1;
    }
    return finish(bench);
}

static int round_chain_here(struct bench *bench)
{
    for (size_t i = 0; i < bench->ops; i++) {
        if (launch(bench, 0, 1, 2) || launch(bench, 2, 1, 3) || launch(bench, 3, 1, 0))
            return -1;
    }
    return driver_check(&bench->kernel.driver, bench->kernel.driver.stream_synchronize(bench->kernel.stream),
                        "synchronize");
}

static const struct {
    const char *name;
    int (*round)(struct bench *bench);
} SIDES[] = {
    {"own", round_own},     {"batch", round_batch},           {"launches", round_launches},
    {"chain", round_chain}, {"chain_here", round_chain_here},
};

enum {
    N_SIDES = sizeof(SIDES) / sizeof(SIDES[0]),
    LEAST_ROUNDS = 4,
    SECONDS = 25 /* then no more rounds than those */
};

static int measure(struct bench *bench, const struct setting *setting)
{
    struct series series[N_SIDES], *all[N_SIDES];
    uint64_t until = now_ns() + SECONDS * UINT64_C(1000000000);
    int r = -1;

    for (size_t i = 0; i < N_SIDES; i++) {
        series_init(&series[i], SIDES[i].name, setting->rounds);
        all[i] = &series[i];
    }
    for (size_t round = 0; round <= setting->rounds && (round < LEAST_ROUNDS || now_ns() < until); round++) {
        for (size_t i = 0; i < N_SIDES; i++) {
            uint64_t start = now_ns();

            if (SIDES[i].round(bench))
                goto free_series;
            if (round > 0) /* the first one warms up */
                series_add_us(&series[i], (double)(now_ns() - start) * 1e-3 / (double)setting->ops);
        }
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
    struct setting setting = {.rounds = 20, .ops = 5000, .elements = 1024};
    const struct bench_option options[] = {
        {.name = "socket", .text = &setting.connection.socket},
        {.name = "transport", .text = &setting.connection.transport},
        {.name = "spin", .text = &setting.connection.spin},
        {.name = "rounds", .count = &setting.rounds},
        {.name = "ops", .count = &setting.ops},
        {.name = "elements", .count = &setting.elements},
        {0},
    };
    struct bench bench = {0};
    int r;

    options_read(argc, argv, options);
    r = add_kernel_prepare(&bench.kernel, setting.elements);
    if (r)
        return r;
    bench.ops = setting.ops;
    bench.client = connect_or_exit(&setting.connection);
    need_feature(bench.client, "ordered");
    r = add_kernel_register(&bench.kernel, bench.client) || measure(&bench, &setting) ? 1 : 0;
    add_kernel_release(&bench.kernel);
    kops_close(bench.client);
    add_kernel_free(&bench.kernel);
    return r;
}
