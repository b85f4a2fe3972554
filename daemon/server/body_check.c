/* What concerns a body as a whole: its device, its handles, whether it may be repeated. */
#include <stdio.h>

#include "server/body.h"
#include "server/request.h"

/* The first place where the tensor is used: "in[0]" of a single op, "tensors[0]" of several. */
static int blame_tensor(const struct body *body, unsigned i, const char *single, struct error *e)
{
    char key[24];

    snprintf(key, sizeof(key), "tensors[%u]", i);
    return error_detail_text(e, "key", body->memory ? key : single);
}

static const char *side_of(const struct body *body, unsigned i)
{
    /* Of several ops none is decoded yet, and the tensor's index says it. */
    return body->memory || i < body->calls[0].call.op->n_inputs ? "in" : "out";
}

/* The device of the last tensor that is on one: of a single op that is an output's. NULL: all are memfds. */
static struct backend_device *device_of_last(const struct body *body)
{
    for (unsigned i = body->n_tensors; i--;)
        if (body->refs[i].mapping && body->refs[i].mapping->device)
            return body->refs[i].mapping->device;
    return NULL;
}

bool device_can_access(struct backend_device *device, struct backend_device *owner)
{
    return device == owner || (device->backend == owner->backend && device->backend->can_access &&
                               device->backend->can_access(device, owner));
}

int body_choose_device(struct server *s, const struct body *body, const struct rpc_arg *arg,
                       struct backend_device **ret_device, struct error *e)
{
    struct backend_device *tensors = device_of_last(body), *device = tensors;

    if (!tensors || arg->present) {
        device = request_device(s, arg, e);
        if (!device)
            return -1;
    }
    for (unsigned i = 0; i < body->n_tensors; i++) {
        const struct mapping *m = body->refs[i].mapping;

        if (!m || !m->device || device_can_access(device, m->device))
            continue;
        if (arg->present) {
            error_set(e, ERROR_DEVICE_MISMATCH,
                      "the tensors live on %s, but device says %s, which has no access to that memory",
                      m->device->info.uuid, device->info.uuid);
            return error_detail_text(e, "key", "device");
        }
        error_set(
            e, ERROR_DEVICE_MISMATCH,
            "the tensors live on %s and on %s, which have no access to each other's memory; move them to one device",
            device->info.uuid, m->device->info.uuid);
        return blame_tensor(body, i, side_of(body, i), e);
    }
    *ret_device = device;
    return 0;
}

static bool is_ipc(const struct mapping *m)
{
    return m && m->kind == MEMORY_CUDA_IPC;
}

int body_check_handles(const struct body *body, struct error *e)
{
    const struct mapping *first = NULL;

    for (unsigned i = 0; i < body->n_tensors; i++) {
        const struct mapping *m = body->refs[i].mapping;

        if (is_ipc(m) && first && m != first && m->keyed != first->keyed) {
            error_set(e, ERROR_INVALID_ARGUMENT, "give alloc_id with every reference of a request, or with none");
            return error_detail_text(e, "key", "alloc_id");
        }
        if (is_ipc(m) && !first)
            first = m;
        if (m && m->stale) {
            error_set(e, ERROR_STALE_BUFFER,
                      "two references of this request have equal handles but different "
                      "alloc_ids; the older allocation was freed");
            return blame_tensor(body, i, side_of(body, i), e);
        }
    }
    return 0;
}

/* ---- repeating ---- */

/* The t-th tensor of call i: its memory and view. */
static const struct mapping *memory_of(const struct body *body, unsigned i, unsigned t)
{
    return body->refs[body->calls[i].tensors[t]].mapping;
}

static const struct tensor *view_of(const struct body *body, unsigned i, unsigned t)
{
    return &body->calls[i].call.tensors[t];
}

/* Whether a call before `i` writes exactly what its t-th tensor is. */
static bool is_written_before(const struct body *body, unsigned i, unsigned t)
{
    for (unsigned j = 0; j < i; j++) {
        const struct op *op = body->calls[j].call.op;

        for (unsigned o = op->n_inputs; o < op->n_inputs + op->n_outputs; o++)
            if (memory_of(body, j, o) && mapping_same_memory(memory_of(body, j, o), memory_of(body, i, t)) &&
                tensor_same_view(view_of(body, j, o), view_of(body, i, t)))
                return true;
    }
    return false;
}

/* Whether call `i` or a later one writes an element of its t-th tensor. */
static bool is_written_after(const struct body *body, unsigned i, unsigned t)
{
    for (unsigned j = i; j < body->n_calls; j++) {
        const struct op *op = body->calls[j].call.op;

        for (unsigned o = op->n_inputs; o < op->n_inputs + op->n_outputs; o++)
            if (memory_of(body, j, o) && mapping_same_memory(memory_of(body, j, o), memory_of(body, i, t)) &&
                tensor_share_elements(view_of(body, j, o), view_of(body, i, t)))
                return true;
    }
    return false;
}

static int refuse(const struct body *body, unsigned i, struct error *e)
{
    if (!body->memory)
        error_set(e, ERROR_INVALID_ARGUMENT,
                  "repeat: the op reads what it writes (in place, or beta is not 0), so repeating would apply it again "
                  "and again; use another output");
    else
        error_set(e, ERROR_INVALID_ARGUMENT,
                  "repeat: op %u reads what it or a later op writes, so repeating would compute something else each "
                  "time; use another output",
                  i);
    error_detail_text(e, "key", "repeat");
    return body->memory ? error_detail_number(e, "op_index", i) : -1;
}

int body_check_repeat(const struct body *body, struct error *e)
{
    for (unsigned i = 0; i < body->n_calls; i++) {
        const struct op *op = body->calls[i].call.op;
        /* gemm with beta reads its output, too. */
        const bool accumulates = op_reads_output(&body->calls[i].call, -1);
        const unsigned n = op->n_inputs + (accumulates ? op->n_outputs : 0);

        for (unsigned t = 0; t < n; t++)
            if (memory_of(body, i, t) && is_written_after(body, i, t) && !is_written_before(body, i, t))
                return refuse(body, i, e);
    }
    return 0;
}
