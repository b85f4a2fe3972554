/* Decodes the ops of run, launch, sequence and program into command lists. Thread: loop. */
#include <stdio.h>
#include <string.h>

#include "core/decode.h"
#include "server/code/kernel.h"
#include "server/exec/command_list.h"
#include "server/exec/run.h"
#include "server/memory/connection_resources.h"
#include "server/peer/connection.h"

/* ---- a kernel's launch: of the method launch, or a step of a sequence ---- */

/* "args[3].": the prefix of an argument's keys in errors. */
static const char *arg_path(unsigned i)
{
    static char paths[KERNEL_MAX_PARAMS][sizeof("args[31].")];

    if (!paths[i][0])
        snprintf(paths[i], sizeof(paths[i]), "args[%u].", i % KERNEL_MAX_PARAMS);
    return paths[i];
}

static int find_kernel(struct connection *c, uint64_t id, struct kernel **ret, struct error *e)
{
    struct kernel *k = connection_kernel(c, id);

    if (!k) {
        error_set(e, ERROR_UNKNOWN_KERNEL, "this connection has no kernel %llu", (unsigned long long)id);
        return error_detail_text(e, "key", "kernel");
    }
    *ret = k;
    return 0;
}

/* ---- launch: geometry ---- */

static int decode_dimensions(const struct rpc_arg *list, const char *key, struct kernel_launch_dimensions *ret,
                             struct error *e)
{
    if (!list->present)
        return 0;
    if (list->length < 1 || list->length > 3)
        return error_at(e, ERROR_INVALID_ARGUMENT, "", key, "takes 1 to 3 numbers");
    ret->n = list->length;
    return rpc_decode_ints(list, "", key, ret->at, e);
}

static int decode_geometry(const struct rpc_arg *grid, const struct rpc_arg *block, const struct rpc_arg *shared,
                           const struct rpc_arg *cluster, struct kernel_launch *ret, struct error *e)
{
    *ret = (struct kernel_launch){.has_shared = shared->present};
    if (shared->present && shared->u > INT64_MAX)
        return error_at(e, ERROR_OUT_OF_RANGE, "", "shared", "is over 2^63");
    ret->shared = (int64_t)shared->u;
    return decode_dimensions(grid, "grid", &ret->grid, e) < 0 ||
                   decode_dimensions(block, "block", &ret->block, e) < 0 ||
                   decode_dimensions(cluster, "cluster", &ret->cluster, e) < 0
               ? -1
               : 0;
}

/* ---- launch: arguments ---- */

static int check_launch_count(const struct kernel *k, const struct rpc_arg *args, struct error *e)
{
    const unsigned count = k->signature->n_params;

    if (args->length == count)
        return 0;
    error_set(e, ERROR_INVALID_ARGUMENT, "args: %s takes %u arguments, not %u", k->signature->op.name, count,
              args->length);
    error_detail_text(e, "key", "args");
    error_detail_number(e, "limit", count);
    return error_detail_number(e, "value", args->length);
}

static int decode_structure(const struct kernel_param *p, const struct rpc_value *value, struct kernel_arg *ret,
                            struct error *e)
{
    static const struct rpc_field type = {.key = "", .type = RPC_BIN};
    struct rpc_arg arg;
    struct error ignored;

    if (rpc_decode_value(value, &type, "", &arg, &ignored) < 0)
        return kernel_scalar_from_bytes(p, NULL, 0, ret, e);
    return kernel_scalar_from_bytes(p, arg.text, arg.length, ret, e);
}

static int decode_scalar(const struct kernel_param *p, const struct rpc_value *value, struct kernel_arg *into,
                         struct error *e)
{
    static const struct rpc_field types[] = {{.key = "", .type = RPC_BOOL},
                                             {.key = "", .type = RPC_INT},
                                             {.key = "", .type = RPC_UINT, .max = UINT64_MAX},
                                             {.key = "", .type = RPC_FLOAT}};
    struct rpc_arg arg;
    unsigned char *ret = into->value;
    struct error ignored;
    char key[16];

