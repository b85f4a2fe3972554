/* register, alloc, release and trim. */
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "backend/memfd.h"
#include "server/connection.h"
#include "server/program.h"
#include "server/request.h"

struct backend_device *request_device(struct server *s, const struct rpc_arg *arg, struct error *e)
{
    struct backend_device *d;

    if (!arg->present)
        return s->devices.fallback;
    d = arg->text ? devices_find_uuid(&s->devices, arg->text, arg->length) : devices_find_index(&s->devices, arg->u);
    if (!d) {
        error_set(e, ERROR_UNKNOWN_DEVICE, "this daemon serves no such device; hello lists the %u that it has",
                  s->devices.count);
        error_detail_text(e, "key", "device");
    }
    return d;
}

static struct mapping_owner owner_of(const struct connection *c)
{
    return (struct mapping_owner){.uid = c->uid, .pid = c->pid};
}

static int bad_argument(struct error *e, const char *key, const char *why)
{
    error_set(e, ERROR_INVALID_ARGUMENT, "%s", why);
    return error_detail_text(e, "key", key);
}

static int missing(struct error *e, const char *key, const char *why)
{
    error_set(e, ERROR_MISSING_KEY, "%s", why);
    return error_detail_text(e, "key", key);
}

/* ---- register ---- */

static void end_registered(struct request *r, const struct buffer_ref *buffer)
{
    struct rpc_output *out = request_result(r);

    if (out) {
        rpc_write_map(out, 2);
        rpc_write_entry_uint(out, "buffer", buffer->id);
        rpc_write_entry_uint(out, "size", buffer->size);
    }
    request_end(r);
}

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

/* The mapping of a registration was opened, or could not be. */
static void on_registered(struct mapping_waiter *waiter, bool ok)
{
    struct request *r = (struct request *)(void *)((char *)waiter - offsetof(struct request, opening.waiter));
    struct buffer_ref *buffer = r->opening.buffer;
    struct mapping *m = waiter->mapping;
    struct connection *c = r->connection;
    struct error e = m->error;

    if (ok && !c->closed && check_true_size(m, buffer->size, &e) < 0)
        ok = false;
    /* A closed connection has dropped its buffers already. */
    if (!ok && !c->closed)
        connection_drop_buffer(c, buffer);
    if (ok && !c->closed)
        end_registered(r, buffer);
    else
        request_end_error(r, &e);
    mapping_unuse(m);
}

static int register_ipc(struct request *r, const struct rpc_arg *args, bool writable, struct error *e)
{
    struct connection *c = r->connection;
    struct backend_import import = {.kind = MEMORY_CUDA_IPC, .size = args[REGISTER_size].u, .writable = writable};
    struct backend_device *device;
    struct buffer_ref *buffer;
    struct mapping *m;

    if (!args[REGISTER_handle].present)
        return missing(e, "handle", "cuda_ipc needs `handle`, the 64 bytes of cuIpcGetMemHandle");
    if (args[REGISTER_handle].length != BACKEND_IPC_HANDLE_SIZE)
        return bad_argument(e, "handle", "handle must be the 64 bytes of cuIpcGetMemHandle");
    if (!args[REGISTER_device].present)
        return missing(e, "device", "cuda_ipc needs `device`, the UUID of the GPU that holds the memory");
    device = request_device(c->server, &args[REGISTER_device], e);
    if (!device)
        return -1;
    if (!device->backend->memory_import) {
        error_set(e, ERROR_UNSUPPORTED, "device %s has no CUDA memory", device->info.uuid);
        return error_detail_text(e, "key", "device");
    }
    memcpy(import.handle, args[REGISTER_handle].text, sizeof(import.handle));
    if (mapping_get_ipc(&c->server->mappings, device, &import,
                        args[REGISTER_alloc_id].present ? &args[REGISTER_alloc_id].u : NULL, owner_of(c), &m, e) < 0)
        return -1;
    buffer = connection_add_buffer(c, m, import.size, writable, e);
    if (buffer) {
        r->opening.buffer = buffer;
        r->opening.waiter.ready = on_registered;
        r->opening.waiter.mapping = m;
        mapping_use(m);
        if (mapping_is_open(m))
            on_registered(&r->opening.waiter, true);
        else
            mapping_wait(m, &r->opening.waiter);
    }
    mapping_unref(m);
    return buffer ? 0 : -1;
}

