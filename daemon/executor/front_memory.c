/* Calls into an executor, and the memory that it opens. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "backend/memory_ids.h"
#include "executor/front.h"

/* ---- calls ---- */

/* A socket that no other call uses; waits for one. Its place. */
static unsigned take_channel(struct executor *x)
{
    unsigned i = 0;

    pthread_mutex_lock(&x->lock);
    for (;; i = (i + 1) % CALL_CHANNELS) {
        if (!x->channel_busy[i])
            break;
        if (i == CALL_CHANNELS - 1)
            pthread_cond_wait(&x->channel_free, &x->lock);
    }
    x->channel_busy[i] = true;
    pthread_mutex_unlock(&x->lock);
    return i;
}

static void give_channel(struct executor *x, unsigned i)
{
    pthread_mutex_lock(&x->lock);
    x->channel_busy[i] = false;
    pthread_cond_signal(&x->channel_free);
    pthread_mutex_unlock(&x->lock);
}

static int lost(struct error *e)
{
    return error_set(e, ERROR_DEVICE_LOST, "the executor of the GPU has ended");
}

/* Fails a call without a reply. The daemon cannot know whether the executor did the work, so the loop ends it. */
static int broken(struct executor *x, struct error *e)
{
    if (!atomic_load(&x->gone) && !atomic_exchange(&x->broken, true))
        x->host.wake(x->host.context);
    return lost(e);
}

/* Takes the descriptors that belong to the reply and closes the others. */
static int take_reply(const struct call_reply *reply, const int *fds, int *ret_fd)
{
    const bool wanted = ret_fd && reply->n_fds == 1 && reply->result == 0;

    for (unsigned i = 0; i < reply->n_fds; i++)
        if (!wanted)
            close(fds[i]);
    if (wanted)
        *ret_fd = fds[0];
    return ret_fd && reply->result == 0 && !wanted ? -1 : 0;
}

int front_call(struct executor *x, struct call_request *request, const char *text, const int *fds,
               struct call_reply *ret_reply, int *ret_fd, struct error *e)
{
    int reply_fds[CALL_FDS_MAX], r;
    unsigned channel;

    if (atomic_load(&x->gone))
        return lost(e);
    channel = take_channel(x);
    r = call_send_request(x->channels[channel], request, text, fds);
    if (r == 0)
        r = call_receive_reply(x->channels[channel], ret_reply, reply_fds);
    give_channel(x, channel);
    if (r < 0)
        return broken(x, e);
    if (take_reply(ret_reply, reply_fds, ret_fd) < 0)
        return error_set(e, ERROR_QUOTA_EXCEEDED, "the daemon has no descriptor left for the memory");
    if (ret_reply->result == 0)
        return 0;
    *e = ret_reply->error;
    error_accept(e);
    return -1;
}

static int take_handle(struct executor *x, uint32_t *ret_handle, struct error *e)
{
    pthread_mutex_lock(&x->lock);
    *ret_handle = ids_take(&x->handles);
    pthread_mutex_unlock(&x->lock);
    return *ret_handle ? 0 : error_set(e, ERROR_OUT_OF_MEMORY, "an executor has as many mappings as it can");
}

static void give_handle(struct executor *x, uint32_t handle)
{
    pthread_mutex_lock(&x->lock);
    ids_give(&x->handles, handle);
    pthread_mutex_unlock(&x->lock);
}

static void close_handle(const struct front_device *d, uint32_t handle)
{
    struct call_request request = {.kind = CALL_CLOSE, .device = d->number, .handle = handle};
    struct call_reply reply;
    struct error ignored;

    /* The handle of a memory that may still be open there is not given to another. */
    if (front_call(d->executor, &request, NULL, NULL, &reply, NULL, &ignored) == 0)
        give_handle(d->executor, handle);
}

