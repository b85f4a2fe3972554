#include "server/code/kernel.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "server/code/code.h"
#include "server/code/module.h"
#include "server/code/room.h"
#include "server/memory/connection_resources.h"
#include "server/peer/connection.h"
#include "server/peer/request.h"

static const struct rpc_field param_fields[] = {KOPS_PARAMS_PARAM(RPC_FIELD)};
enum { N_PARAM_FIELDS = sizeof(param_fields) / sizeof(param_fields[0]), PATH_MAX_LENGTH = 32 };

/* ---- life ---- */

struct kernel *kernel_ref(struct kernel *k)
{
    k->refs++;
    return k;
}

void kernel_unref(struct kernel *k)
{
    if (!k || --k->refs)
        return;
    kernel_signature_unref(k->signature);
    shared_charge_unref(k->shared);
    module_unref(k->module);
    free(k);
}

const char *kernel_operand_key(const struct kernel *k, unsigned o, char into[16])
{
    snprintf(into, 16, "args[%u]", k->signature->operands[o]->index);
    return into;
}

/* ---- the declaration ---- */

static int decode_value(const struct rpc_value *value, const char *path, const char *key, struct kernel_value *ret,
                        struct error *e)
{
    const struct rpc_field number = {.key = key, .type = RPC_INT}, text = {.key = key, .type = RPC_STR};
    struct rpc_arg arg;

    *ret = (struct kernel_value){.type = KERNEL_ABSENT};
    if (rpc_is_nil(value))
        return 0;
    if (rpc_is_integer(value)) {
        if (rpc_decode_value(value, &number, path, &arg, e) < 0)
            return -1;
        *ret = (struct kernel_value){.type = KERNEL_NUMBER, .number = arg.i};
        return 0;
    }
    if (!rpc_is_text(value))
        return error_at(e, ERROR_WRONG_TYPE, path, key, "must be an integer, or an expression (str)");
    if (rpc_decode_value(value, &text, path, &arg, e) < 0)
        return -1;
    *ret = (struct kernel_value){.type = KERNEL_TEXT, .text = arg.text, .length = arg.length};
    return 0;
}

static int decode_values(const struct rpc_arg *list, const char *path, const char *key, unsigned max, bool may_be_nil,
                         struct kernel_value *into, struct error *e)
{
    const struct rpc_value *value = NULL;
    char name[PATH_MAX_LENGTH];

    if (list->length > max || (!may_be_nil && !list->length)) {
        error_set(e, ERROR_INVALID_ARGUMENT, "%s%s: takes %u to %u, not %u", path, key, may_be_nil ? 0U : 1U, max,
                  list->length);
        snprintf(name, sizeof(name), "%s%s", path, key);
        return error_detail_text(e, "key", name);
    }
    for (uint32_t i = 0; i < list->length; i++) {
        snprintf(name, sizeof(name), "%s[%u]", key, i);
        value = rpc_list_next(list, value);
        if (decode_value(value, path, name, &into[i], e) < 0)
            return -1;
        if (into[i].type == KERNEL_ABSENT && !may_be_nil)
            return error_at(e, ERROR_WRONG_TYPE, path, name, "must be an integer, or an expression (str)");
    }
    return 0;
}

