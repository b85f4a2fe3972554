/* The methods: who answers each, and what its declaration says of how dispatch() treats it; and those of no room:
 * hello, ping, cancel. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "server/code/code.h"
#include "server/control/room.h"
#include "server/exec/command_list.h"
#include "server/exec/exec.h"
#include "server/memory/connection_resources.h"
#include "server/observe/observe.h"
#include "server/peer/connection.h"
#include "server/peer/peers.h"
#include "server/peer/request.h"
#include "server/tune/tune.h"

/* ---- hello and ping ---- */

enum { PROTOCOL = 1, PROTOCOL_MIN = 1 };

static void write_device(struct rpc_output *out, const void *of, uint32_t i)
{
    const struct server *s = of;
    const struct backend_device *d = s->devices.all[i];

    rpc_write_record(out, RECORD(device_info_map, .index = d->index, .name = d->info.name, .uuid = d->info.uuid,
                                 .backend = d->backend->name, .memory_bytes = d->info.memory_bytes,
                                 .compute_units = d->info.compute_units, .arch = d->info.arch,
                                 .default_ = d == s->devices.fallback, .mps = d->info.shared));
}

static void write_default(struct rpc_output *out, const void *of, uint32_t i)
{
    const struct op_attr *attr = of;

    (void)i;
    switch (attr->type) {
    case OP_ATTR_BOOL:
        rpc_write_bool(out, attr->fallback.b);
        break;
    case OP_ATTR_FLOAT:
        rpc_write_double(out, attr->fallback.f);
        break;
    case OP_ATTR_INT:
        rpc_write_int(out, attr->fallback.i);
        break;
    case OP_ATTR_CHOICE:
        rpc_write_text(out, attr->choices[attr->fallback.choice]);
        break;
    }
}

static void write_attr(struct rpc_output *out, const void *of, uint32_t i)
{
    static const char *const types[] = {
        [OP_ATTR_BOOL] = "bool", [OP_ATTR_FLOAT] = "float", [OP_ATTR_INT] = "int", [OP_ATTR_CHOICE] = "choice"};
    const struct op_attr *attr = (const struct op_attr *)of + i;
    const bool choice = attr->type == OP_ATTR_CHOICE;
    uint32_t n = 0;

    while (choice && attr->choices[n])
        n++;
    rpc_write_record(out, RECORD(attr_map, .name = attr->name, .type = types[attr->type],
                                 .default_ = {1, write_default, attr},
                                 .choices = {n, choice ? rpc_each_text : NULL, attr->choices}, .doc = attr->doc));
}

static struct rpc_values dtype_names(unsigned set, const char *names[DTYPE_SLOTS])
{
    uint32_t n = 0;

    for (; set; set &= set - 1)
        names[n++] = dtype_name((enum dtype)__builtin_ctz(set));
    return (struct rpc_values){n, rpc_each_text, names};
}

/* The dtypes of an input, or of the outputs for a dtype of the inputs. */
struct named_dtypes {
    const char *name;
    unsigned set;
};

static void write_named_dtypes(struct rpc_output *out, const void *of, uint32_t i)
{
    const struct named_dtypes *one = (const struct named_dtypes *)of + i;
    const char *names[DTYPE_SLOTS];

    rpc_write_text(out, one->name);
    rpc_write_list(out, dtype_names(one->set, names));
}

static struct rpc_values in_dtypes(const struct op *op, struct named_dtypes *ret)
{
    uint32_t n = 0;

    for (unsigned i = 0; i < op->n_inputs; i++)
        if (op->in_dtypes[i])
            ret[n++] = (struct named_dtypes){op->inputs[i], op->in_dtypes[i]};
    return (struct rpc_values){n, write_named_dtypes, ret};
}

static struct rpc_values out_dtypes(const struct op *op, struct named_dtypes *ret)
{
    uint32_t n = 0;

    for (unsigned d = 0; op->out_dtypes && d < DTYPE_SLOTS; d++)
        if (op->out_dtypes[d])
            ret[n++] = (struct named_dtypes){dtype_name((enum dtype)d), op->out_dtypes[d]};
    return (struct rpc_values){n, write_named_dtypes, ret};
}

enum { VARIANTS = 2 * BACKEND_MAX_VARIANTS };

/* Adds names that are not there yet. */
static unsigned add_names(const char **names, unsigned n, const char *const *more)
{
    for (; more && *more && n < VARIANTS; more++) {
        unsigned i = 0;

        while (i < n && strcmp(names[i], *more) != 0)
            i++;
        if (i == n)
            names[n++] = *more;
    }
    return n;
}