/* Whether the size that the executor says is one that the device can have. Else the memory is closed. */
static bool is_size(const struct front_device *d, uint64_t size, uint32_t handle, struct error *e)
{
    if (size && size <= d->base.info.memory_bytes)
        return true;
    close_handle(d, handle);
    error_set(e, ERROR_DEVICE_LOST, "the executor of the GPU says that memory has %llu bytes",
              (unsigned long long)size);
    return false;
}

/* ---- device memory ---- */

static int new_memory(struct front_device *d, enum backend_memory_kind kind, bool writable,
                      const struct call_reply *reply, uint32_t handle, struct backend_memory **ret_memory,
                      struct error *e)
{
    struct front_memory *m = calloc(1, sizeof(*m));

    if (!m) {
        close_handle(d, handle);
        return error_set(e, ERROR_OUT_OF_MEMORY, "no memory for a mapping's record");
    }
    m->base.kind = kind;
    m->base.size = reply->size;
    m->base.writable = writable;
    m->base.address = reply->address;
    m->base.device = &d->base;
    m->base.fd = -1;
    m->handle = handle;
    *ret_memory = &m->base;
    return 0;
}

int front_memory_import(struct backend_device *device, const struct backend_import *import,
                        struct backend_memory **ret_memory, struct error *e)
{
    struct front_device *d = front_device(device);
    struct call_request request = {.kind = CALL_IMPORT, .device = d->number, .import = *import, .n_fds = import->n_fds};
    struct call_reply reply;

    if (take_handle(d->executor, &request.handle, e) < 0)
        return -1;
    if (front_call(d->executor, &request, NULL, import->fds, &reply, NULL, e) < 0) {
        close_handle(d, request.handle); /* harmless where nothing is open */
        return -1;
    }
    if (!is_size(d, reply.size, request.handle, e))
        return -1;
    return new_memory(d, import->kind, import->writable, &reply, request.handle, ret_memory, e);
}

int front_memory_alloc(struct backend_device *device, uint64_t size, struct backend_memory **ret_memory, int *ret_fd,
                       struct error *e)
{
    struct front_device *d = front_device(device);
    struct call_request request = {.kind = CALL_ALLOC, .device = d->number, .size = size};
    struct call_reply reply;
    int fd;

    if (take_handle(d->executor, &request.handle, e) < 0)
        return -1;
    if (front_call(d->executor, &request, NULL, NULL, &reply, &fd, e) < 0) {
        close_handle(d, request.handle);
        return -1;
    }
    if (!is_size(d, reply.size, request.handle, e)) {
        close(fd);
        return -1;
    }
    if (new_memory(d, MEMORY_CUDA_VMM, true, &reply, request.handle, ret_memory, e) < 0) {
        close(fd);
        return -1;
    }
    *ret_fd = fd;
    return 0;
}

void front_memory_close(struct backend_memory *memory)
{
    struct front_memory *m = (struct front_memory *)(void *)memory;

    close_handle(front_device(memory->device), m->handle);
    free(m);
}

int front_memory_extend(struct backend_memory *memory, const struct backend_import *more, uint64_t *ret_size,
                        struct error *e)
{
    const struct front_memory *m = (const struct front_memory *)(const void *)memory;
    const struct front_device *d = front_device(memory->device);
    struct call_request request = {
        .kind = CALL_EXTEND, .device = d->number, .handle = m->handle, .import = *more, .n_fds = more->n_fds};
    struct call_reply reply;

    if (front_call(d->executor, &request, NULL, more->fds, &reply, NULL, e) < 0)
        return -1;
    if (reply.size > front_device(memory->device)->base.info.memory_bytes)
        return error_set(e, ERROR_DEVICE_LOST, "the executor of the GPU says nonsense of memory's size");
    *ret_size = reply.size;
    return 0;
}

int front_memory_free(struct backend_device *device, uint64_t *ret_bytes)
{
    const struct front_device *d = front_device(device);
    struct call_request request = {.kind = CALL_MEMORY_FREE, .device = d->number};
    struct call_reply reply;
    struct error ignored;

    if (front_call(d->executor, &request, NULL, NULL, &reply, NULL, &ignored) < 0)
        return -1;
    *ret_bytes = reply.size;
    return 0;
}