/* The one descriptor that `fd` (or a single `fds`) names. */
static int take_fd(const struct rpc_arg *args, const struct request_fds *fds, int *ret_fd, struct error *e)
{
    static const struct rpc_field item = {.key = "fds", .type = RPC_UINT, .max = RPC_MAX_FDS};
    struct rpc_arg index = args[REGISTER_fd];

    if (!args[REGISTER_fd].present && !args[REGISTER_fds].present)
        return missing(e, "fd", "this kind needs `fd`, the index of a descriptor sent with this message");
    if (args[REGISTER_fd].present && args[REGISTER_fds].present)
        return bad_argument(e, "fds", "give either `fd` or `fds`");
    if (args[REGISTER_fds].present) {
        if (args[REGISTER_fds].length != 1) {
            error_set(e, ERROR_UNSUPPORTED, "memory of several chunks cannot be registered here; use one chunk");
            return error_detail_text(e, "key", "fds");
        }
        if (rpc_decode_value(rpc_list_item(args[REGISTER_fds].items, 0), &item, "", &index, e) < 0)
            return -1;
    }
    if (index.u >= fds->count) {
        error_set(e, ERROR_OUT_OF_RANGE, "fd %llu, but %u came with this message; say nfds and send them with it",
                  (unsigned long long)index.u, fds->count);
        error_detail_number(e, "min", 0);
        error_detail_number(e, "max", (int64_t)fds->count - 1);
        return error_detail_text(e, "key", "fd");
    }
    *ret_fd = fds->fds[index.u];
    return 0;
}

static int register_memfd(struct request *r, const struct rpc_arg *args, bool writable, int fd, struct error *e)
{
    struct connection *c = r->connection;
    struct backend_memory *memory;
    struct buffer_ref *buffer;
    struct mapping *m;
    struct stat st;

    if (memfd_map(fd, args[REGISTER_size].u, writable, &memory, e) < 0)
        return -1;
    if (fstat(fd, &st) < 0)
        st.st_ino = 0;
    if (mapping_adopt(&c->server->mappings, memory, NULL, st.st_ino, -1, owner_of(c), &m, e) < 0) {
        memfd_unmap(memory);
        return -1;
    }
    buffer = connection_add_buffer(c, m, args[REGISTER_size].u, writable, e);
    if (buffer)
        end_registered(r, buffer);
    mapping_unref(m);
    return buffer ? 0 : -1;
}

/* What alloc made is known by its descriptor; other VMM memory is not taken. */
static int register_vmm(struct request *r, const struct rpc_arg *args, bool writable, int fd, struct error *e)
{
    struct connection *c = r->connection;
    struct backend_device *device = NULL;
    struct buffer_ref *buffer;
    struct mapping *m;

    if (!args[REGISTER_device].present)
        return missing(e, "device", "cuda_vmm needs `device`, the UUID of the GPU that holds the memory");
    device = request_device(c->server, &args[REGISTER_device], e);
    if (!device)
        return -1;
    m = mapping_find_own(&c->server->mappings, device, fd);
    if (!m) {
        error_set(e, ERROR_UNSUPPORTED,
                  "only memory that this daemon's alloc made can be registered as cuda_vmm; "
                  "allocate with alloc, or use cuda_ipc");
        return error_detail_text(e, "key", "kind");
    }
    buffer = check_true_size(m, args[REGISTER_size].u, e) < 0
                 ? NULL
                 : connection_add_buffer(c, m, args[REGISTER_size].u, writable, e);
    if (buffer)
        end_registered(r, buffer);
    mapping_unref(m);
    return buffer ? 0 : -1;
}