    if (p->structure)
        return decode_structure(p, value, into, e);
    if (rpc_is_bool(value) && rpc_decode_value(value, &types[0], "", &arg, e) == 0)
        return kernel_scalar_from_bool(p, arg.b, ret, e);
    if (rpc_is_integer(value)) {
        if (rpc_decode_value(value, &types[1], "", &arg, &ignored) == 0)
            return kernel_scalar_from_int(p, arg.i, ret, e);
        if (rpc_decode_value(value, &types[2], "", &arg, e) == 0)
            return kernel_scalar_from_uint(p, arg.u, ret, e);
    }
    if (rpc_decode_value(value, &types[3], "", &arg, &ignored) == 0)
        return kernel_scalar_from_float(p, arg.f, ret, e);
    snprintf(key, sizeof(key), "args[%u]", p->index);
    error_set(e, ERROR_WRONG_TYPE, "%s: %s is a scalar of type %s: give a number", key, p->name, dtype_name(p->dtype));
    return error_detail_text(e, "key", key);
}

static int not_a_tensor(const struct kernel_param *p, const char *what, struct error *e)
{
    char key[16];

    snprintf(key, sizeof(key), "args[%u]", p->index);
    error_set(e, ERROR_WRONG_TYPE, "%s: %s is a tensor of type %s: give %s, or nil for a null pointer", key, p->name,
              dtype_name(p->dtype), what);
    return error_detail_text(e, "key", key);
}

/* Makes the plan of a step whose tensors and scalars are known. */
static int finish_step(struct command_list *commands, unsigned i, const struct kernel_arg *values,
                       const struct kernel_launch *launch, uint32_t null_operands, struct error *e)
{
    const struct kernel *k = commands->kernels[i];
    const struct tensor *tensors[STEP_MAX_OPERANDS];
    struct step *step = &commands->steps[i];

    for (unsigned o = 0; o < k->signature->n_tensors; o++)
        tensors[o] = null_operands & 1U << o ? NULL : &commands->tensors[step->tensors[o]];
    if (kernel_plan(k->signature, tensors, values, launch, &k->limits, &step->plan, e) < 0)
        return -1;
    step->plan.kernel.function = k->function->id;
    commands->n_launches++;
    step->variant[0] = step->variant_used[0] = '\0';
    return step_plan(commands, i, e);
}

/* ---- launch: one kernel ---- */

static int decode_launch_operands(struct connection *c, struct run *run, const struct rpc_arg *args,
                                  struct kernel_arg *values, uint32_t *ret_null, struct error *e)
{
    const struct kernel_signature *s = run->one_kernel->signature;
    const struct rpc_value *value = NULL;

    *ret_null = 0;
    for (unsigned i = 0; i < s->n_params; i++) {
        const struct kernel_param *p = &s->params[i];
        uint64_t buffer;

        value = rpc_list_next(args, value);
        if (p->kind == KERNEL_SCALAR) {
            if (decode_scalar(p, value, &values[i], e) < 0)
                return -1;
        } else if (rpc_is_nil(value)) {
            run->one_tensors[p->operand] = (struct tensor){.dtype = p->dtype, .rank = 1};
            *ret_null |= 1U << p->operand;
        } else if (!rpc_is_map(value)) {
            return not_a_tensor(p, "a tensor map", e);
        } else if (tensor_decode(c, value, arg_path(i), &run->one_tensors[p->operand], &run->one_refs[p->operand],
                                 &buffer, e) < 0) {
            return -1;
        }
    }
    return 0;
}

static int check_devices(const struct command_list *commands, struct backend_device *device, struct error *e)
{
    char key[24];

    for (unsigned i = 0; i < commands->n_tensors; i++) {
        const struct mapping *m = commands->refs[i].mapping;

        if (!m || !m->device || device_can_access(device, m->device))
            continue;
        error_set(e, ERROR_DEVICE_MISMATCH,
                  "the kernel is loaded on %s, but a tensor lives on %s; compile for that device", device->info.uuid,
                  m->device->info.uuid);
        kernel_operand_key(commands->kernels[0], i, key);
        return error_detail_text(e, "key", key);
    }
    return 0;
}

