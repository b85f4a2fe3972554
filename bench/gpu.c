/* The daemon's work on a GPU beside the same work in this process, on the same vectors. Prints JSON; exits with 77
 * without a GPU, or where the daemon lacks the feature.
 *
 *     --work tiny_add   a blocking add, and a launch of an equal kernel with timing events and a wait
 *     --work ordered    ops as part of a CUDA stream, `--ops` in a row, then a wait: alone, in a batch, in a chain
 *                       with kernels of this process; against launches
 *     --work program    twenty adds as a program, against twenty launches and a CUDA graph, each with a wait
 *     --work here       launches of a user's kernel in this process, `--ops` in a row, then a wait, against launches
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench.h"
#include "kernel.h"

enum { MODE_RELAXED = 2, SIDES_MAX = 5, STEPS_MAX = 20 };

struct bench {
    struct add_kernel kernel;
    kops_client *client;
    size_t ops;
    cu_handle from, to; /* events */
    kops_program *program;
    cu_handle graph; /* executable; NULL: a driver without graphs */
    kops_kernel *user;
};

static int synchronize(struct bench *bench)
{
    const struct driver *driver = &bench->kernel.driver;

    return driver_check(driver, driver->stream_synchronize(bench->kernel.stream), "synchronize");
}

/* ---- tiny_add ---- */

static int add(void *context, const void *how)
{
    struct bench *bench = context;
    const struct kops_tensor *t = bench->kernel.tensors;
    struct kops_result result;
    struct kops_error error;

    (void)how;
    return check_kops(kops_add(bench->client, &t[0], &t[1], &t[2], NULL, &result, &error), &error, "add");
}

static int launch_and_wait(void *context, const void *how)
{
    struct bench *bench = context;
    const struct driver *driver = &bench->kernel.driver;
    float milliseconds;

    (void)how;
    return driver_check(driver, driver->event_record(bench->from, bench->kernel.stream), "record") ||
                   add_kernel_launch(&bench->kernel, 0, 1, 2) ||
                   driver_check(driver, driver->event_record(bench->to, bench->kernel.stream), "record") ||
                   synchronize(bench) ||
                   driver_check(driver, driver->event_elapsed(&milliseconds, bench->from, bench->to), "elapsed")
               ? -1
               : 0;
}

static int make_events(struct bench *bench)
{
    const struct driver *driver = &bench->kernel.driver;

    return driver_check(driver, driver->event_create(&bench->from, 0), "create an event") ||
                   driver_check(driver, driver->event_create(&bench->to, 0), "create an event")
               ? 1
               : 0;
}

/* ---- ordered, here, program ---- */

/* Steps that are done `--ops` times before a wait. */
struct round {
    bool batch;   /* ops of the daemon's are in one */
    bool ordered; /* there are ops of the daemon's */
    struct step {
        enum { NOTHING, LAUNCH, ENQUEUE, HERE } how;
        uint32_t in[2], out; /* vectors */
    } steps[STEPS_MAX];
};

static const struct round OWN = {.ordered = true, .steps = {{ENQUEUE, {0, 1}, 2}}},
                          BATCH = {.ordered = true, .batch = true, .steps = {{ENQUEUE, {0, 1}, 2}}},
                          LAUNCHES = {.steps = {{LAUNCH, {0, 1}, 2}}},
                          CHAIN = {.ordered = true,
                                   .steps = {{LAUNCH, {0, 1}, 2}, {ENQUEUE, {2, 1}, 3}, {LAUNCH, {3, 1}, 0}}},
                          CHAIN_HERE = {.steps = {{LAUNCH, {0, 1}, 2}, {LAUNCH, {2, 1}, 3}, {LAUNCH, {3, 1}, 0}}},
                          OWN_HERE = {.steps = {{HERE, {0, 1}, 2}}};

/* The steps of a program, each of which needs the one before; make_program() fills them in. */
static struct round program_steps;

static int enqueue(struct bench *bench, const struct step *step)
{
    const struct kops_tensor *t = bench->kernel.tensors, inputs[] = {t[step->in[0]], t[step->in[1]]};
    const struct kops_request request = {
        .op = "add", .inputs = inputs, .n_inputs = 2, .outputs = &t[step->out], .n_outputs = 1};
    struct kops_error error;

    return check_kops(kops_enqueue(bench->client, &request, bench->kernel.stream, &error), &error, "enqueue");
}

static int launch_here(struct bench *bench, const struct step *step)
{
    const struct kops_tensor *t = bench->kernel.tensors;
    const struct kops_argument args[] = {kops_arg_tensor(&t[step->out]), kops_arg_tensor(&t[step->in[0]]),
                                         kops_arg_tensor(&t[step->in[1]]),
                                         kops_arg_int((int64_t)bench->kernel.elements)};
    const struct kops_launch_options how = {.options = {.where = KOPS_WHERE_HERE}};
    struct kops_error error;

    return check_kops(kops_kernel_enqueue(bench->user, args, 4, &how, bench->kernel.stream, &error), &error, "launch");
}

static int do_steps(struct bench *bench, const struct step *steps)
{
    for (const struct step *step = steps; step < steps + STEPS_MAX && step->how; step++) {
        if (step->how == LAUNCH ? add_kernel_launch(&bench->kernel, step->in[0], step->in[1], step->out)
            : step->how == HERE ? launch_here(bench, step)
                                : enqueue(bench, step))
            return -1;
    }
    return 0;
}

