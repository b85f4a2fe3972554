/* The method launched: launches in clients' own contexts, which the daemon does not see. What a client tells is kept in
 * rows of its own user's, of the variant `here`. */
#include <math.h>
#include <stdio.h>

#include "core/decode.h"
#include "server/code/code.h"
#include "server/code/kernel.h"
#include "server/memory/connection_resources.h"
#include "server/observe/room.h"
#include "server/peer/connection.h"
#include "server/peer/request.h"

enum { ROWS_MAX = 64, SAMPLES_MAX = 64, PATH_LENGTH = 48 };
static const double SAMPLE_MAX_US = 86400e6; /* a day */
static const char VARIANT[] = "here";

/* The op or kernel that a message tells of, and the row that is being read. */
struct told {
    struct op kernel; /* a user kernel's */
    struct tensor tensors[STEP_MAX_OPERANDS];
    unsigned n;
    struct op_call call;
    struct backend_device *device;
    uint64_t count;
    double us[SAMPLES_MAX];
    unsigned n_us;
    char name[PROFILE_NAME_MAX];
};

/* ---- what ---- */

static int decode_kernel(const struct connection *c, const struct rpc_arg *args, struct told *t, struct error *e)
{
    const struct client_module *m;
    unsigned entry;

    if (!args[LAUNCHED_entry].present)
        return error_at(e, ERROR_MISSING_KEY, "", "entry", "names the module's kernel");
    if (connection_find_entry(c, &args[LAUNCHED_module], &args[LAUNCHED_entry], &m, &entry, e) < 0)
        return -1;
    snprintf(t->name, sizeof(t->name), "%s", m->module->compiled->entries[entry].name);
    t->kernel = (struct op){
        .id = OP_COUNT, .code = kernel_identity(m->module->compiled, entry), .name = t->name, .n_inputs = t->n};
    t->call.op = &t->kernel;
    t->device = m->module->device;
    return 0;
}

static int decode_op(const struct rpc_arg *name, struct told *t, struct error *e)
{
    t->call.op = op_find(name->text, name->length);
    if (!t->call.op)
        return error_at(e, ERROR_UNKNOWN_OP, "", "op", "no such op; hello lists them");
    if (t->n != t->call.op->n_inputs + t->call.op->n_outputs)
        return error_at(e, ERROR_INVALID_ARGUMENT, "", "dtypes",
                        "as many as the op has inputs and outputs are expected");
    return 0;
}

static int decode_dtypes(const struct rpc_arg *list, struct told *t, struct error *e)
{
    const struct rpc_value *value = NULL;
    char key[PATH_LENGTH];
    struct rpc_arg name;

    if (list->length > STEP_MAX_OPERANDS)
        return error_at(e, ERROR_LIMIT_EXCEEDED, "", "dtypes", "more tensors than a kernel takes");
    t->n = list->length;
    for (unsigned i = 0; i < t->n; i++) {
        const struct rpc_field text = {.key = key, .type = RPC_STR};

        snprintf(key, sizeof(key), "dtypes[%u]", i);
        value = rpc_list_next(list, value);
        if (rpc_decode_value(value, &text, "", &name, e) < 0 || dtype_decode(&name, "", &t->tensors[i].dtype, e) < 0)
            return -1;
        t->call.tensors[i] = &t->tensors[i];
    }
    return 0;
}

static int decode_what(const struct connection *c, const struct rpc_arg *args, struct told *t, struct error *e)
{
    const bool op = args[LAUNCHED_op].present;

    if (op == args[LAUNCHED_module].present)
        return error_at(e, ERROR_INVALID_ARGUMENT, "", "op", "either op or module says what was launched");
    t->call = (struct op_call){.op = NULL};
    t->device = NULL;
    if (user_code_check_hand_out(c, e) < 0 || decode_dtypes(&args[LAUNCHED_dtypes], t, e) < 0 ||
        (op ? decode_op(&args[LAUNCHED_op], t, e) : decode_kernel(c, args, t, e)) < 0)
        return -1;
    if (!t->device || args[LAUNCHED_device].present)
        t->device = server_device(c->server, &args[LAUNCHED_device], e);
    if (!t->device)
        return -1;
    if (args[LAUNCHED_rows].length > ROWS_MAX)
        return error_at(e, ERROR_LIMIT_EXCEEDED, "", "rows", "at most 64 rows a message");
    return 0;
}

/* ---- a row ---- */

static int decode_shape(const struct rpc_value *value, const char *path, const char *key, struct tensor *t,
                        struct error *e)
{
    const struct rpc_field field = {.key = key, .type = RPC_LIST};
    struct rpc_arg list;

