/* Twenty small adds as a program and as a sequence, blocking, against twenty launches and a CUDA graph of this process,
 * each with a synchronisation. Alternating blocks. Prints JSON; exits with 77 where there is no GPU or the daemon keeps
 * no programs. A driver without graphs leaves that side out. */
#include <stdio.h>

#include "kernel.h"
#include "measure.h"

enum { AFTER_A_TURN = 10, OPS = 20, MODE_RELAXED = 2, N_SIDES = 4 };

struct setting {
    struct bench_connection connection;
    size_t blocks, calls, elements;
};

struct bench {
    struct add_kernel kernel;
    kops_client *client;
    kops_program *program;
    struct kops_sequence sequence;
    cu_graph_exec graph;
};

/* 2 = 0 + 1, 3 = 2 + 1, 2 = 3 + 1, …: each op needs the one before. */
static const uint32_t FIRST_IN[] = {0, 1}, ODD_IN[] = {2, 1}, EVEN_IN[] = {3, 1}, TWO[] = {2}, THREE[] = {3};

static const uint32_t *inputs_of(size_t op)
{
    return op == 0 ? FIRST_IN : op % 2 ? ODD_IN : EVEN_IN;
}

static const uint32_t *output_of(size_t op)
{
    return op % 2 ? THREE : TWO;
}

static int launch_all(struct bench *bench)
{
    for (size_t i = 0; i < OPS; i++) {
        const uint32_t *in = inputs_of(i);

        if (driver_check(&bench->kernel.driver, add_kernel_launch(&bench->kernel, in[0], in[1], output_of(i)[0]),
                         "launch"))
            return -1;
    }
    return 0;
}

static int synchronize(struct bench *bench)
{
    return driver_check(&bench->kernel.driver, bench->kernel.driver.stream_synchronize(bench->kernel.stream),
                        "synchronize");
}

static int call_program(struct bench *bench)
{
    struct kops_error error;

    return check_kops(kops_program_run(bench->program, NULL, 0, NULL, NULL, &error), &error, "run a program");
}

static int call_sequence(struct bench *bench)
{
    struct kops_error error;

    return check_kops(kops_sequence_run(bench->client, &bench->sequence, NULL, NULL, &error), &error, "sequence");
}

static int call_launches(struct bench *bench)
{
    return launch_all(bench) || synchronize(bench) ? -1 : 0;
}

static int call_graph(struct bench *bench)
{
    return driver_check(&bench->kernel.driver, bench->kernel.driver.graph_launch(bench->graph, bench->kernel.stream),
                        "launch a graph") ||
                   synchronize(bench)
               ? -1
               : 0;
}

static const struct {
    const char *name;
    int (*call)(struct bench *bench);
} SIDES[N_SIDES] = {
    {"program", call_program},
    {"sequence", call_sequence},
    {"launches", call_launches},
    {"graph", call_graph},
};

static int capture(struct bench *bench)
{
    const struct driver *driver = &bench->kernel.driver;
    cu_graph graph;

    if (!driver->capture_begin || !driver->capture_end || !driver->graph_instantiate || !driver->graph_launch)
        return 0;
    if (driver_check(driver, driver->capture_begin(bench->kernel.stream, MODE_RELAXED), "begin a capture") ||
        launch_all(bench) || driver_check(driver, driver->capture_end(bench->kernel.stream, &graph), "end a capture") ||
        driver_check(driver, driver->graph_instantiate(&bench->graph, graph, 0), "instantiate a graph"))
        return -1;
    return 0;
}

static int define(struct bench *bench, struct kops_step *steps)
{
    struct kops_error error;

    for (size_t i = 0; i < OPS; i++)
        steps[i] = (struct kops_step){
            .op = "add", .inputs = inputs_of(i), .n_inputs = 2, .outputs = output_of(i), .n_outputs = 1};
    bench->sequence = (struct kops_sequence){bench->kernel.tensors, ADD_VECTORS, steps, OPS};
    return check_kops(kops_program_define(bench->client, &bench->sequence, NULL, &bench->program, &error), &error,
                      "define a program");
}

static int run_block(struct bench *bench, size_t side, size_t calls, struct series *series)
{
    for (size_t i = 0; i < calls; i++) {
        uint64_t start = now_ns();

        if (SIDES[side].call(bench))
            return -1;
        if (series)
            series_add(series, start);
    }
    return 0;
}

static int measure(struct bench *bench, const struct setting *setting)
{
    size_t n = bench->graph ? N_SIDES : N_SIDES - 1;
    struct series series[N_SIDES], *all[N_SIDES];
    int r = -1;

    for (size_t i = 0; i < N_SIDES; i++) {
        series_init(&series[i], SIDES[i].name, setting->blocks * setting->calls);
        all[i] = &series[i];
    }
    for (size_t block = 0; block < setting->blocks; block++) {
        for (size_t i = 0; i < n; i++) {
            if (run_block(bench, i, block ? AFTER_A_TURN : 10 * AFTER_A_TURN, NULL) ||
                run_block(bench, i, setting->calls, &series[i]))
                goto free_series;
        }
    }
    series_print(all, n);
    r = 0;

free_series:
    for (size_t i = 0; i < N_SIDES; i++)
        series_deinit(&series[i]);
    return r;
}

int main(int argc, char **argv)
{
    struct setting setting = {.blocks = 5, .calls = 200, .elements = 1024};
    const struct bench_option options[] = {
        {.name = "socket", .text = &setting.connection.socket},
        {.name = "transport", .text = &setting.connection.transport},
        {.name = "spin", .text = &setting.connection.spin},
        {.name = "blocks", .count = &setting.blocks},
        {.name = "calls", .count = &setting.calls},
        {.name = "elements", .count = &setting.elements},
        {0},
    };
    struct kops_step steps[OPS];
    struct bench bench = {0};
    int r;

    options_read(argc, argv, options);
    r = add_kernel_prepare(&bench.kernel, setting.elements);
    if (r)
        return r;
    bench.client = connect_or_exit(&setting.connection);
    need_feature(bench.client, "program");
    r = capture(&bench) || add_kernel_register(&bench.kernel, bench.client) || define(&bench, steps) ||
                measure(&bench, &setting)
            ? 1
            : 0;
    kops_program_release(bench.program);
    add_kernel_release(&bench.kernel);
    kops_close(bench.client);
    add_kernel_free(&bench.kernel);
    return r;
}
