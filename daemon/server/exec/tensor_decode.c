/* Decodes tensor maps: layout, memory, bounds check. */
#include <stdio.h>
#include <string.h>

#include "core/decode.h"
#include "server/exec/command_list.h"
#include "server/exec/room.h"
#include "server/memory/connection_resources.h"
#include "server/peer/connection.h"
#include "server/peer/request.h"

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
