/* Decodes one step: its tensors (layout, memory, bounds), its plan, its overlap check, its device and variant. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/decode.h"
#include "core/step.h"
#include "server/code/kernel.h"
#include "server/exec/command_list.h"
#include "server/exec/room.h"
#include "server/memory/connection_resources.h"
#include "server/peer/connection.h"
#include "server/peer/request.h"

/* ---- tensors ---- */

enum { PATH_MAX_LENGTH = 32 };

static const struct rpc_field tensor_fields[] = {KOPS_PARAMS_TENSOR(RPC_FIELD)};

static int decode_dimensions(const struct rpc_arg *list, const char *key, const char *path, int64_t *into,
                             struct error *e)
{
    if (rpc_decode_ints(list, path, key, into, e) < 0)
        return -1;
    for (uint32_t i = 0; i < list->length; i++)
        if (into[i] < 0) {
            error_at(e, ERROR_OUT_OF_RANGE, path, key, "must not be negative; copy the tensor to get rid of them");
            error_detail_number(e, "min", 0);
            return error_detail_number(e, "max", INT64_MAX);
        }
    return 0;
}

int tensor_decode_layout(const struct rpc_arg *args, const char *path, struct tensor *t, struct error *e)
{
    if (dtype_decode(&args[TENSOR_dtype], path, &t->dtype, e) < 0)
        return -1;
    if (args[TENSOR_shape].length > TENSOR_MAX_RANK) {
        error_at(e, ERROR_LIMIT_EXCEEDED, path, "shape", "more dimensions than limits.rank");
        error_detail_number(e, "limit", TENSOR_MAX_RANK);
        return error_detail_number(e, "value", args[TENSOR_shape].length);
    }
    t->rank = args[TENSOR_shape].length;
    t->offset = args[TENSOR_offset].u;
    if (decode_dimensions(&args[TENSOR_shape], "shape", path, t->shape, e) < 0)
        return -1;
    if (!args[TENSOR_strides].present) {
        tensor_set_contiguous(t);
    } else {
        if (args[TENSOR_strides].length != t->rank)
            return error_at(e, ERROR_INVALID_ARGUMENT, path, "strides", "needs as many entries as shape");
        if (decode_dimensions(&args[TENSOR_strides], "strides", path, t->strides, e) < 0)
            return -1;
    }
    return 0;
}

/* "in[0]" from "in[0].", for errors. */
static const char *name_of(const char *path, char into[PATH_MAX_LENGTH])
{
    size_t n = strlen(path) - 1;

    if (n > PATH_MAX_LENGTH - 1)
        n = PATH_MAX_LENGTH - 1;
    memcpy(into, path, n);
    into[n] = '\0';
    return into;
}

/* Resolves an inline reference: to the connection's cached one, or to a new mapping. */
static int resolve_inline(struct connection *c, const struct rpc_arg *args, const char *path, struct operand_ref *ref,
                          uint64_t *ret_size, struct error *e)
{
    struct backend_import import = {.kind = MEMORY_CUDA_IPC, .size = args[TENSOR_size].u, .writable = true};
    struct backend_device *device;
    const struct inline_ref *known = NULL;
    char name[PATH_MAX_LENGTH];
    struct mapping *m;

    if (args[TENSOR_ipc].length != BACKEND_IPC_HANDLE_SIZE)
        return error_at(e, ERROR_INVALID_ARGUMENT, path, "ipc", "must be the 64 bytes of cuIpcGetMemHandle");
    if (!args[TENSOR_size].present)
        return error_at(e, ERROR_MISSING_KEY, path, "size", "required beside ipc");
    if (!args[TENSOR_device].present)
        return error_at(e, ERROR_MISSING_KEY, path, "device", "required beside ipc");
    device = server_device(c->server, &args[TENSOR_device], e);
    if (!device)
        return error_at(e, ERROR_UNKNOWN_DEVICE, path, "device",
                        "this daemon serves no such device; hello lists its own");
    if (!device->backend->memory_import)
        return error_at(e, ERROR_UNSUPPORTED, path, "device", "that device has no CUDA memory");
    memcpy(import.handle, args[TENSOR_ipc].text, sizeof(import.handle));
    *ret_size = import.size;
    ref->writable = true;
    if (args[TENSOR_alloc_id].present)
        known = connection_find_inline(c, device, import.handle, args[TENSOR_alloc_id].u);
    if (known) {
        mapping_use(known->mapping);
        ref->mapping = known->mapping;
        ref->shared = shared_charge_ref(known->shared);
        return 0;
    }
    if (connection_get_ipc(c, device, &import, args[TENSOR_alloc_id].present ? &args[TENSOR_alloc_id].u : NULL, &m, e) <
        0)
        return error_detail_text(e, "key", name_of(path, name));
    ref->shared = connection_charge_mapping(c, m, import.size, e);
    if (!ref->shared) {
        mapping_unref(m);
        return error_detail_text(e, "key", name_of(path, name));
    }
    if (m->keyed)
        connection_add_inline(c, m, ref->shared);
    mapping_use(m);
    ref->mapping = m;
    mapping_unref(m);
    return 0;
}

