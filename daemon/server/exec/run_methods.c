/* The methods that run ops: run, launch, sequence and run_program; and counters, a run of one step whose device counts,
 * alone and on copies of its operands. Thread: loop. */
#include <math.h>
#include <stdlib.h>

#include "core/counters.h"
#include "server/exec/room.h"
#include "server/exec/run.h"
#include "server/peer/connection.h"
#include "server/peer/request.h"

/* ---- options ---- */

/* The run_options of a method, from its arguments. */
#define RUN_OPTIONS(METHOD)                                                                                            \
    {                                                                                                                  \
        .stream = args[METHOD##_stream].u, .warmup = args[METHOD##_warmup].u, .repeat = args[METHOD##_repeat].u,       \
        .timing = args[METHOD##_timing].b, .exact = args[METHOD##_exact].b, .exclusive = args[METHOD##_exclusive].b,   \
        .deadline_ms = args[METHOD##_deadline_ms].u, .ready = args[METHOD##_ready].u, .done = args[METHOD##_done].u    \
    }

static int decode_priority(const struct rpc_arg *arg, enum backend_priority *ret, struct error *e)
{
    if (!arg->present || rpc_text_is(arg, "normal"))
        *ret = PRIORITY_NORMAL;
    else if (rpc_text_is(arg, "high"))
        *ret = PRIORITY_HIGH;
    else if (rpc_text_is(arg, "low"))
        *ret = PRIORITY_LOW;
    else {
        error_set(e, ERROR_INVALID_ARGUMENT, "priority: must be \"high\", \"normal\" or \"low\"");
        return error_detail_text(e, "key", "priority");
    }
    return 0;
}

static void init(struct run *run)
{
    run->stop = RUN_GOES_ON;
    run->state = RUN_QUEUED;
    run->commands = (struct command_list){0};
    run->device = NULL;
    run->program = NULL;
    run->stream = NULL;
    run->counters = NULL;
    run->failed = run->sampled = run->must_end = false;
    run->maps_pending = 0;
    run->map_us = NAN;
    run->map_started_ns = run->ready_ns = run->deadline_ns = 0;
    run->samples = NULL;
    run->ready = run->done = 0;
    run->priority = PRIORITY_NORMAL;
    run->job.n_steps = 0;
    run->job.warmup = 0;
    run->job.repeat = 1;
    run->job.timing = TIMING_NONE;
    run->job.token = 0;
    run->job.signal = (struct backend_signal){0};
    run->job.program = NULL;
    run->job.samples = NULL;
    run->job.impl = NULL;
    run->job.exclusive = false;
    backend_job_begin(&run->job);
    atomic_init(&run->job.cancel, false);
    atomic_init(&run->job.end_now, false);
}

/* Exclusive work needs others that can be held back, and a client that waits for it. */
static int check_exclusive(const struct run *run, const struct run_options *o, struct error *e)
{
    if (!o->exclusive)
        return 0;
    if (run->device->backend->host_memory)
        error_set(e, ERROR_UNSUPPORTED, "exclusive is for GPUs, and this work is for the host device: leave it out");
    else if (o->ready || o->done)
        error_set(
            e, ERROR_INVALID_ARGUMENT,
            "exclusive work waits for others, and ordered work may not keep a stream waiting: leave ready and done "
            "out, or exclusive");
    else
        return 0;
    return error_detail_text(e, "key", "exclusive");
}

static int set_job(struct run *run, const struct run_options *o, struct error *e)
{
    if (check_exclusive(run, o, e) < 0)
        return -1;
    if (o->repeat + o->warmup > 1 && command_list_check_repeat(&run->commands, e) < 0)
        return -1;
    run->job.steps = run->commands.steps;
    run->job.n_steps = run->commands.n_steps;
    run->job.repeat = (uint32_t)o->repeat;
    run->job.warmup = (uint32_t)o->warmup;
    run->job.timing = !o->timing ? TIMING_NONE : o->exact ? TIMING_EXACT : TIMING_NOW;
    run->job.counters = run->counters;
    run->job.exclusive = o->exclusive;
    run->samples = &run->sample;
    if (run->job.repeat > 1)
        run->samples = malloc(run->job.repeat * sizeof(double));
    if (!run->samples)
        return error_set(e, ERROR_OUT_OF_MEMORY, "no memory for %u samples", run->job.repeat);
    run->job.samples = run->samples;
    return 0;
}

/* ---- the methods ---- */

static uint64_t uint_or_zero(const struct rpc_value *value, uint64_t max)
{
    const struct rpc_field field = {.key = "", .type = RPC_UINT, .max = max};
    struct rpc_arg arg;
    struct error ignored;

    return rpc_decode_value(value, &field, "", &arg, &ignored) < 0 ? 0 : arg.u;
}

void run_refuse_undecoded(struct request *r, const struct rpc_value *params, const struct error *e)
{
    struct rpc_entries entries = rpc_map_entries(params);
    struct run_options o = {0};
    struct run *run = request_state(r);
    struct rpc_entry entry;

    while (rpc_map_next(&entries, &entry)) {
        const struct rpc_arg key = {.text = entry.key, .length = entry.length};

        if (rpc_text_is(&key, "stream"))
            o.stream = uint_or_zero(entry.value, STREAMS_MAX - 1);
        else if (rpc_text_is(&key, "ready"))
            o.ready = uint_or_zero(entry.value, INT64_MAX - 1);
        else if (rpc_text_is(&key, "done"))
            o.done = uint_or_zero(entry.value, INT64_MAX - 1);
    }
    init(run);
    run_refuse(run, &o, e);
}

/* `decoded`: -1, *e, where the command list cannot be decoded. */
static void go_on(struct run *run, int decoded, const struct rpc_arg *priority, const struct run_options *o,
                  struct error *e)
{
    if (decoded < 0 || decode_priority(priority, &run->priority, e) < 0 || set_job(run, o, e) < 0)
        run_refuse(run, o, e);
    else
        run_begin(run, o);
}

void handle_run(struct request *r, const struct rpc_arg *args, struct request_fds *fds)
{
    const struct run_options o = RUN_OPTIONS(RUN);
    struct run *run = request_state(r);
    struct error e;

    (void)fds;
    init(run);
    go_on(run, run_decode_single(r->connection, run, args, &e), &args[RUN_priority], &o, &e);
}

void handle_launch(struct request *r, const struct rpc_arg *args, struct request_fds *fds)
{
    const struct run_options o = RUN_OPTIONS(LAUNCH);
    struct run *run = request_state(r);
    struct error e;

    (void)fds;
    init(run);
    go_on(run, launch_decode(r->connection, run, args, &e), &args[LAUNCH_priority], &o, &e);
}

void handle_sequence(struct request *r, const struct rpc_arg *args, struct request_fds *fds)
{
    const struct run_options o = RUN_OPTIONS(SEQUENCE);
    struct run *run = request_state(r);
    struct error e;

    (void)fds;
    init(run);
    go_on(run,
          command_list_decode(r->connection, &args[SEQUENCE_tensors], &args[SEQUENCE_ops], &args[SEQUENCE_device], NULL,
                              &r->connection->exec->run_memory, &run->commands, &run->device, &e),
          &args[SEQUENCE_priority], &o, &e);
}

void handle_run_program(struct request *r, const struct rpc_arg *args, struct request_fds *fds)
{
    const struct run_options o = RUN_OPTIONS(RUN_PROGRAM);
    struct run *run = request_state(r);
    struct error e;

    (void)fds;
    init(run);
    go_on(run, program_bind(r->connection, run, args, &e), &args[RUN_PROGRAM_priority], &o, &e);
}

/* ---- counters ---- */

enum { N_RUN = RUN_done + 1, N_LAUNCH = LAUNCH_done + 1 };

static int refuse_keys(const struct rpc_arg *args, const unsigned *keys, const char *const *names, unsigned n,
                       const char *why, struct error *e)
{
    for (unsigned i = 0; i < n; i++)
        if (args[keys[i]].present)
            return error_at(e, ERROR_INVALID_ARGUMENT, "", names[i], why);
    return 0;
}

static int decode_op(struct connection *c, struct run *run, const struct rpc_arg *args, struct error *e)
{
    static const unsigned others[] = {COUNTERS_args, COUNTERS_grid, COUNTERS_block, COUNTERS_shared, COUNTERS_cluster};
    static const char *const names[] = {"args", "grid", "block", "shared", "cluster"};
    struct rpc_arg of_run[N_RUN] = {[RUN_op] = args[COUNTERS_op],
                                    [RUN_in] = args[COUNTERS_in],
                                    [RUN_out] = args[COUNTERS_out],
                                    [RUN_attrs] = args[COUNTERS_attrs],
                                    [RUN_device] = args[COUNTERS_device]};

    if (refuse_keys(args, others, names, sizeof(names) / sizeof(names[0]), "takes `kernel` beside it", e) < 0)
        return -1;
    if (!args[COUNTERS_in].present)
        return error_at(e, ERROR_MISSING_KEY, "", "in", "required beside `op`");
    if (!args[COUNTERS_out].present)
        return error_at(e, ERROR_MISSING_KEY, "", "out", "required beside `op`");
    return run_decode_single(c, run, of_run, e);
}

static int decode_kernel(struct connection *c, struct run *run, const struct rpc_arg *args, struct error *e)
{
    static const unsigned others[] = {COUNTERS_in, COUNTERS_out, COUNTERS_attrs, COUNTERS_device};
    static const char *const names[] = {"in", "out", "attrs", "device"};
    struct rpc_arg of_launch[N_LAUNCH] = {
        [LAUNCH_kernel] = args[COUNTERS_kernel], [LAUNCH_args] = args[COUNTERS_args],
        [LAUNCH_grid] = args[COUNTERS_grid],     [LAUNCH_block] = args[COUNTERS_block],
        [LAUNCH_shared] = args[COUNTERS_shared], [LAUNCH_cluster] = args[COUNTERS_cluster]};

    if (refuse_keys(args, others, names, sizeof(names) / sizeof(names[0]), "not beside `kernel`, which takes `args`",
                    e) < 0)
        return -1;
    if (!args[COUNTERS_args].present)
        return error_at(e, ERROR_MISSING_KEY, "", "args", "required beside `kernel`");
    return launch_decode(c, run, of_launch, e);
}

static int decode_work(struct connection *c, struct run *run, const struct rpc_arg *args, struct error *e)
{
    if (args[COUNTERS_kernel].present && args[COUNTERS_op].present)
        return error_at(e, ERROR_INVALID_ARGUMENT, "", "op", "not beside `kernel`: counters are of one of them");
    if (args[COUNTERS_kernel].present)
        return decode_kernel(c, run, args, e);
    return args[COUNTERS_op].present ? decode_op(c, run, args, e)
                                     : error_at(e, ERROR_MISSING_KEY, "", "op", "required, or `kernel`");
}

static int decode_cache(const struct rpc_arg *arg, bool *ret_warm, struct error *e)
{
    *ret_warm = arg->present && rpc_text_is(arg, "warm");
    if (*ret_warm || !arg->present || rpc_text_is(arg, "cold"))
        return 0;
    error_set(e, ERROR_INVALID_ARGUMENT, "cache: must be \"cold\" or \"warm\"");
    return error_detail_text(e, "key", "cache");
}

static int check_device(const struct run *run, struct error *e)
{
    if (run->device->info.exclusive)
        return error_set(e, ERROR_UNSUPPORTED,
                         "counters need a second process on the GPU, whose compute mode allows one: an administrator "
                         "can set it to DEFAULT (nvidia-smi -c)");
    if (run->device->counts)
        return 0;
    return error_set(e, ERROR_UNSUPPORTED,
                     "counters are read from a GPU, and this work is for the host device: put its tensors on a GPU");
}

/* A user has one at a time: each holds up the work of all others. */
static int take_turn(struct connection *c, struct run *run, bool warm, struct error *e)
{
    if (c->account->counting)
        return error_set(e, ERROR_LIMIT_EXCEEDED,
                         "counters of this user are being read already: wait for the reply, one is read at a time");
    run->counters = malloc(sizeof(*run->counters));
    if (!run->counters)
        return error_set(e, ERROR_OUT_OF_MEMORY, "no memory for counters");
    run->counters->warm = warm;
    counters_clear(run->counters);
    c->account->counting = true;
    return 0;
}

void handle_counters(struct request *r, const struct rpc_arg *args, struct request_fds *fds)
{
    const struct run_options o = {
        .stream = args[COUNTERS_stream].u, .repeat = 1, .deadline_ms = args[COUNTERS_deadline_ms].u};
    struct run *run = request_state(r);
    struct error e;
    bool warm;

    (void)fds;
    init(run);
    if (decode_cache(&args[COUNTERS_cache], &warm, &e) < 0 || decode_work(r->connection, run, args, &e) < 0 ||
        check_device(run, &e) < 0 || take_turn(r->connection, run, warm, &e) < 0 || set_job(run, &o, &e) < 0)
        run_refuse(run, &o, &e);
    else
        run_begin(run, &o);
}