int launch_decode(struct connection *c, struct run *run, const struct rpc_arg *args, struct error *e)
{
    static const struct rpc_arg no_variant;
    struct kernel_arg values[KERNEL_MAX_PARAMS];
    struct kernel_launch launch;
    struct kernel *k = NULL;
    uint32_t null_operands;

    if (find_kernel(c, args[LAUNCH_kernel].u, &k, e) < 0 || check_launch_count(k, &args[LAUNCH_args], e) < 0 ||
        decode_geometry(&args[LAUNCH_grid], &args[LAUNCH_block], &args[LAUNCH_shared], &args[LAUNCH_cluster], &launch,
                        e) < 0)
        return -1;
    command_list_init_single(run, k->signature->n_tensors);
    run->one_kernel = kernel_ref(k);
    step_set_op(&run->one_step, &k->signature->op);
    run->one_op = &k->signature->op;
    run->device = k->module->device;
    if (decode_launch_operands(c, run, &args[LAUNCH_args], values, &null_operands, e) < 0 ||
        command_list_check_handles(&run->commands, e) < 0 ||
        finish_step(&run->commands, 0, values, &launch, null_operands, e) < 0 ||
        check_devices(&run->commands, run->device, e) < 0)
        return -1;
    return step_place(&run->commands, 0, run->device, &no_variant, e);
}

/* ---- launch: a step ---- */

static int decode_index(struct command_list *commands, struct step *step, const struct kernel_param *p,
                        const struct rpc_value *value, struct error *e)
{
    struct rpc_field field = {.type = RPC_UINT, .max = commands->n_tensors - 1};
    struct rpc_arg arg;
    char key[16];

    snprintf(key, sizeof(key), "args[%u]", p->index);
    field.key = key;
    if (!rpc_is_integer(value))
        return not_a_tensor(p, "its index in `tensors`", e);
    if (rpc_decode_value(value, &field, "", &arg, e) < 0)
        return -1;
    step->tensors[p->operand] = (uint16_t)arg.u;
    return 0;
}

static void set_null(struct command_list *commands, struct step *step, const struct kernel_param *p)
{
    /* All null pointers share this place, so its dtype means nothing. */
    commands->tensors[commands->n_tensors] = (struct tensor){.dtype = p->dtype, .rank = 1};
    step->tensors[p->operand] = (uint16_t)commands->n_tensors;
}

static int refuse_op_keys(const struct rpc_arg *args, struct error *e)
{
    static const char *const keys[] = {[OP_op] = "op", [OP_in] = "in", [OP_out] = "out", [OP_attrs] = "attrs"};

    for (unsigned i = OP_op; i <= OP_attrs; i++)
        if (args[i].present)
            return error_at(e, ERROR_INVALID_ARGUMENT, "", keys[i], "not beside `kernel`, which takes `args`");
    if (!args[OP_args].present)
        return error_at(e, ERROR_MISSING_KEY, "", "args", "required beside `kernel`");
    return 0;
}

/* Fills the i-th step from an op map of a sequence, whose `kernel` is there; makes its plan. */
static int launch_decode_step(struct connection *c, struct command_list *commands, unsigned i,
                              const struct rpc_arg *args, struct error *e)
{
    struct step *step = &commands->steps[i];
    struct kernel_arg values[KERNEL_MAX_PARAMS];
    const struct kernel_signature *s;
    const struct rpc_value *value = NULL;
    struct kernel_launch launch;
    uint32_t null_operands = 0;
    struct kernel *k = NULL;

    if (refuse_op_keys(args, e) < 0 || find_kernel(c, args[OP_kernel].u, &k, e) < 0 ||
        check_launch_count(k, &args[OP_args], e) < 0 ||
        decode_geometry(&args[OP_grid], &args[OP_block], &args[OP_shared], &args[OP_cluster], &launch, e) < 0)
        return -1;
    s = k->signature;
    commands->kernels[i] = kernel_ref(k);
    step_set_op(step, &s->op);
    commands->ops[i] = &s->op;
    for (unsigned p = 0; p < s->n_params; p++) {
        value = rpc_list_next(&args[OP_args], value);
        if (s->params[p].kind == KERNEL_SCALAR) {
            if (decode_scalar(&s->params[p], value, &values[p], e) < 0)
                return -1;
        } else if (rpc_is_nil(value)) {
            set_null(commands, step, &s->params[p]);
            null_operands |= 1U << s->params[p].operand;
        } else if (decode_index(commands, step, &s->params[p], value, e) < 0) {
            return -1;
        }
    }
    return finish_step(commands, i, values, &launch, null_operands, e);
}

