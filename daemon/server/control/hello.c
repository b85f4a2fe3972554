/* The methods hello and ping. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "server/code/code.h"
#include "server/exec/command_list.h"
#include "server/exec/exec.h"
#include "server/peer/request.h"
#include "server/peer/ring.h"
#include "server/tune/tune.h"

enum { PROTOCOL = 1, PROTOCOL_MIN = 1 };

static void write_devices(struct rpc_output *out, const struct server *s)
{
    rpc_write_text(out, "devices");
    rpc_write_array(out, s->devices.count);
    for (unsigned i = 0; i < s->devices.count; i++) {
        const struct backend_device *d = s->devices.all[i];

        rpc_write_map(out, 9);
        rpc_write_entry_uint(out, "index", d->index);
        rpc_write_entry_text(out, "name", d->info.name);
        rpc_write_entry_text(out, "uuid", d->info.uuid);
        rpc_write_entry_text(out, "backend", d->backend->name);
        rpc_write_entry_uint(out, "memory_bytes", d->info.memory_bytes);
        rpc_write_entry_uint(out, "compute_units", d->info.compute_units);
        rpc_write_entry_text(out, "arch", d->info.arch);
        rpc_write_entry_bool(out, "default", d == s->devices.fallback);
        rpc_write_entry_bool(out, "mps", d->info.shared);
    }
}

static void write_attr(struct rpc_output *out, const struct op_attr *attr)
{
    static const char *const types[] = {
        [OP_ATTR_BOOL] = "bool", [OP_ATTR_FLOAT] = "float", [OP_ATTR_INT] = "int", [OP_ATTR_CHOICE] = "choice"};
    unsigned n = 0;

    rpc_write_map(out, attr->type == OP_ATTR_CHOICE ? 5 : 4);
    rpc_write_entry_text(out, "name", attr->name);
    rpc_write_entry_text(out, "type", types[attr->type]);
    rpc_write_text(out, "default");
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
        while (attr->choices[n])
            n++;
        rpc_write_text(out, "choices");
        rpc_write_array(out, n);
        for (unsigned i = 0; i < n; i++)
            rpc_write_text(out, attr->choices[i]);
        break;
    }
    rpc_write_entry_text(out, "doc", attr->doc);
}

static void write_dtype_names(struct rpc_output *out, unsigned set)
{
    rpc_write_array(out, (uint32_t)__builtin_popcount(set));
#define X(NAME, name, value, size)                                                                                     \
    if (set & DTYPE_BIT(DTYPE_##NAME))                                                                                 \
        rpc_write_text(out, name);
    KOPS_DTYPES(X)
#undef X
}

static void write_out_dtypes(struct rpc_output *out, const struct op *op)
{
    unsigned inputs = 0;

    for (unsigned d = 0; op->out_dtypes && d < DTYPE_SLOTS; d++)
        inputs += op->out_dtypes[d] != 0;
    rpc_write_text(out, "out_dtypes");
    rpc_write_map(out, inputs);
    for (unsigned d = 0; op->out_dtypes && d < DTYPE_SLOTS; d++) {
        if (!op->out_dtypes[d])
            continue;
        rpc_write_text(out, dtype_name((enum dtype)d));
        write_dtype_names(out, op->out_dtypes[d]);
    }
}

static void write_in_dtypes(struct rpc_output *out, const struct op *op)
{
    unsigned own = 0;

    for (unsigned i = 0; i < op->n_inputs; i++)
        own += op->in_dtypes[i] != 0;
    rpc_write_text(out, "in_dtypes");
    rpc_write_map(out, own);
    for (unsigned i = 0; i < op->n_inputs; i++)
        if (op->in_dtypes[i]) {
            rpc_write_text(out, op->inputs[i]);
            write_dtype_names(out, op->in_dtypes[i]);
        }
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

/* Variants for any of the op's dtypes: in the order of the first one's list, then those that only others have. */
static void write_variants(struct rpc_output *out, const struct server *s, const struct op *op)
{
    rpc_write_text(out, "variants");
    rpc_write_map(out, s->devices.count);
    for (unsigned i = 0; i < s->devices.count; i++) {
        struct backend_device *d = s->devices.all[i];
        const char *names[VARIANTS];
        unsigned n = 0;

        for (unsigned dtypes = op->dtypes; dtypes; dtypes &= dtypes - 1)
            n = add_names(names, n, d->backend->variants(d, op, (enum dtype)__builtin_ctz(dtypes)));
        rpc_write_text(out, d->info.uuid);
        rpc_write_array(out, n);
        for (unsigned j = 0; j < n; j++)
            rpc_write_text(out, names[j]);
    }
}

