/* The method register: makes another process's memory a buffer of the connection. The reply waits until the memory is
 * open. */
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "backend/memory.h"
#include "server/memory/connection_resources.h"
#include "server/peer/request.h"

static int bad_argument(struct error *e, const char *key, const char *why)
{
    error_set(e, ERROR_INVALID_ARGUMENT, "%s", why);
    return error_detail_text(e, "key", key);
}

static enum buffer_kind kind_of(bool writable)
{
    return writable ? BUFFER_WRITABLE : BUFFER_READ_ONLY;
}

static int missing(struct error *e, const char *key, const char *why)
{
    error_set(e, ERROR_MISSING_KEY, "%s", why);
    return error_detail_text(e, "key", key);
}

static void end_registered(struct request *r, const struct buffer_ref *buffer)
{
    request_end_record(r, RECORD(register_reply, .buffer = buffer->id, .size = buffer->size));
}

/* ---- the descriptors that came with the request ---- */

struct named_fds {
    unsigned count;
    unsigned indices[RPC_MAX_FDS];
};

static int check_index(uint64_t index, const char *key, const struct request_fds *fds, struct error *e)
{
    if (index < fds->count)
        return 0;
    error_set(e, ERROR_OUT_OF_RANGE, "fd %llu, but %u came with this message; say nfds and send them with it",
              (unsigned long long)index, fds->count);
    error_detail_number(e, "min", 0);
    error_detail_number(e, "max", (int64_t)fds->count - 1);
    return error_detail_text(e, "key", key);
}

/* Decodes the descriptors named by `fd` or `fds`, each once. */
static int decode_fds(const struct rpc_arg *args, const struct request_fds *fds, struct named_fds *ret, struct error *e)
{
    static const struct rpc_field item = {.key = "fds", .type = RPC_UINT, .max = UINT64_MAX};
    const struct rpc_arg *list = &args[REGISTER_fds];
    const struct rpc_value *value = NULL;
    struct rpc_arg index;
    uint32_t seen = 0;

    if (args[REGISTER_fd].present == list->present)
        return list->present
                   ? bad_argument(e, "fds", "give either `fd` or `fds`")
                   : missing(e, "fd", "this kind needs `fd`, the index of a descriptor sent with this message");
    ret->count = 1;
    ret->indices[0] = (unsigned)args[REGISTER_fd].u;
    if (!list->present)
        return check_index(args[REGISTER_fd].u, "fd", fds, e);
    if (!list->length || list->length > RPC_MAX_FDS)
        return bad_argument(e, "fds",
                            "a message names from one to `limits.nfds` descriptors; register the first ones, "
                            "then `extend` the buffer");
    ret->count = list->length;
    for (unsigned i = 0; i < ret->count; i++) {
        value = rpc_list_next(list, value);
        if (rpc_decode_value(value, &item, "", &index, e) < 0 || check_index(index.u, "fds", fds, e) < 0)
            return -1;
        if (seen & 1U << index.u)
            return bad_argument(e, "fds", "a descriptor is named twice");
        seen |= 1U << index.u;
        ret->indices[i] = (unsigned)index.u;
    }
    return 0;
}

static int decode_one_fd(const struct rpc_arg *args, const struct request_fds *fds, unsigned *ret_index,
                         struct error *e)
{
    struct named_fds named;

    if (decode_fds(args, fds, &named, e) < 0)
        return -1;
    if (named.count != 1)
        return bad_argument(e, "fds", "memory of this kind has one descriptor");
    *ret_index = named.indices[0];
    return 0;
}

/* ---- memory that has to be opened first ---- */

struct registration {
    struct request *request;
    struct mapping_waiter waiter;
    struct shared_charge *shared; /* a reference, for the declared size */
    uint64_t size;
    bool writable;
};