void handle_register(struct request *r, const struct rpc_arg *args, struct request_fds *fds)
{
    bool writable = !args[REGISTER_access].present || rpc_text_is(&args[REGISTER_access], "rw");
    const struct rpc_arg *kind = &args[REGISTER_kind];
    struct error e;
    int fd = -1, result;

    if (!writable && !rpc_text_is(&args[REGISTER_access], "r"))
        result = bad_argument(&e, "access", "access is \"rw\" or \"r\"");
    else if (args[REGISTER_size].u > INT64_MAX)
        result = bad_argument(&e, "size", "size is over 2^63");
    else if (rpc_text_is(kind, "cuda_ipc"))
        result = register_ipc(r, args, writable, &e);
    else if (rpc_text_is(kind, "memfd"))
        result = take_fd(args, fds, &fd, &e) < 0 ? -1 : register_memfd(r, args, writable, fd, &e);
    else if (rpc_text_is(kind, "cuda_vmm"))
        result = take_fd(args, fds, &fd, &e) < 0 ? -1 : register_vmm(r, args, writable, fd, &e);
    else
        result = bad_argument(&e, "kind", "kind is \"cuda_ipc\", \"memfd\" or \"cuda_vmm\"");
    if (result < 0)
        request_end_error(r, &e);
}

/* ---- alloc ---- */

static void alloc_run(struct work *work)
{
    struct request *r = (struct request *)(void *)((char *)work - offsetof(struct request, alloc.work));
    struct backend_device *device = r->alloc.device;

    r->alloc.memory = NULL;
    if (device->backend->memory_alloc(device, r->alloc.size, &r->alloc.memory, &r->alloc.fd, &r->alloc.error) < 0)
        r->alloc.memory = NULL;
}

static void end_allocated(struct request *r, const struct buffer_ref *buffer)
{
    uint64_t start = rpc_output_position(&r->connection->output);
    struct rpc_output *out = request_result(r);

    if (!out) {
        close(r->alloc.fd);
        request_end(r);
        return;
    }
    rpc_write_map(out, 5);
    rpc_write_entry_uint(out, "buffer", buffer->id);
    rpc_write_entry_uint(out, "size", buffer->size);
    rpc_write_entry_text(out, "kind", buffer->mapping->kind == MEMORY_MEMFD ? "memfd" : "cuda_vmm");
    rpc_write_entry_uint(out, "nfds", 1);
    rpc_write_entry_uint(out, "fd", 0);
    if (rpc_output_attach(out, start, r->alloc.fd) < 0)
        out->bytes.failed = true;
    request_end(r);
}

static void alloc_done(struct work *work)
{
    struct request *r = (struct request *)(void *)((char *)work - offsetof(struct request, alloc.work));
    struct connection *c = r->connection;
    struct backend_memory *memory = r->alloc.memory;
    struct buffer_ref *buffer;
    struct mapping *m;
    struct stat st;
    int own_fd;

    if (!memory) {
        request_end_error(r, &r->alloc.error);
        return;
    }
    if (fstat(r->alloc.fd, &st) < 0)
        st.st_ino = 0;
    own_fd = memory->kind == MEMORY_MEMFD ? -1 : dup(r->alloc.fd);
    if (mapping_adopt(&c->server->mappings, memory, r->alloc.device, st.st_ino, own_fd, owner_of(c), &m,
                      &r->alloc.error) < 0) {
        if (own_fd >= 0)
            close(own_fd);
        r->alloc.device->backend->memory_close(memory);
        close(r->alloc.fd);
        request_end_error(r, &r->alloc.error);
        return;
    }
    buffer = c->closed ? NULL : connection_add_buffer(c, m, memory->size, true, &r->alloc.error);
    mapping_unref(m);
    if (buffer) {
        end_allocated(r, buffer);
        return;
    }
    close(r->alloc.fd);
    request_end_error(r, &r->alloc.error);
}