static int decode_kind(const struct rpc_arg *arg, const char *path, enum kernel_param_kind *ret, struct error *e)
{
    static const char *const names[] = {
        [KERNEL_IN] = "in", [KERNEL_OUT] = "out", [KERNEL_INOUT] = "inout", [KERNEL_SCALAR] = "scalar"};

    for (unsigned i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        if (rpc_text_is(arg, names[i])) {
            *ret = (enum kernel_param_kind)i;
            return 0;
        }
    return error_at(e, ERROR_INVALID_ARGUMENT, path, "kind", "must be in, out, inout or scalar");
}

static int decode_param(const struct rpc_value *value, const char *path, struct kernel_param_declaration *ret,
                        struct error *e)
{
    struct rpc_arg args[N_PARAM_FIELDS];
    char dotted[PATH_MAX_LENGTH + 1];

    snprintf(dotted, sizeof(dotted), "%s.", path);
    if (rpc_decode_map(value, param_fields, N_PARAM_FIELDS, dotted, args, e) < 0)
        return -1;
    *ret = (struct kernel_param_declaration){
        .name = args[PARAM_name].text,
        .name_length = args[PARAM_name].length,
        .rank = args[PARAM_rank].present ? (int)args[PARAM_rank].u : -1,
        .n_shape = args[PARAM_shape].present ? (int)args[PARAM_shape].length : -1,
        .align = args[PARAM_align].u,
        .strided = args[PARAM_strided].b,
    };
    if (decode_kind(&args[PARAM_kind], dotted, &ret->kind, e) < 0 ||
        server_dtype(&args[PARAM_dtype], dotted, &ret->dtype, e) < 0)
        return -1;
    if (args[PARAM_shape].present &&
        decode_values(&args[PARAM_shape], dotted, "shape", TENSOR_MAX_RANK, true, ret->shape, e) < 0)
        return -1;
    return args[PARAM_elements].present
               ? decode_value(args[PARAM_elements].items, dotted, "elements", &ret->elements, e)
               : 0;
}

static int decode_geometry(const struct rpc_arg *list, const char *key, struct kernel_dimensions_declaration *ret,
                           struct error *e)
{
    if (!list->present)
        return 0;
    ret->n = list->length;
    return decode_values(list, "", key, 3, false, ret->at, e);
}

static int decode_declaration(const struct rpc_arg *args, const struct compiled_entry *entry,
                              struct kernel_param_declaration *params, struct kernel_declaration *ret, struct error *e)
{
    const struct rpc_value *value = NULL;
    char path[PATH_MAX_LENGTH];

    *ret = (struct kernel_declaration){
        .entry = entry->name,
        .entry_length = strlen(entry->name),
        .n_params = args[KERNEL_params].length,
        .params = params,
        .alias = args[KERNEL_alias].b,
        .n_binary = entry->n_params,
        .offsets = entry->param_offsets,
        .sizes = entry->param_sizes,
    };
    if (ret->n_params > KERNEL_MAX_PARAMS) {
        error_set(e, ERROR_LIMIT_EXCEEDED, "params: at most %u parameters", KERNEL_MAX_PARAMS);
        error_detail_text(e, "key", "params");
        error_detail_number(e, "limit", KERNEL_MAX_PARAMS);
        return error_detail_number(e, "value", ret->n_params);
    }
    for (unsigned i = 0; i < ret->n_params; i++) {
        snprintf(path, sizeof(path), "params[%u]", i);
        value = rpc_list_next(&args[KERNEL_params], value);
        if (decode_param(value, path, &params[i], e) < 0)
            return -1;
    }
    if (decode_geometry(&args[KERNEL_grid], "grid", &ret->grid, e) < 0 ||
        decode_geometry(&args[KERNEL_block], "block", &ret->block, e) < 0 ||
        decode_geometry(&args[KERNEL_cluster], "cluster", &ret->cluster, e) < 0)
        return -1;
    return args[KERNEL_shared].present ? decode_value(args[KERNEL_shared].items, "", "shared", &ret->shared, e) : 0;
}

/* ---- the method ---- */

static int find_entry(const struct connection *c, const struct rpc_arg *args, const struct client_module **ret_module,
                      unsigned *ret_entry, struct error *e)
{
    const struct client_module *m = idtable_get(&c->code->modules, args[KERNEL_module].u);
    const struct compiled *compiled;

    if (!m) {
        error_set(e, ERROR_UNKNOWN_KERNEL, "this connection has no module %llu",
                  (unsigned long long)args[KERNEL_module].u);
        return error_detail_text(e, "key", "module");
    }
    compiled = m->module->compiled;
    for (unsigned i = 0; i < compiled->n_entries; i++)
        if (rpc_text_is(&args[KERNEL_entry], compiled->entries[i].name)) {
            *ret_module = m;
            *ret_entry = i;
            return 0;
        }
    error_set(e, ERROR_UNKNOWN_KERNEL, "entry: the module was compiled without it; its first one is %.64s",
              compiled->n_entries ? compiled->entries[0].name : "none");
    return error_detail_text(e, "key", "entry");
}

/* Tells the kernel from others of the same name: a part of the binary's key, which is a hash, plus the entry's
 * index. */
static uint64_t identity(const struct compiled *c, unsigned entry)
{
    uint64_t id;

    memcpy(&id, c->key, sizeof(id));
    id += entry;
    return id ? id : 1; /* 0 is for the built-in ops */
}

static int kernel_new(struct connection *c, const struct rpc_arg *args, struct kernel **ret, struct error *e)
{
    struct kernel_param_declaration params[KERNEL_MAX_PARAMS];
    struct kernel_declaration declaration;
    struct kernel *k;
    const struct client_module *named = NULL;
    struct module *module;
    unsigned entry = 0;

    if (find_entry(c, args, &named, &entry, e) < 0)
        return -1;
    module = named->module;
    if (decode_declaration(args, &module->compiled->entries[entry], params, &declaration, e) < 0)
        return -1;
    if (!module->device) {
        error_set(e, ERROR_UNSUPPORTED, "the module is for %s, and no GPU here runs that: it cannot be launched",
                  module->compiled->arch);
        return error_detail_text(e, "key", "module");
    }
    k = calloc(1, sizeof(*k));
    if (!k)
        return error_set(e, ERROR_OUT_OF_MEMORY, "no memory for a kernel");
    if (kernel_signature_new(&declaration, &k->signature, e) < 0) {
        free(k);
        return -1;
    }
    k->refs = 1;
    k->module = module_ref(module);
    k->shared = shared_charge_ref(named->shared);
    k->function = &module->functions[entry];
    k->signature->op.code = identity(module->compiled, entry);
    module->device->backend->kernel_limits(module->device, &k->limits);
    k->limits.function_threads = k->function->max_threads;
    k->limits.static_shared = k->function->static_shared;
    k->id = idtable_add(&c->code->kernels, k);
    if (!k->id) {
        kernel_unref(k);
        return connection_full(c, &c->code->kernels, "kernels", e);
    }
    *ret = k;
    return 0;
}

void handle_kernel(struct request *r, const struct rpc_arg *args, struct request_fds *fds)
{
    struct rpc_output *out;
    struct kernel *k;
    struct error e;

    (void)fds;
    if (kernel_new(r->connection, args, &k, &e) < 0) {
        request_end_error(r, &e);
        return;
    }
    out = request_result(r);
    if (out) {
        rpc_write_map(out, 1);
        rpc_write_entry_uint(out, "kernel", k->id);
    }
    request_end(r);
}