static int check_true_size(const struct mapping *m, uint64_t size, struct error *e)
{
    if (size <= m->memory->size)
        return 0;
    error_set(e, ERROR_OUT_OF_BOUNDS, "the allocation has %llu bytes, less than the declared %llu",
              (unsigned long long)m->memory->size, (unsigned long long)size);
    error_detail_text(e, "key", "size");
    error_detail_number(e, "needed", (int64_t)size);
    return error_detail_number(e, "size", (int64_t)m->memory->size);
}

/* The usable bytes of memory that comes in several messages: those that have come, up to the declared size. */
static uint64_t usable(const struct mapping *m, uint64_t declared)
{
    return declared < m->memory->size ? declared : m->memory->size;
}

static bool grows(const struct mapping *m)
{
    return m->kind == MEMORY_CUDA_VMM && m->fd < 0;
}

/* The registration's mapping was opened (`ok`), or failed to open. */
static void on_opened(struct mapping_waiter *waiter, bool ok)
{
    struct registration *g = waiter->context;
    struct request *r = g->request;
    struct mapping *m = waiter->mapping;
    struct buffer_ref *buffer = NULL;
    struct error e = m->error;

    if (ok && !r->connection->closed && (grows(m) || check_true_size(m, g->size, &e) == 0) &&
        shared_charge_check(g->shared, r->connection->pid, &e) == 0)
        buffer = connection_add_buffer(r->connection, m, g->shared, grows(m) ? usable(m, g->size) : g->size,
                                       kind_of(g->writable), &e);
    shared_charge_unref(g->shared);
    if (buffer)
        end_registered(r, buffer);
    else if (ok && r->connection->closed)
        request_abandon(r);
    else
        request_end_error(r, &e);
    mapping_unuse(m);
    free(g);
}

/* Ends the request once `m` is open. The caller keeps its reference. */
static int register_when_open(struct request *r, struct mapping *m, uint64_t size, bool writable, struct error *e)
{
    struct registration *g = calloc(1, sizeof(*g));

    if (!g)
        return error_set(e, ERROR_OUT_OF_MEMORY, "no memory for a registration");
    g->shared = connection_charge_mapping(r->connection, m, size, e);
    if (!g->shared) {
        free(g);
        return -1;
    }
    g->request = r;
    g->size = size;
    g->writable = writable;
    g->waiter.ready = on_opened;
    g->waiter.context = g;
    g->waiter.mapping = m;
    mapping_use(m);
    if (m->state == MAPPING_OPEN)
        on_opened(&g->waiter, true);
    else
        mapping_wait(m, &g->waiter);
    return 0;
}

static int decode_device(struct request *r, const struct rpc_arg *args, enum backend_memory_kind kind,
                         struct backend_device **ret_device, struct error *e)
{
    struct backend_device *d;

    if (!args[REGISTER_device].present)
        return missing(e, "device", "this kind needs `device`, the UUID of the GPU that holds the memory");
    d = server_device(r->connection->server, &args[REGISTER_device], e);
    if (!d)
        return -1;
    if (!d->backend->memory_kinds || !(d->backend->memory_kinds(d) & 1U << kind)) {
        error_set(e, ERROR_UNSUPPORTED, "device %s does not open such memory of other processes", d->info.uuid);
        return error_detail_text(e, "key", "device");
    }
    *ret_device = d;
    return 0;
}

/* cuda_ipc and cuda_pool: memory known by a handle of 64 bytes. */
static int register_handle(struct request *r, const struct rpc_arg *args, enum backend_memory_kind kind, bool writable,
                           struct request_fds *fds, struct error *e)
{
    struct connection *c = r->connection;
    struct backend_import import = {.kind = kind, .size = args[REGISTER_size].u, .writable = writable};
    const uint64_t *alloc_id = args[REGISTER_alloc_id].present ? &args[REGISTER_alloc_id].u : NULL;
    struct backend_device *device;
    struct mapping *m;
    unsigned index = 0;
    int result;