void handle_alloc(struct request *r, const struct rpc_arg *args, struct request_fds *fds)
{
    struct error e;

    (void)fds;
    r->alloc.device = request_device(r->connection->server, &args[ALLOC_device], &e);
    if (!r->alloc.device) {
        request_end_error(r, &e);
        return;
    }
    if (args[ALLOC_size].u > INT64_MAX) {
        bad_argument(&e, "size", "size is over 2^63");
        request_end_error(r, &e);
        return;
    }
    r->alloc.size = args[ALLOC_size].u;
    r->alloc.error.code = ERROR_INTERNAL;
    work_submit(&r->connection->server->loop, &r->alloc.work, alloc_run, alloc_done);
}

/* ---- release, trim ---- */

static int release_buffer(struct connection *c, uint64_t id, struct error *e)
{
    struct buffer_ref *buffer = idtable_get(&c->buffers, id);

    if (!buffer) {
        error_set(e, ERROR_UNKNOWN_BUFFER, "this connection has no buffer %llu", (unsigned long long)id);
        return error_detail_text(e, "key", "buffer");
    }
    connection_drop_buffer(c, buffer);
    return 0;
}

static int release_inline(struct connection *c, const struct rpc_arg *handle, struct error *e)
{
    if (handle->length == BACKEND_IPC_HANDLE_SIZE && connection_drop_inline(c, (const unsigned char *)handle->text))
        return 0;
    error_set(e, ERROR_UNKNOWN_BUFFER, "this connection has no inline reference with that handle");
    return error_detail_text(e, "key", "ipc");
}

static int release_program(struct connection *c, uint64_t id, struct error *e)
{
    struct program *p = idtable_get(&c->programs, id);

    if (!p) {
        error_set(e, ERROR_UNKNOWN_PROGRAM, "this connection has no program %llu", (unsigned long long)id);
        return error_detail_text(e, "key", "program");
    }
    program_drop(c, p);
    return 0;
}

void handle_release(struct request *r, const struct rpc_arg *args, struct request_fds *fds)
{
    struct connection *c = r->connection;
    struct error e;
    int result;

    (void)fds;
    if (args[RELEASE_buffer].present + args[RELEASE_ipc].present + args[RELEASE_program].present != 1)
        result = bad_argument(&e, "buffer", "release takes one of `buffer`, `ipc` and `program`");
    else if (args[RELEASE_buffer].present)
        result = release_buffer(c, args[RELEASE_buffer].u, &e);
    else if (args[RELEASE_ipc].present)
        result = release_inline(c, &args[RELEASE_ipc], &e);
    else
        result = release_program(c, args[RELEASE_program].u, &e);
    if (result < 0)
        request_end_error(r, &e);
    else
        request_end_empty(r);
}

void handle_trim(struct request *r, const struct rpc_arg *args, struct request_fds *fds)
{
    (void)args;
    (void)fds;
    barrier_enqueue(r);
}

static void trim_one(struct mapping *m, uint64_t *bytes, uint64_t *count)
{
    uint64_t n = mapping_trim(m);

    *bytes += n;
    *count += n > 0;
}

/* The reply says that the memory is unpinned, so it waits for the driver: also for what release began to close before.
 */
static void trim_done(struct mapping_flush *flush)
{
    struct request *r = (struct request *)(void *)((char *)flush - offsetof(struct request, barrier.flush));
    struct rpc_output *out = request_result(r);

    if (out) {
        rpc_write_map(out, 2);
        rpc_write_entry_uint(out, "unpinned", r->barrier.bytes);
        rpc_write_entry_uint(out, "mappings", r->barrier.count);
    }
    request_end(r);
}

void trim_now(struct request *r)
{
    struct connection *c = r->connection;

    r->barrier.bytes = r->barrier.count = 0;
    for (uint32_t i = 0; i < c->buffers.capacity; i++) {
        struct buffer_ref *buffer = idtable_at(&c->buffers, i);

        if (buffer)
            trim_one(buffer->mapping, &r->barrier.bytes, &r->barrier.count);
    }
    list_for_each_safe (node, after, &c->inline_lru)
        trim_one(list_entry(node, struct inline_ref, lru)->mapping, &r->barrier.bytes, &r->barrier.count);
    r->barrier.flush.done = trim_done;
    mapping_flush(&c->server->mappings, &r->barrier.flush);
}