int tensor_use_buffer(struct connection *c, uint64_t id, const char *path, struct operand_ref *ref, uint64_t *ret_size,
                      struct error *e)
{
    const struct buffer_ref *buffer = idtable_get(&c->memory->buffers, id);

    if (!buffer)
        return error_at(e, ERROR_UNKNOWN_BUFFER, path, "buffer",
                        "this connection has no such buffer; register it first");
    if (buffer->mapping->stale)
        return error_at(e, ERROR_STALE_BUFFER, path, "buffer",
                        "its allocation was freed and replaced by its owner; release it and register the new one");
    mapping_use(buffer->mapping);
    ref->mapping = buffer->mapping;
    ref->shared = shared_charge_ref(buffer->shared);
    ref->writable = buffer->writable;
    *ret_size = buffer->size;
    return 0;
}

int tensor_decode(struct connection *c, const struct rpc_value *value, const char *path, struct tensor *t,
                  struct operand_ref *ref, uint64_t *ret_buffer, struct error *e)
{
    struct rpc_arg args[TENSOR_KEYS];
    char name[PATH_MAX_LENGTH];
    uint64_t size = 0;

    *ret_buffer = 0;
    if (rpc_decode_map(value, tensor_fields, TENSOR_KEYS, path, args, e) < 0 ||
        tensor_decode_layout(args, path, t, e) < 0)
        return -1;
    if (tensor_measure(t, path, e) < 0)
        return tensor_measure(t, name_of(path, name), e); /* names the tensor in the error */
    if (args[TENSOR_buffer].present && args[TENSOR_ipc].present)
        return error_at(e, ERROR_INVALID_ARGUMENT, path, "ipc", "give either buffer or ipc");
    if (args[TENSOR_ipc].present) {
        if (resolve_inline(c, args, path, ref, &size, e) < 0)
            return -1;
    } else if (args[TENSOR_buffer].present) {
        if (tensor_use_buffer(c, args[TENSOR_buffer].u, path, ref, &size, e) < 0)
            return -1;
        *ret_buffer = args[TENSOR_buffer].u;
    } else if (t->count) {
        return error_at(e, ERROR_MISSING_KEY, path, "buffer", "required (or ipc) for a tensor that is not empty");
    } else {
        return 0;
    }
    if (tensor_check_bounds(t, size, path, e) < 0)
        return tensor_check_bounds(t, size, name_of(path, name), e);
    return 0;
}

/* ---- the step: what it computes ---- */

static const struct kernel_signature *signature_of(const struct command_list *commands, unsigned i)
{
    return commands->kernels[i] ? commands->kernels[i]->signature : NULL;
}

static int check_writable(const struct command_list *commands, unsigned i, const struct op *op, struct error *e)
{
    const struct step *step = &commands->steps[i];
    char key[16], dotted[20];

    for (unsigned o = op->n_inputs; o < op->n_inputs + op->n_outputs; o++) {
        const struct operand_ref *ref = &commands->refs[step->tensors[o]];

        if (!ref->mapping || ref->writable)
            continue;
        snprintf(dotted, sizeof(dotted), "%s.", operand_key(op, signature_of(commands, i), o, key));
        return error_at(e, ERROR_READ_ONLY, dotted, "buffer", "was registered with access \"r\", but is an output");
    }
    return 0;
}

/* Where a step's operands lie. */
struct places {
    const struct command_list *commands;
    const struct step *step;
};

static bool same_memory(const void *context, unsigned a, unsigned b)
{
    const struct places *p = context;
    const struct mapping *x = p->commands->refs[p->step->tensors[a]].mapping;
    const struct mapping *y = p->commands->refs[p->step->tensors[b]].mapping;

    return x && y && mapping_same_memory(x, y);
}

