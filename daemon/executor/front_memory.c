/* Device memory that executors open. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "executor/front.h"
#include "util/shortage.h"

/* ---- device memory ---- */

/* Descriptors are the memory's own, so that every executor can open it. */
struct front_memory {
    struct backend_memory base; /* first */
    struct front_memory_object *object;
};

struct front_memory_object {
    struct front_object base;       /* first */
    pthread_mutex_t lock;           /* of the rest; never held during a call, which may take long */
    struct backend_import *imports; /* owned: the first opens it, the others extend it */
    unsigned n_imports;
    unsigned there[EXECUTORS_MAX]; /* how many of them each executor has done */
    uint64_t size, address;        /* as the common executor has said; 0: it has not yet */
};

static struct front_memory_object *object_of(struct backend_memory *memory)
{
    return ((struct front_memory *)(void *)memory)->object;
}

static struct front_memory_object *memory_object(struct front_object *o)
{
    return (struct front_memory_object *)(void *)o;
}

static void close_fds(struct backend_import *import)
{
    for (unsigned i = 0; i < import->n_fds; i++)
        close(import->fds[i]);
    import->n_fds = 0;
}

/* Only what a driver makes, and shared memory: closing a file of some other file systems waits for a process of their
 * user's. Asks nothing that such a file system answers itself. */
static int check_descriptor(int fd, struct error *e)
{
    struct statx about;

    if (fcntl(fd, F_GET_SEALS) >= 0)
        return 0;
    if (statx(fd, "", AT_EMPTY_PATH | AT_STATX_DONT_SYNC, STATX_TYPE, &about) == 0 &&
        (S_ISCHR(about.stx_mode) || (about.stx_mode & S_IFMT) == 0))
        return 0;
    return error_set(e, ERROR_INVALID_FD, "the descriptor is none that a CUDA driver exports");
}

/* A copy with descriptors of its own. */
static int keep(const struct backend_import *import, struct backend_import *ret, struct error *e)
{
    *ret = *import;
    for (unsigned i = 0; i < import->n_fds; i++)
        if (check_descriptor(import->fds[i], e) < 0) {
            ret->n_fds = 0;
            return -1;
        }
    for (ret->n_fds = 0; ret->n_fds < import->n_fds; ret->n_fds++) {
        ret->fds[ret->n_fds] = fcntl(import->fds[ret->n_fds], F_DUPFD_CLOEXEC, 0);
        if (ret->fds[ret->n_fds] < 0) {
            error_shortage(e, errno, "keeping the memory's descriptor");
            close_fds(ret);
            return -1;
        }
    }
    return 0;
}

/* Makes room for one more import. */
static int make_room(struct front_memory_object *o, struct error *e)
{
    struct backend_import *more;

    pthread_mutex_lock(&o->lock);
    more = realloc(o->imports, (o->n_imports + 1) * sizeof(*more));
    if (more)
        o->imports = more;
    pthread_mutex_unlock(&o->lock);
    return more ? 0 : error_set(e, ERROR_OUT_OF_MEMORY, "no memory for a mapping's record");
}

static int add_import(struct front_memory_object *o, const struct backend_import *import, struct error *e)
{
    if (make_room(o, e) < 0 || keep(import, &o->imports[o->n_imports], e) < 0)
        return -1;
    o->n_imports++;
    return 0;
}

static void drop_imports(struct front_memory_object *o)
{
    for (unsigned i = 0; i < o->n_imports; i++)
        close_fds(&o->imports[i]);
    free(o->imports);
    o->imports = NULL;
    o->n_imports = 0;
}

static struct front_memory_object *new_object(struct front_device *d, struct error *e)
{
    struct front_memory_object *o = calloc(1, sizeof(*o));

    if (!o) {
        error_set(e, ERROR_OUT_OF_MEMORY, "no memory for a mapping's record");
        return NULL;
    }
    pthread_mutex_init(&o->lock, NULL);
    list_init(&o->base.link);
    if (front_object_add(&o->base, FRONT_MEMORY, d, e) == 0)
        return o;
    free(o);
    return NULL;
}

/* Closes it where it is open. */
static void end_object(struct front_memory_object *o)
{
    drop_imports(o);
    front_object_close(&o->base);
}