static int do_round(void *context, const void *how)
{
    struct bench *bench = context;
    const struct round *round = how;
    cu_handle stream = bench->kernel.stream;
    struct kops_error error;

    if (round->batch && check_kops(kops_batch_begin(bench->client, stream, &error), &error, "begin a batch"))
        return -1;
    for (size_t i = 0; i < bench->ops; i++) {
        if (do_steps(bench, round->steps))
            return -1;
    }
    if (round->batch && check_kops(kops_batch_end(bench->client, stream, &error), &error, "end a batch"))
        return -1;
    if (synchronize(bench))
        return -1;
    return round->ordered ? check_kops(kops_synchronize(bench->client, stream, 0, &error), &error, "synchronize") : 0;
}

static int make_user_kernel(struct bench *bench)
{
    return user_add_compile(bench->client, &bench->user);
}

static int call_program(void *bench, const void *how)
{
    struct kops_error error;

    (void)how;
    return check_kops(kops_program_run(((struct bench *)bench)->program, NULL, 0, NULL, NULL, &error), &error,
                      "run a program");
}

static int call_graph(void *context, const void *how)
{
    struct bench *bench = context;
    const struct driver *driver = &bench->kernel.driver;

    (void)how;
    if (driver_check(driver, driver->graph_launch(bench->graph, bench->kernel.stream), "launch a graph"))
        return -1;
    return synchronize(bench);
}

static int make_program(struct bench *bench)
{
    const struct driver *driver = &bench->kernel.driver;
    struct kops_step steps[STEPS_MAX];
    const struct kops_sequence sequence = {bench->kernel.tensors, ADD_VECTORS, steps, STEPS_MAX};
    struct kops_error error;
    cu_handle graph;

    for (size_t i = 0; i < STEPS_MAX; i++) {
        struct step *step = &program_steps.steps[i];

        *step = (struct step){LAUNCH, {i == 0 ? 0 : i % 2 ? 2 : 3, 1}, i % 2 ? 3 : 2};
        steps[i] =
            (struct kops_step){.op = "add", .inputs = step->in, .n_inputs = 2, .outputs = &step->out, .n_outputs = 1};
    }
    if (check_kops(kops_program_define(bench->client, &sequence, NULL, &bench->program, &error), &error, "define"))
        return 1;
    if (!driver->capture_begin || !driver->capture_end || !driver->graph_instantiate || !driver->graph_launch)
        return 0;
    return driver_check(driver, driver->capture_begin(bench->kernel.stream, MODE_RELAXED), "begin a capture") ||
                   do_steps(bench, program_steps.steps) ||
                   driver_check(driver, driver->capture_end(bench->kernel.stream, &graph), "end a capture") ||
                   driver_check(driver, driver->graph_instantiate(&bench->graph, graph, 0), "instantiate a graph")
               ? 1
               : 0;
}

/* ---- all of them ---- */

static const struct work {
    const char *name, *feature; /* that the daemon must have */
    int (*make)(struct bench *bench);
    struct side sides[SIDES_MAX];
} WORKS[] = {
    {"tiny_add", NULL, make_events, {{"add", add, NULL}, {"launch", launch_and_wait, NULL}}},
    {"ordered",
     "ordered",
     NULL,
     {{"own", do_round, &OWN},
      {"batch", do_round, &BATCH},
      {"launches", do_round, &LAUNCHES},
      {"chain", do_round, &CHAIN},
      {"chain_here", do_round, &CHAIN_HERE}}},
    {"program",
     "program",
     make_program,
     {{"program", call_program, NULL}, {"launches", do_round, &program_steps}, {"graph", call_graph, NULL}}},
    {"here", "code", make_user_kernel, {{"here", do_round, &OWN_HERE}, {"launches", do_round, &LAUNCHES}}},
};

static const struct work *work_named(const char *name)
{
    for (size_t i = 0; i < sizeof(WORKS) / sizeof(WORKS[0]); i++) {
        if (strcmp(WORKS[i].name, name) == 0)
            return &WORKS[i];
    }
    fprintf(stderr, "bench_gpu: no work is called %s\n", name);
    exit(2);
}

static int measure(struct bench *bench, const struct work *work, const struct turns *turns)
{
    size_t n = 0;
    int r = work->make ? work->make(bench) : 0;

    if (r)
        return r;
    while (n < SIDES_MAX && work->sides[n].name && (bench->graph || work->sides[n].call != call_graph))
        n++;
    return sides_measure(work->sides, n, bench, turns);
}

int main(int argc, char **argv)
{
    struct turns turns = {.blocks = 5, .calls = 200, .warmup = 100, .again = 10, .per = 1};
    const char *socket = NULL, *transport = NULL, *name = "tiny_add";
    size_t elements = 1024;
    const struct bench_option options[] = {
        {.name = "socket", .text = &socket},      {.name = "transport", .text = &transport},
        {.name = "work", .text = &name},          {.name = "blocks", .count = &turns.blocks},
        {.name = "calls", .count = &turns.calls}, {.name = "warmup", .count = &turns.warmup},
        {.name = "again", .count = &turns.again}, {.name = "ops", .count = &turns.per},
        {.name = "elements", .count = &elements}, {0},
    };
    const struct work *work;
    struct bench bench = {0};
    int r;

    options_read(argc, argv, options);
    work = work_named(name);
    r = add_kernel_prepare(&bench.kernel, elements);
    if (r)
        return r;
    bench.ops = turns.per;
    bench.client = connect_or_exit(socket, transport, NULL);
    if (work->feature)
        need_feature(bench.client, work->feature);
    r = add_kernel_register(&bench.kernel, bench.client) ? 1 : measure(&bench, work, &turns);
    kops_kernel_free(bench.user);
    kops_program_release(bench.program);
    add_kernel_release(&bench.kernel);
    kops_close(bench.client);
    add_kernel_free(&bench.kernel);
    return r;
}