/* ---- shared host memory ---- */

/* Guards backend_memory.attached, and is held while an executor maps: a memory is mapped there once. */
static pthread_mutex_t attaching = PTHREAD_MUTEX_INITIALIZER;

static int map_host(struct front_device *d, struct backend_memory *memory, bool attach, struct error *e)
{
    struct call_request request = {
        .kind = CALL_MAP_HOST, .device = d->number, .attach = attach, .size = memory->size, .n_fds = 1};
    struct front_attachment *own = calloc(1, sizeof(*own));
    struct call_reply reply;

    if (!own)
        return error_set(e, ERROR_OUT_OF_MEMORY, "no memory for a mapping's record");
    request.import.writable = memory->writable;
    if (take_handle(d->executor, &request.handle, e) < 0)
        goto free_own;
    if (front_call(d->executor, &request, NULL, &memory->fd, &reply, NULL, e) < 0)
        goto close_handle;
    own->handle = request.handle;
    __atomic_store_n(&memory->attached[d->base.index], own, __ATOMIC_RELEASE);
    return 0;

close_handle:
    close_handle(d, request.handle);
free_own:
    free(own);
    return -1;
}

int front_memory_attach(struct backend_device *device, struct backend_memory *memory, struct error *e)
{
    int r;

    pthread_mutex_lock(&attaching);
    r = memory->attached[device->index] ? 0 : map_host(front_device(device), memory, true, e);
    pthread_mutex_unlock(&attaching);
    return r;
}

void front_memory_detach(struct backend_device *device, struct backend_memory *memory)
{
    struct front_attachment *own;

    pthread_mutex_lock(&attaching);
    own = memory->attached[device->index];
    memory->attached[device->index] = NULL;
    pthread_mutex_unlock(&attaching);
    if (!own)
        return;
    close_handle(front_device(device), own->handle);
    free(own);
}

/* ---- operands ---- */

/* The pool makes attachments while the loop looks. */
static const struct front_attachment *attachment_of(const struct backend_memory *memory,
                                                    const struct backend_device *device)
{
    return __atomic_load_n(&memory->attached[device->index], __ATOMIC_ACQUIRE);
}

static struct backend_memory *host_memory_of(const struct step_operand *operand)
{
    struct backend_memory *memory = operand->extent ? memory_by_id(operand->memory) : NULL;

    return memory && memory->kind == MEMORY_MEMFD ? memory : NULL;
}

uint32_t front_handle(const struct backend_device *device, uint32_t memory_id)
{
    const struct backend_memory *memory = memory_by_id(memory_id);
    const struct front_attachment *own;

    if (!memory)
        return 0;
    if (memory->kind != MEMORY_MEMFD)
        return ((const struct front_memory *)(const void *)memory)->handle;
    own = attachment_of(memory, device);
    return own ? own->handle : 0;
}

bool front_needs_prepare(struct backend_device *device, const struct backend_job *job)
{
    for (unsigned i = 0; i < job->n_steps; i++)
        for (unsigned o = 0; o < step_operands(&job->steps[i]); o++) {
            const struct backend_memory *memory = host_memory_of(&job->steps[i].operands[o]);

            if (memory && !attachment_of(memory, device))
                return true;
        }
    return false;
}

int front_prepare(struct backend_stream *stream, struct backend_job *job, struct error *e)
{
    struct front_device *d = ((struct front_stream *)(void *)stream)->device;
    int r = 0;

    pthread_mutex_lock(&attaching);
    for (unsigned i = 0; r == 0 && i < job->n_steps; i++)
        for (unsigned o = 0; r == 0 && o < step_operands(&job->steps[i]); o++) {
            struct backend_memory *memory = host_memory_of(&job->steps[i].operands[o]);

            if (memory && !memory->attached[d->base.index])
                r = map_host(d, memory, false, e);
        }
    pthread_mutex_unlock(&attaching);
    return r;
}