    if (!args[REGISTER_handle].present)
        return missing(e, "handle", "this kind needs `handle`, 64 bytes that the driver exports");
    if (args[REGISTER_handle].length != BACKEND_IPC_HANDLE_SIZE)
        return bad_argument(e, "handle", "handle must be the 64 bytes of cuIpcGetMemHandle or cuMemPoolExportPointer");
    if (decode_device(r, args, kind, &device, e) < 0)
        return -1;
    if (kind == MEMORY_CUDA_POOL) {
        if (decode_one_fd(args, fds, &index, e) < 0)
            return -1;
        import.fds[import.n_fds++] = fds->fds[index];
    }
    memcpy(import.handle, args[REGISTER_handle].text, sizeof(import.handle));
    if (connection_get_ipc(c, device, &import, alloc_id, &m, e) < 0)
        return -1;
    if (import.n_fds && m->fd == import.fds[0])
        fds->fds[index] = -1;
    result = kept_fds_pay_pool(c, m, e);
    if (result == 0)
        result = register_when_open(r, m, import.size, writable, e);
    mapping_unref(m);
    return result;
}

/* ---- shared host memory ---- */

/* Returns the least number of bytes without pages. */
static uint64_t holes_of(const struct stat *st, uint64_t size)
{
    const uint64_t there = (uint64_t)st->st_blocks * 512;

    return there < size ? size - there : 0;
}

static int register_memfd(struct request *r, const struct rpc_arg *args, bool writable, struct request_fds *fds,
                          struct error *e)
{
    struct connection *c = r->connection;
    struct backend_memory *memory;
    struct buffer_ref *buffer = NULL;
    struct host_room *room = &c->server->host_room;
    struct host_part part = {0};
    struct shared_charge *shared, *host;
    struct mapping_charges *charges;
    struct charge kept = {0};
    struct mapping *m;
    struct stat st;
    unsigned index = 0;

    if (decode_one_fd(args, fds, &index, e) < 0 ||
        memfd_map(fds->fds[index], args[REGISTER_size].u, writable, &memory, e) < 0)
        return -1;
    if (fstat(fds->fds[index], &st) < 0)
        st = (struct stat){0};
    /* The full size is charged before a page is touched: the process that touches a page first pays for it. */
    host = shared_charge_take_file(c->account, c->pid, QUOTA_HOST, st.st_dev, st.st_ino, args[REGISTER_size].u, e);
    if (!host || charge_take(&kept, c->account, c->pid, QUOTA_FDS, memory->fd >= 0, e) < 0 ||
        host_room_take(room, c->account, args[REGISTER_size].u, holes_of(&st, args[REGISTER_size].u), &part, e) < 0)
        goto unref_host;
    if (mapping_adopt(&c->server->mappings, memory, NULL, st.st_ino, -1, connection_owner(c), &m, e) < 0)
        goto give_room;
    charges = m->charges;
    charges->host = host;
    charges->room = part;
    charges->fds = charge_move(&kept);
    shared = connection_charge_mapping(c, m, args[REGISTER_size].u, e);
    if (shared)
        buffer = connection_add_buffer(c, m, shared, args[REGISTER_size].u, kind_of(writable), e);
    shared_charge_unref(shared);
    if (buffer) {
        close(fds->fds[index]); /* closing it frees no memory: the mapping keeps that */
        fds->fds[index] = -1;
        end_registered(r, buffer);
    }
    mapping_unref(m);
    return buffer ? 0 : -1;

give_room:
    host_room_give(room, &part);
unref_host:
    charge_free(&kept);
    shared_charge_unref(host);
    memfd_unmap(memory);
    return -1;
}

/* ---- virtual memory, by descriptors ---- */

/* Decodes the number of bytes of each descriptor. */
static int decode_chunks(const struct rpc_arg *args, const struct named_fds *named, struct backend_import *import,
                         struct error *e)
{
    static const struct rpc_field item = {.key = "chunk_bytes", .type = RPC_UINT, .max = INT64_MAX};
    const struct rpc_arg *list = &args[REGISTER_chunk_bytes];
    const struct rpc_value *value = NULL;

