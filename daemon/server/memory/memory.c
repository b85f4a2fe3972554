/* alloc, release and trim. */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "server/code/kernel.h"
#include "server/exec/program.h"
#include "server/peer/connection.h"
#include "server/peer/request.h"
#include "util/shortage.h"

struct backend_device *request_device(struct server *s, const struct rpc_arg *arg, struct error *e)
{
    struct backend_device *d;

    if (!arg->present)
        return s->devices.fallback;
    d = arg->text ? devices_find_uuid(&s->devices, arg->text, arg->length) : devices_find_index(&s->devices, arg->u);
    if (!d) {
        if (s->devices.count == 1)
            error_set(e, ERROR_UNKNOWN_DEVICE, "this daemon has no such device; its only one is 0, %s",
                      s->devices.all[0]->info.uuid);
        else
            error_set(e, ERROR_UNKNOWN_DEVICE, "this daemon has no such device; it has %u, numbered from 0",
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

static void give_back(struct request *r)
{
    host_room_give(&r->connection->server->host_room, &r->alloc.room);
    charge_free(&r->alloc.host);
    charge_free(&r->alloc.charge);
}

/* A mapping of what was allocated, which holds the charges from then on. Takes the memory in every case. The device
 * rounds up, and a descriptor is kept to recognise the memory by. */
static int adopt(struct request *r, struct mapping **ret)
{
    struct connection *c = r->connection;
    struct backend_memory *memory = r->alloc.memory;
    const unsigned fds = memory->kind == MEMORY_MEMFD ? 0 : 1;
    struct error *e = &r->alloc.error;
    struct charge kept = {0};
    struct shared_charge *host = NULL;
    struct mapping_charges *charges;
    struct stat st;
    int own_fd = -1;

    if (charge_change(&r->alloc.charge, c->pid, memory->size, e) < 0 ||
        charge_take(&kept, c->account, c->pid, QUOTA_FDS, fds, e) < 0)
        goto close_memory;
    if (fds && (own_fd = fcntl(r->alloc.fd, F_DUPFD_CLOEXEC, 0)) < 0) {
        error_shortage(e, errno, "keeping the memory");
        goto discharge_fds;
    }
    if (fstat(r->alloc.fd, &st) < 0)
        st = (struct stat){0};
    charge_free(&r->alloc.host); /* there is a file now, which others of the user's connections may register */
    if (memory->kind == MEMORY_MEMFD &&
        !(host = shared_charge_take_file(c->account, c->pid, QUOTA_HOST, st.st_dev, st.st_ino, memory->size, e)))
        goto close_own_fd;
    if (mapping_adopt(&c->server->mappings, memory, r->alloc.device, st.st_ino, own_fd, owner_of(c), ret, e) < 0)
        goto unref_host;
    charges = (*ret)->charges;
    charges->host = host;
    charges->room = host_part_move(&r->alloc.room);
    charges->allocated = charge_move(&r->alloc.charge);
    charges->fds = charge_move(&kept);
    return 0;

unref_host:
    shared_charge_unref(host);
close_own_fd:
    if (own_fd >= 0)
        close(own_fd);
discharge_fds:
    charge_free(&kept);
close_memory:
    r->alloc.device->backend->memory_close(memory);
    give_back(r);
    return -1;
}

static void alloc_done(struct work *work)
{
    struct request *r = (struct request *)(void *)((char *)work - offsetof(struct request, alloc.work));
    struct connection *c = r->connection;
    struct buffer_ref *buffer = NULL;
    struct mapping *m = NULL;
    struct shared_charge *shared;

    if (!r->alloc.memory) {
        give_back(r);
        request_end_error(r, &r->alloc.error);
        return;
    }
    if (adopt(r, &m) < 0) {
        close(r->alloc.fd);
        request_end_error(r, &r->alloc.error);
        return;
    }
    shared = c->closed ? NULL : connection_hold(c, m, 0, &r->alloc.error);
    if (shared)
        buffer = connection_add_buffer(c, m, shared, m->memory->size, BUFFER_ALLOCATED, &r->alloc.error);
    shared_charge_unref(shared);
    mapping_unref(m);
    if (buffer) {
        end_allocated(r, buffer);
        return;
    }
    close(r->alloc.fd);
    if (c->closed)
        request_abandon(r);
    else
        request_end_error(r, &r->alloc.error);
}

static int charge_alloc(struct request *r, struct error *e)
{
    struct connection *c = r->connection;
    const uint64_t host = r->alloc.device->backend->host_memory ? r->alloc.size : 0;

    if (charge_take(&r->alloc.charge, c->account, c->pid, QUOTA_ALLOCATED, r->alloc.size, e) < 0)
        return -1;
    if (charge_take(&r->alloc.host, c->account, c->pid, QUOTA_HOST, host, e) < 0)
        goto discharge;
    if (host_room_take(&c->server->host_room, c->account, host, host, &r->alloc.room, e) < 0)
        goto discharge_host;
    return 0;

discharge_host:
    charge_free(&r->alloc.host);
discharge:
    charge_free(&r->alloc.charge);
    return -1;
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
    if (charge_alloc(r, &e) < 0) {
        request_end_error(r, &e);
        return;
    }
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

static int unknown(struct error *e, const char *key, uint64_t id)
{
    error_set(e, ERROR_UNKNOWN_KERNEL, "this connection has no %s %llu", key, (unsigned long long)id);
    return error_detail_text(e, "key", key);
}

static int release_module(struct connection *c, uint64_t id, struct error *e)
{
    struct module *m = idtable_get(&c->modules, id);

    if (!m)
        return unknown(e, "module", id);
    module_drop(c, m);
    return 0;
}

static int release_kernel(struct connection *c, uint64_t id, struct error *e)
{
    struct kernel *k = idtable_get(&c->kernels, id);

    if (!k)
        return unknown(e, "kernel", id);
    kernel_drop(c, k);
    return 0;
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
    unsigned given = 0;
    struct error e;
    int result;

    (void)fds;
    for (unsigned i = RELEASE_buffer; i <= RELEASE_kernel; i++)
        given += args[i].present;
    if (given != 1)
        result = bad_argument(&e, "buffer", "release takes one of `buffer`, `ipc`, `program`, `module` and `kernel`");
    else if (args[RELEASE_buffer].present)
        result = release_buffer(c, args[RELEASE_buffer].u, &e);
    else if (args[RELEASE_ipc].present)
        result = release_inline(c, &args[RELEASE_ipc], &e);
    else if (args[RELEASE_module].present)
        result = release_module(c, args[RELEASE_module].u, &e);
    else if (args[RELEASE_kernel].present)
        result = release_kernel(c, args[RELEASE_kernel].u, &e);
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
