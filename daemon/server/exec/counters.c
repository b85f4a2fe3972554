/* counters: a run of one step whose device counts, alone and on copies of its operands. Thread: loop. */
#include <stdlib.h>

#include "core/counters.h"
#include "server/exec/room.h"
#include "server/exec/run.h"
#include "server/peer/connection.h"
#include "server/peer/request.h"

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
    run_init(run);
    run->priority = PRIORITY_NORMAL;
    if (decode_cache(&args[COUNTERS_cache], &warm, &e) < 0 || decode_work(r->connection, run, args, &e) < 0 ||
        check_device(run, &e) < 0 || take_turn(r->connection, run, warm, &e) < 0 || run_set_job(run, &o, &e) < 0)
        run_refuse(run, &o, &e);
    else
        run_begin(run, &o);
}