static void write_ops(struct rpc_output *out, const struct server *s)
{
    rpc_write_text(out, "ops");
    rpc_write_array(out, OP_COUNT);
    for (unsigned i = 0; i < OP_COUNT; i++) {
        const struct op *op = op_get((enum op_id)i);

        rpc_write_map(out, 10);
        rpc_write_entry_text(out, "name", op->name);
        rpc_write_entry_text(out, "summary", op->summary);
        rpc_write_entry_text(out, "doc", op->doc);
        rpc_write_text(out, "inputs");
        rpc_write_array(out, op->n_inputs);
        for (unsigned j = 0; j < op->n_inputs; j++)
            rpc_write_text(out, op->inputs[j]);
        rpc_write_text(out, "outputs");
        rpc_write_array(out, op->n_outputs);
        for (unsigned j = 0; j < op->n_outputs; j++)
            rpc_write_text(out, op->outputs[j]);
        rpc_write_text(out, "attrs");
        rpc_write_array(out, op->n_attrs);
        for (unsigned j = 0; j < op->n_attrs; j++)
            write_attr(out, &op->attrs[j]);
        rpc_write_text(out, "dtypes");
        write_dtype_names(out, op->dtypes);
        write_in_dtypes(out, op);
        write_out_dtypes(out, op);
        write_variants(out, s, op);
    }
}

