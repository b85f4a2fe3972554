/* The methods alloc and trim. alloc: the backend makes zeroed memory on the pool, and the client gets its descriptor.
 * trim: closes the connection's unused mappings. */
#include "server/memory/connection_resources.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "server/peer/connection.h"
#include "server/peer/request.h"
#include "util/error.h"

/* The state of an alloc request. */
struct alloc {
    struct work work;
    struct backend_device *device;
    uint64_t size;
    struct charge charge;  /* QUOTA_ALLOCATED; moves to the mapping */
    struct charge host;    /* QUOTA_HOST; freed when there is a file to charge */
    struct host_part room; /* charge in the server's host_room; moves to the mapping */
    struct backend_memory *memory;
    int fd;
    struct error error;
};

/* The state of a trim request. */
struct trim {
    struct mapping_flush flush;
    uint64_t bytes, count; /* trimmed */
};
const size_t alloc_state_bytes = sizeof(struct alloc), trim_state_bytes = sizeof(struct trim);

static struct alloc *alloc_of(const struct request *r)
{
    return request_state(r);
}

static struct trim *trim_of(const struct request *r)
{
    return request_state(r);
}

/* ---- alloc ---- */

static void alloc_run(struct work *work)
{
    struct request *r = request_of(list_entry(work, struct alloc, work));
    struct backend_device *device = alloc_of(r)->device;

    alloc_of(r)->memory = NULL;
    if (device->backend->memory_alloc(device, alloc_of(r)->size, &alloc_of(r)->memory, &alloc_of(r)->fd,
                                      &alloc_of(r)->error) < 0)
        alloc_of(r)->memory = NULL;
}

static void end_allocated(struct request *r, const struct buffer_ref *buffer)
{
    request_end_fds(r, &alloc_of(r)->fd, 1,
                    RECORD(alloc_reply, .buffer = buffer->id, .size = buffer->size,
                           .kind = buffer->mapping->kind == MEMORY_MEMFD ? "memfd" : "cuda_vmm", .nfds = 1, .fd = 0));
}

static void give_back(struct request *r)
{
    host_room_give(&r->connection->server->host_room, &alloc_of(r)->room);
    charge_free(&alloc_of(r)->host);
    charge_free(&alloc_of(r)->charge);
}

/* Makes the mapping of the new memory and moves the charges to it. Takes the memory, also on failure. The charge is
 * changed to the size that the device rounded up to. A descriptor is kept to recognise the memory by. */
static int adopt(struct request *r, struct mapping **ret)
{
    struct connection *c = r->connection;
    struct backend_memory *memory = alloc_of(r)->memory;
    const bool keeps = memory->kind != MEMORY_MEMFD;
    /* Shared memory may keep its own. */
    const unsigned fds = keeps ? 1 + memory->device->backend->keeps_fds : memory->fd >= 0;
    struct error *e = &alloc_of(r)->error;
    struct charge kept = {0};
    struct shared_charge *host = NULL;
    struct mapping_charges *charges;
    struct stat st;
    int own_fd = -1;

    if (charge_change(&alloc_of(r)->charge, c->pid, memory->size, e) < 0 ||
        charge_take(&kept, c->account, c->pid, QUOTA_FDS, fds, e) < 0)
        goto close_memory;
    if (keeps && (own_fd = fcntl(alloc_of(r)->fd, F_DUPFD_CLOEXEC, 0)) < 0) {
        error_shortage(e, errno, "keeping the memory");
        goto discharge_fds;
    }
    if (fstat(alloc_of(r)->fd, &st) < 0)
        st = (struct stat){0};
    charge_free(&alloc_of(r)->host); /* the file is charged instead */
    if (memory->kind == MEMORY_MEMFD &&
        !(host = shared_charge_take_file(c->account, c->pid, QUOTA_HOST, st.st_dev, st.st_ino, memory->size, e)))
        goto close_own_fd;
    if (mapping_adopt(&c->server->mappings, memory, alloc_of(r)->device, st.st_ino, own_fd, connection_owner(c), ret,
                      e) < 0)
        goto unref_host;
    charges = (*ret)->charges;
    charges->host = host;
    charges->room = host_part_move(&alloc_of(r)->room);
    charges->allocated = charge_move(&alloc_of(r)->charge);
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
    alloc_of(r)->device->backend->memory_close(memory);
    give_back(r);
    return -1;
}