    if (rpc_decode_value(value, &field, path, &list, e) < 0)
        return -1;
    if (list.length > TENSOR_MAX_RANK)
        return error_at(e, ERROR_LIMIT_EXCEEDED, path, key, "more dimensions than limits.rank");
    if (rpc_decode_ints(&list, path, key, t->shape, e) < 0)
        return -1;
    t->rank = list.length;
    t->offset = 0;
    for (unsigned i = 0; i < t->rank; i++)
        if (t->shape[i] < 0)
            return error_at(e, ERROR_OUT_OF_RANGE, path, key, "a dimension is negative");
    tensor_set_contiguous(t);
    return tensor_measure(t, key, e);
}

static int decode_shapes(const struct rpc_arg *list, const char *path, struct told *t, struct error *e)
{
    const struct rpc_value *value = NULL;
    char key[PATH_LENGTH];
    struct plan plan;

    if (list->length != t->n)
        return error_at(e, ERROR_INVALID_ARGUMENT, path, "shapes", "as many as dtypes are expected");
    for (unsigned i = 0; i < t->n; i++) {
        snprintf(key, sizeof(key), "shapes[%u]", i);
        value = rpc_list_next(list, value);
        if (decode_shape(value, path, key, &t->tensors[i], e) < 0)
            return -1;
    }
    return t->call.op == &t->kernel ? 0 : op_plan(&t->call, &plan, e);
}

static int decode_attrs(const struct rpc_arg *attrs, const char *path, struct told *t, struct error *e)
{
    struct rpc_arg variant = {.present = false};

    if (t->call.op != &t->kernel)
        return op_attrs_decode(t->call.op, attrs->present ? attrs->items : NULL, t->call.attrs, &variant, e);
    return attrs->present ? error_at(e, ERROR_INVALID_ARGUMENT, path, "attrs", "a kernel has no attributes") : 0;
}

static int decode_samples(const struct rpc_arg *list, const char *path, struct told *t, struct error *e)
{
    const struct rpc_value *value = NULL;
    char key[PATH_LENGTH];
    struct rpc_arg number;

    t->n_us = list->present ? list->length : 0;
    if (t->n_us > SAMPLES_MAX)
        return error_at(e, ERROR_LIMIT_EXCEEDED, path, "us", "at most 64 times");
    for (unsigned i = 0; i < t->n_us; i++) {
        const struct rpc_field field = {.key = key, .type = RPC_FLOAT};

        snprintf(key, sizeof(key), "us[%u]", i);
        value = rpc_list_next(list, value);
        if (rpc_decode_value(value, &field, path, &number, e) < 0)
            return -1;
        if (!(number.f >= 0 && number.f <= SAMPLE_MAX_US))
            return error_at(e, ERROR_OUT_OF_RANGE, path, key, "a time is from 0 to a day");
        t->us[i] = number.f;
    }
    return 0;
}

static int decode_row(const struct rpc_value *value, unsigned i, struct told *t, struct error *e)
{
    static const struct rpc_field fields[] = {KOPS_PARAMS_LAUNCHES(RPC_FIELD)};
    struct rpc_arg args[LAUNCHES_KEYS];
    char path[PATH_LENGTH];

    snprintf(path, sizeof(path), "rows[%u].", i);
    if (rpc_decode_map(value, fields, LAUNCHES_KEYS, path, args, e) < 0)
        return -1;
    t->count = args[LAUNCHES_count].u;
    if (decode_attrs(&args[LAUNCHES_attrs], path, t, e) < 0)
        return -1;
    return decode_shapes(&args[LAUNCHES_shapes], path, t, e) < 0 ? -1 : decode_samples(&args[LAUNCHES_us], path, t, e);
}

/* ---- the method ---- */

static int walk(struct connection *c, const struct rpc_arg *rows, struct told *t, bool take, struct error *e)
{
    const struct rpc_value *value = NULL;

    for (unsigned i = 0; i < rows->length; i++) {
        value = rpc_list_next(rows, value);
        if (decode_row(value, i, t, e) < 0)
            return -1;
        if (!take)
            continue;
        c->statistics->here += t->count;
        profile_tell(c->server->observe->profile, c->uid, &t->call, t->device, VARIANT, t->count, t->us, t->n_us);
    }
    return 0;
}

void handle_launched(struct request *r, const struct rpc_arg *args, struct request_fds *fds)
{
    struct told told;
    struct error e;

    (void)fds;
    if (decode_what(r->connection, args, &told, &e) < 0 ||
        walk(r->connection, &args[LAUNCHED_rows], &told, false, &e) < 0) {
        request_end_error(r, &e);
        return;
    }
    walk(r->connection, &args[LAUNCHED_rows], &told, true, &e); /* as before */
    request_end_empty(r);
}