    if (list->present && list->length != named->count)
        return bad_argument(e, "chunk_bytes", "chunk_bytes needs one entry for each descriptor");
    if (!list->present && named->count > 1 && import->size % named->count)
        return bad_argument(e, "chunk_bytes", "size does not divide evenly among the descriptors; say chunk_bytes");
    for (unsigned i = 0; i < named->count; i++) {
        struct rpc_arg bytes;

        if (!list->present) {
            import->fd_bytes[i] = named->count > 1 ? import->size / named->count : 0;
            continue;
        }
        value = rpc_list_next(list, value);
        if (rpc_decode_value(value, &item, "", &bytes, e) < 0)
            return -1;
        if (!bytes.u)
            return bad_argument(e, "chunk_bytes", "a chunk has at least one byte");
        import->fd_bytes[i] = bytes.u;
    }
    return 0;
}

/* Moves the descriptors to the import. */
static void take_fds(const struct named_fds *named, struct request_fds *fds, struct backend_import *import)
{
    import->n_fds = named->count;
    for (unsigned i = 0; i < named->count; i++) {
        import->fds[i] = fds->fds[named->indices[i]];
        fds->fds[named->indices[i]] = -1;
    }
}

static int register_foreign(struct request *r, const struct rpc_arg *args, const struct named_fds *named,
                            struct backend_device *device, bool writable, struct request_fds *fds, struct error *e)
{
    struct connection *c = r->connection;
    struct backend_import import = {.kind = MEMORY_CUDA_VMM, .size = args[REGISTER_size].u, .writable = writable};
    struct mapping *m;
    int result;

    if (decode_chunks(args, named, &import, e) < 0)
        return -1;
    for (unsigned i = 0; i < named->count; i++)
        import.fds[i] = fds->fds[named->indices[i]];
    import.n_fds = named->count;
    if (mapping_get_vmm(&c->server->mappings, device, &import, connection_owner(c), &m, e) < 0)
        return -1;
    take_fds(named, fds, &import);
    result = kept_fds_pay(c, m, named->count, e);
    if (result == 0)
        result = register_when_open(r, m, import.size, writable, e);
    mapping_unref(m);
    return result;
}

/* Memory that alloc made is recognised by its descriptor, and is mapped already. */
static int register_vmm(struct request *r, const struct rpc_arg *args, bool writable, struct request_fds *fds,
                        struct error *e)
{
    struct connection *c = r->connection;
    struct backend_device *device;
    struct named_fds named;
    struct mapping *m = NULL;
    int result;

    if (decode_fds(args, fds, &named, e) < 0 || decode_device(r, args, MEMORY_CUDA_VMM, &device, e) < 0)
        return -1;
    if (named.count == 1)
        m = mapping_find_own(&c->server->mappings, device, fds->fds[named.indices[0]]);
    if (!m)
        return register_foreign(r, args, &named, device, writable, fds, e);
    result = register_when_open(r, m, args[REGISTER_size].u, writable, e);
    mapping_unref(m);
    return result;
}

/* ---- extending ---- */

struct growth {
    struct request *request;
    uint64_t buffer; /* an id: the buffer may be released meanwhile */
    unsigned n_fds;
    struct mapping_extension extension;
};

static void on_extended(struct mapping_extension *x)
{
    struct growth *g = (struct growth *)(void *)((char *)x - offsetof(struct growth, extension));
    struct request *r = g->request;
    struct buffer_ref *buffer = r->connection->closed ? NULL : idtable_get(&r->connection->memory->buffers, g->buffer);

    if (!x->ok)
        kept_fds_refund(x->mapping, g->n_fds);
    if (x->ok && buffer && buffer->mapping == x->mapping) {
        connection_resize_buffer(r->connection, buffer, usable(x->mapping, x->mapping->import.size));
        end_registered(r, buffer);
    } else if (x->ok && r->connection->closed) {
        request_abandon(r);
    } else {
        if (x->ok)
            error_set(&x->error, ERROR_UNKNOWN_BUFFER, "the buffer was released meanwhile");
        request_end_error(r, &x->error);
    }
    free(g);
}