/* Whether the size that an executor says is one that the device can have, and the one that others have said. */
static int take_size(struct front_memory_object *o, const struct call_reply *reply, struct error *e)
{
    if (!reply->size || reply->size > o->base.device->base.info.memory_bytes)
        return error_set(e, ERROR_DEVICE_LOST, "the executor of the GPU says that memory has %llu bytes",
                         (unsigned long long)reply->size);
    if (o->size && reply->size < o->size)
        return error_set(e, ERROR_INVALID_HANDLE, "the memory has become smaller: %llu bytes of %llu are left",
                         (unsigned long long)reply->size, (unsigned long long)o->size);
    return 0;
}

static int call_with(const struct front_memory_object *o, struct executor *x, enum call_kind kind,
                     const struct backend_import *import, struct call_reply *ret_reply, struct error *e)
{
    struct call_request request = {.kind = kind,
                                   .device = o->base.device->number,
                                   .handle = o->base.handle,
                                   .import = *import,
                                   .n_fds = import->n_fds};

    return front_call(x, &request, NULL, import->fds, ret_reply, NULL, e);
}

/* Whether the executor has done all imports; *ret: the next one. With the object's lock held. */
static bool is_complete(const struct front_memory_object *o, const struct executor *x, struct backend_import *ret)
{
    const unsigned there = o->there[x->bit];

    if (there < o->n_imports)
        *ret = o->imports[there];
    return there == o->n_imports;
}

/* The executor has done all, and has said how much memory that is. With the object's lock held. */
static void note_done(struct front_memory_object *o, const struct executor *x, const struct call_reply *reply)
{
    if (x->common) {
        o->size = reply->size;
        o->address = reply->address;
    }
    front_object_set_present(&o->base, x);
}

/* Does those of the imports that the executor has not done yet. */
static int catch_up(struct front_memory_object *o, struct executor *x, struct error *e)
{
    struct backend_import import;
    struct call_reply reply = {0};
    int r = 0;

    pthread_mutex_lock(&o->lock);
    while (r == 0 && !is_complete(o, x, &import)) {
        const enum call_kind kind = o->there[x->bit] ? CALL_EXTEND : CALL_IMPORT;

        pthread_mutex_unlock(&o->lock);
        r = call_with(o, x, kind, &import, &reply, e);
        pthread_mutex_lock(&o->lock);
        o->there[x->bit] += r == 0;
    }
    if (r == 0)
        r = take_size(o, &reply, e);
    if (r == 0)
        note_done(o, x, &reply);
    pthread_mutex_unlock(&o->lock);
    return r;
}

int front_memory_open(struct front_object *base, struct executor *x, struct error *e)
{
    int r;

    if (!front_object_begin(base, x))
        return 0;
    atomic_fetch_or(&base->opened, 1ULL << x->bit); /* whatever comes now: it may be open there */
    r = catch_up(memory_object(base), x, e);
    front_object_end(base, x);
    return r;
}

static int new_memory(struct front_memory_object *o, enum backend_memory_kind kind, bool writable, bool made,
                      struct backend_memory **ret_memory, struct error *e)
{
    struct front_memory *m = calloc(1, sizeof(*m));

    if (!m)
        return error_set(e, ERROR_OUT_OF_MEMORY, "no memory for a mapping's record");
    m->base.kind = kind;
    m->base.size = o->size;
    m->base.writable = writable;
    m->base.address = o->address;
    m->base.device = &o->base.device->base;
    m->base.fd = -1;
    m->object = o;
    m->base.made = made;
    *ret_memory = &m->base;
    return 0;
}

int front_memory_import(struct backend_device *device, const struct backend_import *import,
                        struct backend_memory **ret_memory, struct error *e)
{
    struct front_device *d = front_device(device);
    struct front_memory_object *o = new_object(d, e);
    int r;

    if (!o)
        return -1;
    r = add_import(o, import, e);
    if (r == 0)
        r = front_open_in(&o->base, DOMAIN_COMMON, e);
    if (r == 0)
        r = new_memory(o, import->kind, import->writable, false, ret_memory, e);
    if (r < 0)
        end_object(o);
    return r;
}

/* The executor's new memory and its descriptor. */
static int call_alloc(struct front_memory_object *o, struct executor *x, uint64_t size, int *ret_fd, struct error *e)
{
    struct call_request request = {
        .kind = CALL_ALLOC, .device = o->base.device->number, .handle = o->base.handle, .size = size};
    struct call_reply reply;

    if (front_device_open(x, o->base.device->number, e) < 0)
        return -1;
    atomic_fetch_or(&o->base.opened, 1ULL << x->bit);
    if (front_call(x, &request, NULL, NULL, &reply, ret_fd, e) < 0)
        return -1;
    if (take_size(o, &reply, e) < 0) {
        close(*ret_fd);
        return -1;
    }
    o->size = reply.size;
    o->address = reply.address;
    o->there[x->bit] = 1;
    front_object_set_present(&o->base, x);
    return 0;
}