struct op_of {
    const struct server *server;
    const struct op *op;
};

/* Variants for any of the op's dtypes: in the order of the first one's list, then those that only others have. */
static void write_variants(struct rpc_output *out, const void *of, uint32_t i)
{
    const struct op_of *o = of;
    struct backend_device *d = o->server->devices.all[i];
    const char *names[VARIANTS];
    unsigned n = 0;

    for (unsigned dtypes = o->op->dtypes; dtypes; dtypes &= dtypes - 1)
        n = add_names(names, n, d->backend->variants(d, o->op, (enum dtype)__builtin_ctz(dtypes)));
    rpc_write_text(out, d->info.uuid);
    rpc_write_list(out, (struct rpc_values){n, rpc_each_text, names});
}

static void write_op(struct rpc_output *out, const void *of, uint32_t i)
{
    const struct server *s = of;
    const struct op *op = op_get((enum op_id)i);
    const struct op_of self = {s, op};
    struct named_dtypes in[OP_MAX_INPUTS], outs[DTYPE_SLOTS];
    const char *names[DTYPE_SLOTS];

    rpc_write_record(out, RECORD(op_map, .name = op->name, .summary = op->summary, .doc = op->doc,
                                 .inputs = {op->n_inputs, rpc_each_text, op->inputs},
                                 .outputs = {op->n_outputs, rpc_each_text, op->outputs},
                                 .dtypes = dtype_names(op->dtypes, names), .in_dtypes = in_dtypes(op, in),
                                 .out_dtypes = out_dtypes(op, outs), .attrs = {op->n_attrs, write_attr, op->attrs},
                                 .variants = {s->devices.count, write_variants, &self}));
}

static struct limits_map limits_of(const struct server *s)
{
    return (struct limits_map){
        .message_bytes = s->config.message_bytes,
        .message_values = RPC_MAX_VALUES,
        .depth = RPC_MAX_DEPTH,
        .nfds = RPC_MAX_FDS,
        .inflight = s->config.inflight,
        .buffers = s->config.buffers,
        .streams = STREAMS_MAX,
        .rank = TENSOR_MAX_RANK,
        .repeat = KOPS_MAX_RUN_REPEAT,
        .warmup = KOPS_MAX_RUN_WARMUP,
        .inline_mappings = s->config.inline_mappings,
        .sequence_ops = SEQUENCE_OPS_MAX,
        .source_bytes = s->config.code.source_bytes,
        .spin_us = s->config.spin_us,
    };
}

static bool has_peers(const struct server *s)
{
    for (unsigned i = 0; i < s->devices.count; i++)
        for (unsigned j = 0; j < s->devices.count; j++) {
            struct backend_device *a = s->devices.all[i], *b = s->devices.all[j];

            if (a != b && a->backend == b->backend && a->backend->can_access && a->backend->can_access(a, b))
                return true;
        }
    return false;
}

enum { FEATURES_MAX = 32 };

static struct rpc_values features_of(const struct connection *c, const char *names[FEATURES_MAX])
{
    const struct server *s = c->server;
    const bool compile = user_code_compiles(c), kernels = compile && user_code_device(s);
    bool ordered = false, counts = false, ends = false;
    unsigned kinds = 0;
    uint32_t n = 0;

    for (unsigned i = 0; i < s->devices.count; i++) {
        struct backend_device *d = s->devices.all[i];

        kinds |= d->backend->memory_kinds ? d->backend->memory_kinds(d) : 0;
        ordered = ordered || d->signals;
        counts = counts || d->counts;
        ends = ends || d->ends;
    }

    const struct {
        const char *name;
        bool here;
    } features[] = {{"memfd", true},
                    {"shm", true},
                    {"exact", true},
                    {"sequence", true},
                    {"program", true},
                    {"priority", true},
                    {"conditions", true},
                    {"cuda_ipc", kinds & 1U << MEMORY_CUDA_IPC},
                    {"cuda_vmm", kinds & 1U << MEMORY_CUDA_VMM},
                    {"cuda_pool", kinds & 1U << MEMORY_CUDA_POOL},
                    {"guards", kinds & 1U << MEMORY_CUDA_VMM},
                    {"ordered", ordered},
                    {"counters", counts},
                    {"exclusive", ends},
                    {"peer", has_peers(s)},
                    {"compile", compile},
                    {"kernels", kernels},
                    {"structures", kernels},
                    {"code", compile && user_code_hands_out(c)},
                    {"images", user_code_image_backend(s) && user_code_hands_out(c)},
                    {"tune", tune_is_there(s)}};