/* ---- runs ---- */

static const struct rpc_field op_fields[] = {KOPS_PARAMS_OP(RPC_FIELD)};
enum { PATH_MAX_LENGTH = 32 };

static int unknown_op(struct error *e)
{
    char names[256] = "";

    for (unsigned i = 0, at = 0; i < OP_COUNT && at < sizeof(names); i++)
        at += (unsigned)snprintf(names + at, sizeof(names) - at, "%s%s", i ? ", " : "", op_get(i)->name);
    error_set(e, ERROR_UNKNOWN_OP, "op: no such op; there are %s", names);
    return error_detail_text(e, "key", "op");
}

static int check_count(const struct op *op, uint32_t given, unsigned count, const char *key, struct error *e)
{
    if (given == count)
        return 0;
    error_set(e, given > count ? ERROR_LIMIT_EXCEEDED : ERROR_INVALID_ARGUMENT,
              "%s: %s takes %u tensor%s there, not %u", key, op->name, count, count == 1 ? "" : "s", given);
    error_detail_text(e, "key", key);
    error_detail_number(e, "limit", count);
    return error_detail_number(e, "value", given);
}

/* ---- runs: one op ---- */

/* Prefixes of a single op's tensors in errors. They are written out: formatting them takes longer than decoding. */
static const char *const in_paths[] = {"in[0].", "in[1].", "in[2].", "in[3].", "in[4].", "in[5].", "in[6].", "in[7]."};
static const char *const out_paths[] = {"out[0].", "out[1].", "out[2].", "out[3]."};
_Static_assert(OP_MAX_INPUTS <= sizeof(in_paths) / sizeof(in_paths[0]), "a path an input");
_Static_assert(OP_MAX_OUTPUTS <= sizeof(out_paths) / sizeof(out_paths[0]), "a path an output");

static int decode_operands(struct connection *c, struct command_list *commands, const struct op *op,
                           const struct rpc_arg *list, unsigned first, unsigned count, const char *key,
                           const char *const *paths, struct error *e)
{
    const struct rpc_value *value = NULL;

    if (check_count(op, list->length, count, key, e) < 0)
        return -1;
    for (unsigned i = 0; i < count; i++) {
        uint64_t buffer;

        value = rpc_list_next(list, value);
        if (tensor_decode(c, value, paths[i], &commands->tensors[first + i], &commands->refs[first + i], &buffer, e) <
            0)
            return -1;
    }
    return 0;
}

int run_decode_single(struct connection *c, struct run *run, const struct rpc_arg *args, struct error *e)
{
    const struct op *op = op_find(args[RUN_op].text, args[RUN_op].length);
    struct rpc_arg variant = {0};

    if (!op)
        return unknown_op(e);
    command_list_init_single(run, op->n_inputs + op->n_outputs);
    step_set_op(&run->one_step, op);
    run->one_op = op;
    if (decode_operands(c, &run->commands, op, &args[RUN_in], 0, op->n_inputs, "in", in_paths, e) < 0 ||
        decode_operands(c, &run->commands, op, &args[RUN_out], op->n_inputs, op->n_outputs, "out", out_paths, e) < 0 ||
        op_attrs_decode(op, args[RUN_attrs].items, run->one_step.attrs, &variant, e) < 0 ||
        command_list_check_handles(&run->commands, e) < 0 || step_plan(&run->commands, 0, e) < 0 ||
        command_list_choose_device(c->server, &run->commands, &args[RUN_device], &run->device, e) < 0)
        return -1;
    return step_place(&run->commands, 0, run->device, &variant, e);
}

/* ---- runs: several ops ---- */

static int limit_length(const struct rpc_arg *list, const char *key, unsigned limit, struct error *e)
{
    if (list->length && list->length <= limit)
        return 0;
    if (!list->length) {
        error_set(e, ERROR_INVALID_ARGUMENT, "%s: must not be empty", key);
        return error_detail_text(e, "key", key);
    }
    error_set(e, ERROR_LIMIT_EXCEEDED, "%s: at most %u", key, limit);
    error_detail_text(e, "key", key);
    error_detail_number(e, "limit", limit);
    return error_detail_number(e, "value", list->length);
}