/* In the common executor. */
static int alloc_in_common(struct front_memory_object *o, uint64_t size, int *ret_fd, struct error *e)
{
    bool lost = true;
    int r = -1;

    for (unsigned i = 0; r < 0 && lost && i < FRONT_TRIES; i++) {
        struct executor *x = front_executor_of(o->base.device->front, DOMAIN_COMMON, e);

        if (!x)
            return -1;
        r = call_alloc(o, x, size, ret_fd, e);
        lost = front_is_lost(x);
        front_executor_release(x);
    }
    return r;
}

int front_memory_alloc(struct backend_device *device, uint64_t size, struct backend_memory **ret_memory, int *ret_fd,
                       struct error *e)
{
    struct front_memory_object *o = new_object(front_device(device), e);
    struct backend_import again = {.kind = MEMORY_CUDA_VMM, .writable = true, .n_fds = 1};
    int fd;

    if (!o)
        return -1;
    if (alloc_in_common(o, size, &fd, e) < 0)
        goto end_object;
    again.size = o->size;
    again.fds[0] = fd;
    if (add_import(o, &again, e) < 0 || new_memory(o, MEMORY_CUDA_VMM, true, true, ret_memory, e) < 0)
        goto close_fd;
    *ret_fd = fd;
    return 0;

close_fd:
    close(fd);
end_object:
    end_object(o);
    return -1;
}

void front_memory_close(struct backend_memory *memory)
{
    end_object(object_of(memory));
    free(memory);
}

/* Extends the memory in the common executor; others extend theirs when a job next needs it. `more` is kept, there is
 * room for it. */
static int extend_in(struct front_memory_object *o, struct executor *x, const struct backend_import *more,
                     uint64_t *ret_size, struct error *e)
{
    struct call_reply reply;
    int r;

    if (front_device_open(x, o->base.device->number, e) < 0 || front_memory_open(&o->base, x, e) < 0 ||
        call_with(o, x, CALL_EXTEND, more, &reply, e) < 0)
        return -1;
    pthread_mutex_lock(&o->lock);
    r = take_size(o, &reply, e);
    if (r == 0) {
        o->imports[o->n_imports++] = *more;
        o->there[x->bit]++;
        atomic_store(&o->base.present, 0);
        note_done(o, x, &reply);
        *ret_size = o->size;
    }
    pthread_mutex_unlock(&o->lock);
    return r < 0 ? front_distrust(x, e) : 0; /* it has extended the memory, or says so */
}

int front_memory_extend(struct backend_memory *memory, const struct backend_import *more, uint64_t *ret_size,
                        struct error *e)
{
    struct front_memory_object *o = object_of(memory);
    struct backend_import kept;
    const unsigned had = o->n_imports;
    bool lost = true;
    int r = -1;

    if (make_room(o, e) < 0 || keep(more, &kept, e) < 0)
        return -1;
    for (unsigned i = 0; r < 0 && lost && i < FRONT_TRIES; i++) {
        struct executor *x = front_executor_of(o->base.device->front, DOMAIN_COMMON, e);

        if (!x)
            break;
        r = extend_in(o, x, &kept, ret_size, e);
        lost = front_is_lost(x) && o->n_imports == had;
        front_executor_release(x);
    }
    if (o->n_imports == had)
        close_fds(&kept);
    return r;
}

int front_memory_free(struct backend_device *device, uint64_t *ret_bytes)
{
    const struct front_device *d = front_device(device);
    struct call_request request = {.kind = CALL_MEMORY_FREE, .device = d->number};
    struct call_reply reply;
    struct error ignored;
    struct executor *x = front_executor_of(d->front, DOMAIN_COMMON, &ignored);
    int r;

    if (!x)
        return -1;
    r = front_call(x, &request, NULL, NULL, &reply, NULL, &ignored);
    front_executor_release(x);
    if (r == 0)
        *ret_bytes = reply.size;
    return r;
}

void front_memory_forget(struct front_object *base, unsigned bit)
{
    memory_object(base)->there[bit] = 0;
}

struct front_object *front_memory_object(struct backend_memory *memory)
{
    return &object_of(memory)->base;
}