    _Static_assert(sizeof(features) / sizeof(features[0]) <= FEATURES_MAX, "names has room for all");
    for (unsigned i = 0; i < sizeof(features) / sizeof(features[0]); i++)
        if (features[i].here)
            names[n++] = features[i].name;
    return (struct rpc_values){n, rpc_each_text, names};
}

/* Gives the connection's kernels an executor of their own, if it asks for that. */
static int set_isolation(struct connection *c, const struct rpc_arg *wanted, struct error *e)
{
    const enum isolation configured = c->server->config.isolation;

    if (!wanted->present)
        return 0;
    if (!rpc_text_is(wanted, isolation_names[ISOLATE_CONNECTION]))
        return error_at(e, ERROR_INVALID_ARGUMENT, "", "isolate", "must be \"connection\"");
    if (c->isolation == ISOLATE_CONNECTION)
        return 0;
    if (configured == ISOLATE_NONE) {
        error_set(e, ERROR_UNSUPPORTED,
                  "isolate: kernels of users have no executors of their own here (executors.isolate is %s); connect "
                  "without isolate, or ask the daemon's administrator",
                  isolation_names[configured]);
        return error_detail_text(e, "key", "isolate");
    }
    if (c->has_loaded)
        return error_at(e, ERROR_INVALID_ARGUMENT, "", "isolate", "comes before the connection's first compile");
    c->isolation = ISOLATE_CONNECTION;
    return 0;
}

void handle_hello(struct request *r, const struct rpc_arg *args, struct request_fds *fds)
{
    struct connection *c = r->connection;
    const struct server *s = c->server;
    static const struct shm_map channel = {.fd = CHANNEL_MEMORY,
                                           .doorbell = CHANNEL_DOORBELL,
                                           .wake = CHANNEL_WAKE,
                                           .request_bytes = RING_REQUEST_BYTES,
                                           .reply_bytes = RING_REPLY_BYTES};
    const bool shm = args[HELLO_shm].b && !r->notification;
    const char *features[FEATURES_MAX];
    struct user_code_texts texts;
    int channel_fds[CHANNEL_FDS];
    struct error e;

    (void)fds;
    connection_name_process(c);
    if (args[HELLO_client].present)
        snprintf(c->client, sizeof(c->client), "%.*s", (int)args[HELLO_client].length, args[HELLO_client].text);
    if (args[HELLO_protocol].present && (args[HELLO_protocol].u < PROTOCOL_MIN || args[HELLO_protocol].u > PROTOCOL)) {
        error_set(&e, ERROR_PROTOCOL_MISMATCH,
                  "this daemon, kopsd " KOPS_VERSION " (pid %d), speaks protocols %d to %d, the client %llu: %s",
                  (int)getpid(), PROTOCOL_MIN, PROTOCOL, (unsigned long long)args[HELLO_protocol].u,
                  args[HELLO_protocol].u > PROTOCOL ? "install a newer kopsd, and end this one"
                                                    : "install a newer client");
        error_detail_number(&e, "protocol_min", PROTOCOL_MIN);
        error_detail_number(&e, "protocol", PROTOCOL);
        request_end_error(r, &e);
        return;
    }
    if (set_isolation(c, &args[HELLO_isolate], &e) < 0 || (shm && ring_open(c, channel_fds, &e) < 0)) {
        request_end_error(r, &e);
        return;
    }
    request_end_fds(r, channel_fds, shm ? CHANNEL_FDS : 0,
                    RECORD(hello_reply, .server = "kopsd " KOPS_VERSION, .instance = s->instance, .protocol = PROTOCOL,
                           .protocol_min = PROTOCOL_MIN, .pid = (uint64_t)getpid(),
                           .devices = {s->devices.count, write_device, s}, .ops = {OP_COUNT, write_op, s},
                           .limits = limits_of(s), .features = features_of(c, features),
                           .kernels = user_code_hello(c, &texts), .isolation = isolation_names[c->isolation],
                           .connection = {true, c->number}, .identity = c->identity ? c->identity->name : NULL,
                           .nfds = {shm, CHANNEL_FDS}, .shm = shm ? &channel : NULL));
}

void handle_ping(struct request *r, const struct rpc_arg *args, struct request_fds *fds)
{
    struct rpc_output *out = request_result(r);

    (void)fds;
    if (out)
        rpc_write_raw(out, args[0].text, args[0].length);
    request_end(r);
}

/* ---- the table ---- */

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