static int decode_indices(struct command_list *commands, struct step *step, const struct op *op,
                          const struct rpc_arg *list, unsigned first, unsigned count, const char *key, struct error *e)
{
    const struct rpc_field item = {.key = key, .type = RPC_UINT, .max = commands->n_tensors - 1};
    const struct rpc_value *value = NULL;
    struct rpc_arg arg;

    if (check_count(op, list->length, count, key, e) < 0)
        return -1;
    for (unsigned i = 0; i < count; i++) {
        value = rpc_list_next(list, value);
        if (rpc_decode_value(value, &item, "", &arg, e) < 0)
            return -1;
        step->tensors[first + i] = (uint16_t)arg.u;
    }
    return 0;
}

static int decode_step(struct connection *c, struct command_list *commands, unsigned i, const struct rpc_value *value,
                       struct rpc_arg *ret_variant, struct error *e)
{
    struct step *step = &commands->steps[i];
    struct rpc_arg args[OP_KEYS];
    const struct op *op;

    if (rpc_decode_map(value, op_fields, OP_KEYS, "", args, e) < 0)
        return -1;
    if (args[OP_kernel].present)
        return launch_decode_step(c, commands, i, args, e);
    for (unsigned f = OP_args; f <= OP_cluster; f++)
        if (args[f].present)
            return error_at(e, ERROR_INVALID_ARGUMENT, "", op_fields[f].key, "takes `kernel` beside it");
    for (unsigned f = OP_op; f <= OP_out; f++)
        if (!args[f].present)
            return error_at(e, ERROR_MISSING_KEY, "", op_fields[f].key, "required");
    op = op_find(args[OP_op].text, args[OP_op].length);
    if (!op)
        return unknown_op(e);
    step_set_op(step, op);
    commands->ops[i] = op;
    if (decode_indices(commands, step, op, &args[OP_in], 0, op->n_inputs, "in", e) < 0 ||
        decode_indices(commands, step, op, &args[OP_out], op->n_inputs, op->n_outputs, "out", e) < 0 ||
        op_attrs_decode(op, args[OP_attrs].items, step->attrs, ret_variant, e) < 0)
        return -1;
    return step_plan(commands, i, e);
}

static int decode_tensors(struct connection *c, struct command_list *commands, const struct rpc_arg *list,
                          uint64_t *ret_buffers, struct error *e)
{
    const struct rpc_value *value = NULL;

    for (unsigned i = 0; i < commands->n_tensors; i++) {
        uint64_t buffer;

        value = rpc_list_next(list, value);
        if (tensor_decode(c, value, tensor_path(i), &commands->tensors[i], &commands->refs[i], &buffer, e) < 0)
            return -1;
        if (ret_buffers)
            ret_buffers[i] = buffer;
    }
    return command_list_check_handles(commands, e);
}

int command_list_decode(struct connection *c, const struct rpc_arg *tensors, const struct rpc_arg *ops,
                        const struct rpc_arg *device, uint64_t *ret_buffers, struct command_memory *counted_in,
                        struct command_list *commands, struct backend_device **ret_device, struct error *e)
{
    const struct rpc_value *value = NULL;
    char prefix[PATH_MAX_LENGTH];

    *commands = (struct command_list){0};
    if (limit_length(tensors, "tensors", SEQUENCE_TENSORS_MAX, e) < 0 ||
        limit_length(ops, "ops", SEQUENCE_OPS_MAX, e) < 0 ||
        command_list_new(commands, tensors->length, ops->length, counted_in, e) < 0)
        return -1;
    if (decode_tensors(c, commands, tensors, ret_buffers, e) < 0 ||
        command_list_choose_device(c->server, commands, device, ret_device, e) < 0)
        return -1;
    for (unsigned i = 0; i < commands->n_steps; i++) {
        struct rpc_arg variant = {0};

        value = rpc_list_next(ops, value);
        if (decode_step(c, commands, i, value, &variant, e) < 0 ||
            step_place(commands, i, *ret_device, &variant, e) < 0) {
            snprintf(prefix, sizeof(prefix), "ops[%u].", i);
            return error_prefix(e, prefix);
        }
    }
    return 0;
}
