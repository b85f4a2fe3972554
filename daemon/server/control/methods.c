/* The methods: who answers each, and what its declaration says of how dispatch() treats it. */
#include "server/control/methods.h"

#include "server/code/code.h"
#include "server/control/shutdown.h"
#include "server/exec/exec.h"
#include "server/memory/memory.h"
#include "server/observe/observe.h"
#include "server/peer/connection.h"
#include "server/tune/tune.h"

#define X(NAME, name, CLASS) static const struct rpc_field name##_fields[] = {KOPS_PARAMS_##NAME(RPC_FIELD)};
KOPS_METHODS(X)
#undef X

/* A method as methods.json declares it. */
#define FLAG(flag)       .flag = true,
#define ACCESS(CLASS)    ACCESS_OF(CLASS)
#define ACCESS_OF(CLASS) ACCESS_##CLASS
#define METHOD(NAME, text)                                                                                             \
    KOPS_FLAGS_##NAME(FLAG).name = #text, .handler = handle_##text, .access = ACCESS(KOPS_CLASS_##NAME),               \
    .fields = text##_fields, .n_fields = sizeof(text##_fields) / sizeof(struct rpc_field)
#define RUN_STATE .refuse = run_refuse_undecoded, .state_bytes = &run_state_bytes

static const struct method_entry methods[METHOD_COUNT] = {
    [METHOD_HELLO] = {METHOD(HELLO, hello)},
    [METHOD_PING] = {METHOD(PING, ping)},
    [METHOD_REGISTER] = {METHOD(REGISTER, register)},
    [METHOD_ALLOC] = {METHOD(ALLOC, alloc), .state_bytes = &alloc_state_bytes},
    [METHOD_RELEASE] = {METHOD(RELEASE, release)},
    [METHOD_RUN] = {METHOD(RUN, run), RUN_STATE},
    [METHOD_SEQUENCE] = {METHOD(SEQUENCE, sequence), RUN_STATE},
    [METHOD_PROGRAM] = {METHOD(PROGRAM, program)},
    [METHOD_RUN_PROGRAM] = {METHOD(RUN_PROGRAM, run_program), RUN_STATE},
    [METHOD_COMPILE] = {METHOD(COMPILE, compile), .state_bytes = &compile_state_bytes},
    [METHOD_KERNEL] = {METHOD(KERNEL, kernel)},
    [METHOD_CODE] = {METHOD(CODE, code), .state_bytes = &hand_out_state_bytes},
    [METHOD_LAUNCH] = {METHOD(LAUNCH, launch), RUN_STATE},
    [METHOD_COUNTERS] = {METHOD(COUNTERS, counters), RUN_STATE},
    [METHOD_CACHE] = {METHOD(CACHE, cache), .state_bytes = &cache_state_bytes},
    [METHOD_TIMELINES] = {METHOD(TIMELINES, timelines)},
    [METHOD_CANCEL] = {METHOD(CANCEL, cancel)},
    [METHOD_TRIM] = {METHOD(TRIM, trim), .state_bytes = &trim_state_bytes},
    [METHOD_LAUNCHED] = {METHOD(LAUNCHED, launched)},
    [METHOD_STATS] = {METHOD(STATS, stats), .state_bytes = &stats_state_bytes},
    [METHOD_CLIENTS] = {METHOD(CLIENTS, clients)},
    [METHOD_CONDITIONS] = {METHOD(CONDITIONS, conditions), .state_bytes = &conditions_state_bytes},
    [METHOD_METRICS] = {METHOD(METRICS, metrics)},
    [METHOD_TUNE] = {METHOD(TUNE, tune), .state_bytes = &tune_state_bytes},
    [METHOD_TUNING] = {METHOD(TUNING, tuning)},
    [METHOD_TRACE] = {METHOD(TRACE, trace), .state_bytes = &trace_state_bytes},
    [METHOD_DRAIN] = {METHOD(DRAIN, drain), .state_bytes = &drain_state_bytes},
};

const struct method_entry *methods_table(void)
{
    return methods;
}

/* ---- cancel ---- */

static void cancel_compile(struct request *r)
{
    struct error e;

    error_set(&e, ERROR_CANCELLED, "the compile was cancelled");
    compile_cancel(r, &e);
}

static const struct {
    bool (*can)(const struct request *r);
    void (*cancel)(struct request *r);
} kinds[] = {{exec_can_cancel, exec_cancel}, {compile_can_cancel, cancel_compile}, {tune_can_cancel, tune_cancel}};

void handle_cancel(struct request *r, const struct rpc_arg *args, struct request_fds *fds)
{
    const size_t n = sizeof(kinds) / sizeof(kinds[0]);
    struct request *target = request_find(r->connection, (uint32_t)args[CANCEL_msgid].u);
    struct rpc_output *out = request_result(r);
    size_t kind = target && target != r ? 0 : n;

    (void)fds;
    while (kind < n && !kinds[kind].can(target))
        kind++;
    /* The answer to cancel comes first. */
    if (out)
        rpc_write_record(out, RECORD(cancel_reply, .cancelled = kind < n));
    if (kind < n)
        kinds[kind].cancel(target);
    request_end(r);
}
