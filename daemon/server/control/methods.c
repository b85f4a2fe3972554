/* The methods: what each takes, who answers it, and how dispatch() treats it. */

#include "server/control/methods.h"

#include "server/code/code.h"
#include "server/control/drain.h"
#include "server/exec/exec.h"
#include "server/memory/memory.h"
#include "server/observe/observe.h"

static const struct rpc_field hello_fields[] = {KOPS_PARAMS_HELLO(RPC_FIELD)};
static const struct rpc_field register_fields[] = {KOPS_PARAMS_REGISTER(RPC_FIELD)};
static const struct rpc_field alloc_fields[] = {KOPS_PARAMS_ALLOC(RPC_FIELD)};
static const struct rpc_field release_fields[] = {KOPS_PARAMS_RELEASE(RPC_FIELD)};
static const struct rpc_field run_fields[] = {KOPS_PARAMS_RUN(RPC_FIELD)};
static const struct rpc_field sequence_fields[] = {KOPS_PARAMS_SEQUENCE(RPC_FIELD)};
static const struct rpc_field program_fields[] = {KOPS_PARAMS_PROGRAM(RPC_FIELD)};
static const struct rpc_field run_program_fields[] = {KOPS_PARAMS_RUN_PROGRAM(RPC_FIELD)};
static const struct rpc_field cancel_fields[] = {KOPS_PARAMS_CANCEL(RPC_FIELD)};
static const struct rpc_field stats_fields[] = {KOPS_PARAMS_STATS(RPC_FIELD)};
static const struct rpc_field compile_fields[] = {KOPS_PARAMS_COMPILE(RPC_FIELD)};
static const struct rpc_field kernel_fields[] = {KOPS_PARAMS_KERNEL(RPC_FIELD)};
static const struct rpc_field launch_fields[] = {KOPS_PARAMS_LAUNCH(RPC_FIELD)};
static const struct rpc_field cache_fields[] = {KOPS_PARAMS_CACHE(RPC_FIELD)};
static const struct rpc_field drain_fields[] = {KOPS_PARAMS_DRAIN(RPC_FIELD)};

#define FIELDS(array)       .fields = (array), .n_fields = sizeof(array) / sizeof((array)[0])
#define METHOD(text, CLASS) .name = #text, .handler = handle_##text, .access = ACCESS_##CLASS
#define RUNS                .work = true, .runs = true, .refuse = run_refuse_undecoded, .state_bytes = &run_state_bytes

static const struct method_entry methods[METHOD_COUNT] = {
    [METHOD_HELLO] = {METHOD(hello, USE), FIELDS(hello_fields), .while_stopping = true, .brings_fds = true},
    [METHOD_PING] = {METHOD(ping, USE), .any_params = true, .while_stopping = true, .no_credit = true},
    [METHOD_REGISTER] = {METHOD(register, USE), FIELDS(register_fields), .work = true},
    [METHOD_ALLOC] = {METHOD(alloc, USE), FIELDS(alloc_fields), .work = true, .brings_fds = true,
                      .state_bytes = &alloc_state_bytes},
    [METHOD_RELEASE] = {METHOD(release, USE), FIELDS(release_fields), .while_stopping = true},
    [METHOD_RUN] = {METHOD(run, USE), FIELDS(run_fields), RUNS},
    [METHOD_SEQUENCE] = {METHOD(sequence, USE), FIELDS(sequence_fields), RUNS},
    [METHOD_PROGRAM] = {METHOD(program, USE), FIELDS(program_fields), .work = true},
    [METHOD_RUN_PROGRAM] = {METHOD(run_program, USE), FIELDS(run_program_fields), RUNS},
    [METHOD_COMPILE] = {METHOD(compile, USE), FIELDS(compile_fields), .work = true,
                        .state_bytes = &compile_state_bytes},
    [METHOD_KERNEL] = {METHOD(kernel, USE), FIELDS(kernel_fields), .work = true},
    [METHOD_LAUNCH] = {METHOD(launch, USE), FIELDS(launch_fields), RUNS},
    [METHOD_CACHE] = {METHOD(cache, ADMINISTER), FIELDS(cache_fields), .brings_fds = true,
                      .state_bytes = &cache_state_bytes},
    [METHOD_TIMELINES] = {METHOD(timelines, USE), .work = true, .brings_fds = true},
    [METHOD_CANCEL] = {METHOD(cancel, USE), FIELDS(cancel_fields), .while_stopping = true, .no_credit = true},
    [METHOD_TRIM] = {METHOD(trim, USE), .state_bytes = &trim_state_bytes},
    [METHOD_STATS] = {METHOD(stats, USE), FIELDS(stats_fields), .while_stopping = true,
                      .state_bytes = &stats_state_bytes},
    [METHOD_CLIENTS] = {METHOD(clients, USE), .while_stopping = true, .only_reply = true},
    [METHOD_METRICS] = {METHOD(metrics, USE), .while_stopping = true, .only_reply = true},
    [METHOD_DRAIN] = {METHOD(drain, ADMINISTER), FIELDS(drain_fields), .while_stopping = true,
                      .state_bytes = &drain_state_bytes},
};

const struct method_entry *methods_table(void)
{
    return methods;
}