static int check_added(const struct backend_import *import, struct error *e)
{
    uint64_t left = import->size;

    for (unsigned i = 0; i < import->n_fds; i++) {
        if (import->fd_bytes[i] > left)
            left = UINT64_MAX;
        left -= import->fd_bytes[i];
    }
    return left ? bad_argument(e, "size", "with `extend`, size is the bytes that are added: the sum of chunk_bytes")
                : 0;
}

static int extend(struct request *r, const struct rpc_arg *args, struct request_fds *fds, struct error *e)
{
    const struct buffer_ref *buffer = idtable_get(&r->connection->memory->buffers, args[REGISTER_extend].u);
    struct backend_import import = {.kind = MEMORY_CUDA_VMM, .size = args[REGISTER_size].u};
    struct named_fds named;
    struct growth *g;

    if (!buffer) {
        error_set(e, ERROR_UNKNOWN_BUFFER, "this connection has no buffer %llu",
                  (unsigned long long)args[REGISTER_extend].u);
        return error_detail_text(e, "key", "extend");
    }
    if (decode_fds(args, fds, &named, e) < 0 || decode_chunks(args, &named, &import, e) < 0)
        return -1;
    import.n_fds = named.count;
    if (!import.fd_bytes[0])
        import.fd_bytes[0] = import.size;
    if (check_added(&import, e) < 0)
        return -1;
    if (kept_fds_pay(r->connection, buffer->mapping, named.count, e) < 0)
        return -1;
    g = calloc(1, sizeof(*g));
    if (!g) {
        kept_fds_refund(buffer->mapping, named.count);
        return error_set(e, ERROR_OUT_OF_MEMORY, "no memory for a registration");
    }
    for (unsigned i = 0; i < named.count; i++)
        import.fds[i] = fds->fds[named.indices[i]];
    *g = (struct growth){.request = r, .buffer = buffer->id, .n_fds = named.count};
    g->extension.import = import;
    g->extension.done = on_extended;
    if (mapping_extend(buffer->mapping, &g->extension, e) < 0) {
        kept_fds_refund(buffer->mapping, named.count);
        free(g);
        return error_detail_text(e, "key", "extend");
    }
    take_fds(&named, fds, &import);
    return 0;
}

void handle_register(struct request *r, const struct rpc_arg *args, struct request_fds *fds)
{
    bool writable = !args[REGISTER_access].present || rpc_text_is(&args[REGISTER_access], "rw");
    const struct rpc_arg *kind = &args[REGISTER_kind];
    struct error e;
    int result;

    if (!writable && !rpc_text_is(&args[REGISTER_access], "r"))
        result = bad_argument(&e, "access", "access is \"rw\" or \"r\"");
    else if (args[REGISTER_size].u > INT64_MAX)
        result = bad_argument(&e, "size", "size is over 2^63");
    else if (args[REGISTER_extend].present && !rpc_text_is(kind, "cuda_vmm"))
        result = bad_argument(&e, "extend", "only memory of kind \"cuda_vmm\" comes in several messages");
    else if (args[REGISTER_extend].present)
        result = extend(r, args, fds, &e);
    else if (rpc_text_is(kind, "cuda_ipc"))
        result = register_handle(r, args, MEMORY_CUDA_IPC, writable, fds, &e);
    else if (rpc_text_is(kind, "memfd"))
        result = register_memfd(r, args, writable, fds, &e);
    else if (rpc_text_is(kind, "cuda_vmm"))
        result = register_vmm(r, args, writable, fds, &e);
    else if (rpc_text_is(kind, "cuda_pool"))
        result = register_handle(r, args, MEMORY_CUDA_POOL, writable, fds, &e);
    else
        result = bad_argument(&e, "kind", "kind is \"cuda_ipc\", \"memfd\", \"cuda_vmm\" or \"cuda_pool\"");
    if (result < 0)
        request_end_error(r, &e);
}