static int check_overlap(struct command_list *commands, unsigned i, const struct op *op, struct error *e)
{
    struct step *step = &commands->steps[i];
    const struct tensor *tensors[STEP_MAX_OPERANDS];
    const struct places places = {commands, step};
    const struct overlap_call call = {.op = op,
                                      .kernel = signature_of(commands, i),
                                      .kind = step->plan.kind,
                                      .tensors = tensors,
                                      .same_memory = same_memory,
                                      .context = &places,
                                      .budget = &commands->search_steps};

    for (unsigned o = 0; o < op->n_inputs + op->n_outputs; o++)
        tensors[o] = &commands->tensors[step->tensors[o]];
    return overlap_check(&call, &step->in_place, e);
}

/* Checks that a kernel's operands are aligned as declared, also after memory was bound anew. */
static int check_alignment(const struct command_list *commands, unsigned i, struct error *e)
{
    const struct kernel *k = commands->kernels[i];
    const struct kernel_signature *s = k->signature;
    char key[16];

    for (unsigned o = 0; o < s->n_tensors; o++) {
        const struct kernel_param *p = s->operands[o];

        if (!p->align || commands->tensors[commands->steps[i].tensors[o]].offset % p->align == 0)
            continue;
        error_set(e, ERROR_MISALIGNED, "%s: %s must be aligned to %u bytes", kernel_operand_key(k, o, key), p->name,
                  p->align);
        return error_detail_text(e, "key", key);
    }
    return 0;
}

int step_plan(struct command_list *commands, unsigned i, struct error *e)
{
    const struct op_call call = command_list_call(commands, i);

    if (check_writable(commands, i, call.op, e) < 0)
        return -1;
    /* A kernel's plan exists already; of it, other memory changes the alignment alone. */
    if (commands->kernels[i]) {
        if (check_alignment(commands, i, e) < 0)
            return -1;
    } else if (op_plan(&call, &commands->steps[i].plan, e) < 0) {
        return -1;
    }
    return check_overlap(commands, i, call.op, e);
}

/* ---- the step: where ---- */

static int choose_variant(struct step *step, const struct op *op, struct backend_device *d,
                          const struct rpc_arg *variant, struct error *e)
{
    const char *const *names = d->backend->variants(d, op, step->plan.dtype);
    char all[160] = "";
    int n = 0;

    if (!names) {
        error_set(e, ERROR_UNSUPPORTED, "device %s does not offer %s for %s", d->info.uuid, op->name,
                  dtype_name(step->plan.dtype));
        return error_detail_text(e, "key", "op");
    }
    if (!variant->present)
        return 0;
    for (; *names; names++) {
        if (rpc_text_is(variant, *names)) {
            step_copy_variant(step->variant, *names);
            return 0;
        }
        if (n < (int)sizeof(all) - 1)
            n += snprintf(all + n, sizeof(all) - (size_t)n, " %s", *names);
    }
    error_set(e, ERROR_INVALID_ARGUMENT, "attrs.variant: this device has for %s of %s only:%s", op->name,
              dtype_name(step->plan.dtype), all);
    return error_detail_text(e, "key", "attrs.variant");
}

/* Fills in where each operand lies within its memory. */
static void set_operands(struct command_list *commands, unsigned i)
{
    struct step *step = &commands->steps[i];
    const unsigned operands = step_operands(step);

    for (unsigned o = 0; o < operands; o++) {
        const struct tensor *t = &commands->tensors[step->tensors[o]];

        /* An empty tensor's offset may be anything. */
        step->operands[o] = (struct step_operand){.offset = t->extent ? t->offset : 0, .extent = t->extent};
    }
}

int step_place(struct command_list *commands, unsigned i, struct backend_device *device, const struct rpc_arg *variant,
               struct error *e)
{
    const struct kernel *k = commands->kernels[i];

    if (k && k->module->device != device) {
        error_set(e, ERROR_DEVICE_MISMATCH, "the kernel is loaded on %s, but this runs on %s: say so with `device`",
                  k->module->device->info.uuid, device->info.uuid);
        return error_detail_text(e, "key", "kernel");
    }
    if (!k && choose_variant(&commands->steps[i], commands->ops[i], device, variant, e) < 0)
        return -1;
    set_operands(commands, i);
    return device->backend->check ? device->backend->check(device, &commands->steps[i], e) : 0;
}