static void write_limits(struct rpc_output *out, const struct server *s)
{
    rpc_write_text(out, "limits");
    rpc_write_map(out, 14);
    rpc_write_entry_uint(out, "message_bytes", s->config.message_bytes);
    rpc_write_entry_uint(out, "message_values", RPC_MAX_VALUES);
    rpc_write_entry_uint(out, "depth", RPC_MAX_DEPTH);
    rpc_write_entry_uint(out, "nfds", RPC_MAX_FDS);
    rpc_write_entry_uint(out, "inflight", s->config.inflight);
    rpc_write_entry_uint(out, "buffers", s->config.buffers);
    rpc_write_entry_uint(out, "streams", STREAMS_MAX);
    rpc_write_entry_uint(out, "rank", TENSOR_MAX_RANK);
    rpc_write_entry_uint(out, "repeat", KOPS_MAX_RUN_REPEAT);
    rpc_write_entry_uint(out, "warmup", KOPS_MAX_RUN_WARMUP);
    rpc_write_entry_uint(out, "inline_mappings", s->config.inline_mappings);
    rpc_write_entry_uint(out, "sequence_ops", SEQUENCE_OPS_MAX);
    rpc_write_entry_uint(out, "spin_us", s->config.spin_us);
    rpc_write_entry_uint(out, "source_bytes", s->config.code.source_bytes);
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

static void write_features(struct rpc_output *out, const struct connection *c)
{
    const struct server *s = c->server;
    static const char *const always[] = {"memfd", "shm", "exact", "sequence", "program", "priority", "conditions"};
    static const char *const memory[] = {
        [MEMORY_CUDA_IPC] = "cuda_ipc", [MEMORY_CUDA_VMM] = "cuda_vmm", [MEMORY_CUDA_POOL] = "cuda_pool"};
    const uint32_t n = sizeof(always) / sizeof(always[0]);
    unsigned kinds = 0;
    bool ordered = false, counters = false, exclusive = false, peers = has_peers(s), compile = user_code_compiles(c);
    bool kernels = compile && user_code_device(s), code = compile && user_code_hands_out(c);
    const bool tune = tune_is_there(s);
    bool images = user_code_image_backend(s) && user_code_hands_out(c), guards;

    for (unsigned i = 0; i < s->devices.count; i++) {
        struct backend_device *d = s->devices.all[i];

        kinds |= d->backend->memory_kinds ? d->backend->memory_kinds(d) : 0;
        ordered = ordered || d->signals;
        counters = counters || d->counts;
        exclusive = exclusive || d->ends;
    }
    guards = (kinds & 1U << MEMORY_CUDA_VMM) != 0;
    rpc_write_text(out, "features");
    rpc_write_array(out, n + (unsigned)__builtin_popcount(kinds) + guards + ordered + counters + peers + compile +
                             2 * kernels + code + images + tune + exclusive);
    for (uint32_t i = 0; i < n; i++)
        rpc_write_text(out, always[i]);
    for (unsigned i = 0; i < sizeof(memory) / sizeof(memory[0]); i++)
        if (kinds & 1U << i)
            rpc_write_text(out, memory[i]);
    if (guards)
        rpc_write_text(out, "guards");
    if (ordered)
        rpc_write_text(out, "ordered");
    if (counters)
        rpc_write_text(out, "counters");
    if (exclusive)
        rpc_write_text(out, "exclusive");
    if (peers)
        rpc_write_text(out, "peer");
    if (compile)
        rpc_write_text(out, "compile");
    if (kernels) {
        rpc_write_text(out, "kernels");
        rpc_write_text(out, "structures");
    }
    if (code)
        rpc_write_text(out, "code");
    if (images)
        rpc_write_text(out, "images");
    if (tune)
        rpc_write_text(out, "tune");
}

static void write_shm(struct rpc_output *out)
{
    rpc_write_entry_uint(out, "nfds", CHANNEL_FDS);
    rpc_write_text(out, "shm");
    rpc_write_map(out, 5);
    rpc_write_entry_uint(out, "fd", CHANNEL_MEMORY);
    rpc_write_entry_uint(out, "doorbell", CHANNEL_DOORBELL);
    rpc_write_entry_uint(out, "wake", CHANNEL_WAKE);
    rpc_write_entry_uint(out, "request_bytes", RING_REQUEST_BYTES);
    rpc_write_entry_uint(out, "reply_bytes", RING_REPLY_BYTES);
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
    uint64_t start = rpc_output_position(&c->output);
    bool shm = args[HELLO_shm].b && !r->notification;
    int channel_fds[CHANNEL_FDS];
    struct rpc_output *out;
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
    out = request_result(r);
    if (out) {
        rpc_write_map(out, (shm ? 14U : 12U) + (c->identity != NULL));
        rpc_write_entry_text(out, "server", "kopsd " KOPS_VERSION);
        rpc_write_entry_text(out, "instance", c->server->instance);
        rpc_write_entry_uint(out, "protocol", PROTOCOL);
        rpc_write_entry_uint(out, "protocol_min", PROTOCOL_MIN);
        rpc_write_entry_uint(out, "pid", (uint64_t)getpid());
        write_devices(out, c->server);
        write_ops(out, c->server);
        write_limits(out, c->server);
        write_features(out, c);
        user_code_write_hello(out, c);
        rpc_write_entry_text(out, "isolation", isolation_names[c->isolation]);
        rpc_write_entry_uint(out, "connection", c->number);
        if (c->identity)
            rpc_write_entry_text(out, "identity", c->identity->name);
        if (shm)
            write_shm(out);
        for (unsigned i = 0; shm && i < CHANNEL_FDS; i++)
            if (rpc_output_attach(out, start, channel_fds[i]) < 0)
                out->bytes.failed = true;
    }
    request_end(r);
}

void handle_ping(struct request *r, const struct rpc_arg *args, struct request_fds *fds)
{
    struct rpc_output *out = request_result(r);

    (void)fds;
    if (out)
        rpc_write_raw(out, args[0].text, args[0].length);
    request_end(r);
}