static void alloc_done(struct work *work)
{
    struct request *r = request_of(list_entry(work, struct alloc, work));
    struct connection *c = r->connection;
    struct buffer_ref *buffer = NULL;
    struct mapping *m = NULL;
    struct shared_charge *shared;

    if (!alloc_of(r)->memory) {
        give_back(r);
        request_end_error(r, &alloc_of(r)->error);
        return;
    }
    if (adopt(r, &m) < 0) {
        close(alloc_of(r)->fd);
        request_end_error(r, &alloc_of(r)->error);
        return;
    }
    shared = c->closed ? NULL : connection_charge_mapping(c, m, 0, &alloc_of(r)->error);
    if (shared)
        buffer = connection_add_buffer(c, m, shared, m->memory->size, BUFFER_ALLOCATED, &alloc_of(r)->error);
    shared_charge_unref(shared);
    mapping_unref(m);
    if (buffer) {
        end_allocated(r, buffer);
        return;
    }
    close(alloc_of(r)->fd);
    if (c->closed)
        request_abandon(r);
    else
        request_end_error(r, &alloc_of(r)->error);
}

static int charge_alloc(struct request *r, struct error *e)
{
    struct connection *c = r->connection;
    const uint64_t host = alloc_of(r)->device->backend->host_memory ? alloc_of(r)->size : 0;

    if (charge_take(&alloc_of(r)->charge, c->account, c->pid, QUOTA_ALLOCATED, alloc_of(r)->size, e) < 0)
        return -1;
    if (charge_take(&alloc_of(r)->host, c->account, c->pid, QUOTA_HOST, host, e) < 0)
        goto discharge;
    if (host_room_take(&c->server->host_room, c->account, host, host, &alloc_of(r)->room, e) < 0)
        goto discharge_host;
    return 0;

discharge_host:
    charge_free(&alloc_of(r)->host);
discharge:
    charge_free(&alloc_of(r)->charge);
    return -1;
}

void handle_alloc(struct request *r, const struct rpc_arg *args, struct request_fds *fds)
{
    struct error e;

    (void)fds;
    alloc_of(r)->device = server_device(r->connection->server, &args[ALLOC_device], &e);
    if (!alloc_of(r)->device) {
        request_end_error(r, &e);
        return;
    }
    if (args[ALLOC_size].u > INT64_MAX) {
        error_set(&e, ERROR_INVALID_ARGUMENT, "size is over 2^63");
        error_detail_text(&e, "key", "size");
        request_end_error(r, &e);
        return;
    }
    alloc_of(r)->size = args[ALLOC_size].u;
    if (charge_alloc(r, &e) < 0) {
        request_end_error(r, &e);
        return;
    }
    alloc_of(r)->error.code = ERROR_INTERNAL;
    work_submit(&r->connection->server->loop, &alloc_of(r)->work, alloc_run, alloc_done);
}

/* ---- trim ---- */

static void trim_one(struct mapping *m, uint64_t *bytes, uint64_t *count)
{
    uint64_t n = mapping_trim(m);

    *bytes += n;
    *count += n > 0;
}

/* The reply says that the memory is unpinned, so it waits for the driver, also for mappings that a release began to
 * close before. */
static void trim_done(struct mapping_flush *flush)
{
    struct request *r = request_of(list_entry(flush, struct trim, flush));
    request_end_record(r, RECORD(trim_reply, .unpinned = trim_of(r)->bytes, .mappings = trim_of(r)->count));
}

static void trim_now(struct request *r)
{
    struct connection *c = r->connection;

    trim_of(r)->bytes = trim_of(r)->count = 0;
    for (uint32_t i = 0; i < c->memory->buffers.capacity; i++) {
        struct buffer_ref *buffer = idtable_at(&c->memory->buffers, i);

        if (buffer)
            trim_one(buffer->mapping, &trim_of(r)->bytes, &trim_of(r)->count);
    }
    list_for_each_safe (node, after, &c->memory->inline_lru)
        trim_one(list_entry(node, struct inline_ref, lru)->mapping, &trim_of(r)->bytes, &trim_of(r)->count);
    trim_of(r)->flush.done = trim_done;
    mapping_flush(&c->server->mappings, &trim_of(r)->flush);
}

void handle_trim(struct request *r, const struct rpc_arg *args, struct request_fds *fds)
{
    (void)args;
    (void)fds;
    barrier_enqueue(r, trim_now);
}
