/* Objects that executors open: memory of devices and shared host memory; and what a job needs in an executor. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "backend/memory.h"
#include "executor/front.h"
#include "util/error.h"

/* ---- objects ---- */

void *front_object_new(size_t size, enum front_kind kind, struct front_device *device, struct error *e)
{
    struct front_object *o = calloc(1, size);
    struct front *f = device->front;

    if (!o) {
        error_set(e, ERROR_OUT_OF_MEMORY, "no memory for a %s's record", kind == FRONT_CODE ? "module" : "mapping");
        return NULL;
    }
    list_init(&o->link);
    o->kind = kind;
    o->device = device;
    atomic_init(&o->closing, 1);
    pthread_mutex_lock(&f->lock);
    o->handle = ids_take(kind == FRONT_CODE ? &f->codes : &f->handles);
    if (o->handle)
        list_append(&f->objects, &o->link);
    pthread_mutex_unlock(&f->lock);
    if (o->handle)
        return o;
    free(o);
    error_set(e, ERROR_OUT_OF_MEMORY, "executors have as many objects as they can");
    return NULL;
}

void front_object_set_present(struct front_object *o, const struct executor *x)
{
    atomic_fetch_or(&o->opened, 1ULL << x->bit);
    atomic_fetch_or(&o->present, 1ULL << x->bit);
}

/* Lets one thread open the object in an executor; others wait for it. False: the object is there. */
static bool begin_opening(struct front_object *o, const struct executor *x)
{
    struct front *f = x->front;
    bool absent;

    pthread_mutex_lock(&f->lock);
    while (o->opening >> x->bit & 1)
        pthread_cond_wait(&f->changed, &f->lock);
    absent = !front_is_present(o, x);
    if (absent)
        o->opening |= 1ULL << x->bit;
    pthread_mutex_unlock(&f->lock);
    return absent;
}

static void end_opening(struct front_object *o, const struct executor *x)
{
    struct front *f = x->front;

    pthread_mutex_lock(&f->lock);
    o->opening &= ~(1ULL << x->bit);
    pthread_cond_broadcast(&f->changed);
    pthread_mutex_unlock(&f->lock);
}

static int close_in(const struct front_object *o, struct executor *x)
{
    struct call_request request = {.kind = o->kind == FRONT_CODE ? CALL_CODE_UNLOAD : CALL_CLOSE,
                                   .device = o->device->number,
                                   .handle = o->handle,
                                   .code = o->handle,
                                   .position = atomic_load(&x->region->to_executor.written)};
    struct call_reply reply;
    struct error ignored;

    return front_call(x, &request, NULL, NULL, &reply, NULL, &ignored);
}

/* The last of the threads that close the object, and of its owner, frees it, and its number: an executor that may still
 * have the number open is about to be killed. */
static void end_close(struct front_object *o)
{
    struct front *f = o->device->front;

    if (atomic_fetch_sub(&o->closing, 1) != 1)
        return;
    pthread_mutex_lock(&f->lock);
    ids_give(o->kind == FRONT_CODE ? &f->codes : &f->handles, o->handle);
    pthread_mutex_unlock(&f->lock);
    free(o);
}

struct close_task {
    struct front_task task; /* first */
    struct front_object *object;
};

static void run_close(struct executor *x, struct front_task *task)
{
    struct close_task *own = (struct close_task *)(void *)task;

    close_in(own->object, x);
    end_close(own->object);
    free(own);
}

/* Gives the close to the executor's keeper. Without memory the object stays open there until the executor ends. With
 * front.lock held. */
static void close_later(struct front_object *o, struct executor *x)
{
    struct close_task *own = calloc(1, sizeof(*own));

    if (!own)
        return;
    own->task.run = run_close;
    own->object = o;
    atomic_fetch_add(&o->closing, 1);
    if (front_task_add(x, &own->task))
        return;
    atomic_fetch_sub(&o->closing, 1);
    free(own);
}

void front_object_close(struct front_object *o)
{
    struct front *f = o->device->front;
    struct executor *common = NULL;
    unsigned long long opened;

    pthread_mutex_lock(&f->lock);
    list_remove(&o->link);
    opened = atomic_load(&o->opened);
    for (unsigned i = 0; i < EXECUTORS_MAX; i++) {
        struct executor *x = opened >> i & 1 ? f->by_bit[i] : NULL;

        if (!x || atomic_load(&x->gone))
            continue;
        if (x->common) {
            common = x;
            x->users++;
        } else {
            close_later(o, x);
        }
    }
    pthread_mutex_unlock(&f->lock);
    if (common) {
        close_in(o, common);
        front_executor_release(common);
    }
    end_close(o);
}

/* ---- device memory ---- */

struct front_memory {
    struct backend_memory base; /* first */
    struct front_memory_object *object;
};

/* Descriptors are the object's own, so that every executor can open it. */
struct front_memory_object {
    struct front_object base;       /* first */
    pthread_mutex_t lock;           /* guards the members below; never held during a call, which may take long */
    struct backend_import *imports; /* owned: the first one opens the memory, the others extend it */
    unsigned n_imports;
    unsigned there[EXECUTORS_MAX]; /* how many of them each executor has done */
    uint64_t size, address;        /* as the common executor has said; 0: it has not yet */
};

static struct front_memory_object *object_of_memory(struct backend_memory *memory)
{
    return ((struct front_memory *)(void *)memory)->object;
}

static void close_fds(struct backend_import *import)
{
    for (unsigned i = 0; i < import->n_fds; i++)
        close(import->fds[i]);
    import->n_fds = 0;
}

/* Accepts only descriptors that a driver makes, and shared memory: closing a file of some other file systems waits for
 * a process of their user. Asks nothing that such a file system answers itself. */
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

static struct front_memory_object *new_object(struct front_device *d, struct error *e)
{
    struct front_memory_object *o = front_object_new(sizeof(*o), FRONT_MEMORY, d, e);

    if (o)
        pthread_mutex_init(&o->lock, NULL);
    return o;
}

static void end_object(struct front_memory_object *o)
{
    for (unsigned i = 0; i < o->n_imports; i++)
        close_fds(&o->imports[i]);
    free(o->imports);
    o->imports = NULL;
    o->n_imports = 0;
    front_object_close(&o->base);
}

/* Checks the size that an executor says: one that the device can have, and not less than before. */
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

/* The executor has done all imports, and has said how much memory that is. With the object's lock held. */
static void note_done(struct front_memory_object *o, const struct executor *x, const struct call_reply *reply)
{
    if (x->common) {
        o->size = reply->size;
        o->address = reply->address;
    }
    front_object_set_present(&o->base, x);
}

static int catch_up(struct front_memory_object *o, struct executor *x, struct error *e)
{
    struct call_reply reply = {0};
    int r = 0;

    pthread_mutex_lock(&o->lock);
    if (o->n_imports && o->there[x->bit] == o->n_imports) {
        if (!front_is_present(&o->base, x)) /* take_size() refused what the last import said */
            r = error_set(e, ERROR_INVALID_HANDLE, "the memory does not have the size any more that it had before");
        pthread_mutex_unlock(&o->lock);
        return r;
    }
    while (r == 0 && o->there[x->bit] < o->n_imports) {
        const struct backend_import import = o->imports[o->there[x->bit]];
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

static int open_memory(struct front_object *base, struct executor *x, struct error *e)
{
    int r;

    if (!begin_opening(base, x))
        return 0;
    atomic_fetch_or(&base->opened, 1ULL << x->bit); /* whatever comes now: it may be open there */
    r = catch_up((struct front_memory_object *)(void *)base, x, e);
    end_opening(base, x);
    return r;
}

/* ---- shared host memory ---- */

/* A memfd on one device: backend_memory.attached. Keepers make attachments while the loop looks. */
struct front_host {
    struct front_object base; /* first */
    struct backend_memory *memory;
    bool attach; /* for signals */
};

static pthread_mutex_t attaching = PTHREAD_MUTEX_INITIALIZER;

static struct front_object *host_object(const struct front_device *d, const struct backend_memory *memory)
{
    return __atomic_load_n(&memory->attached[d->base.index], __ATOMIC_ACQUIRE);
}

/* The memfd's object on the device, made at first use. NULL: *e. */
static struct front_object *make_host_object(struct front_device *d, struct backend_memory *memory, bool attach,
                                             struct error *e)
{
    struct front_object *o;
    struct front_host *h;

    pthread_mutex_lock(&attaching);
    o = host_object(d, memory);
    h = o ? NULL : front_object_new(sizeof(*h), FRONT_HOST, d, e);
    if (h) {
        h->memory = memory;
        h->attach = attach;
        o = &h->base;
        __atomic_store_n(&memory->attached[d->base.index], o, __ATOMIC_RELEASE);
    }
    pthread_mutex_unlock(&attaching);
    return o;
}

static int open_host(struct front_object *o, struct executor *x, struct error *e)
{
    struct front_host *h = (struct front_host *)(void *)o;
    const struct backend_memory *memory = h->memory;
    struct call_request request = {.kind = CALL_MAP_HOST,
                                   .device = o->device->number,
                                   .handle = o->handle,
                                   .attach = h->attach,
                                   .size = memory->size,
                                   .import.writable = memory->writable,
                                   .n_fds = 1};
    struct call_reply reply;
    int r;

    if (!begin_opening(o, x))
        return 0;
    r = front_call(x, &request, NULL, &memory->fd, &reply, NULL, e);
    if (r == 0)
        front_object_set_present(o, x);
    end_opening(o, x);
    return r;
}

static int open_object(struct front_object *o, struct executor *x, struct error *e)
{
    if (front_is_present(o, x))
        return 0;
    if (front_device_open(x, o->device->number, e) < 0)
        return -1;
    if (o->kind == FRONT_CODE)
        return front_code_open(o, x, e);
    return o->kind == FRONT_HOST ? open_host(o, x, e) : open_memory(o, x, e);
}

int front_open_in(struct front_object *o, uint64_t domain, struct error *e)
{
    int r = -1;

    for (struct front_try t = {.front = o->device->front, .key = domain}; front_try_next(&t, r, e);)
        r = open_object(o, t.x, e);
    return r;
}

void front_objects_forget(struct front *f, unsigned bit)
{
    pthread_mutex_lock(&f->lock);
    list_each (struct front_object, o, link, &f->objects) {
        atomic_fetch_and(&o->present, ~(1ULL << bit));
        atomic_fetch_and(&o->opened, ~(1ULL << bit));
        if (o->kind == FRONT_MEMORY)
            ((struct front_memory_object *)(void *)o)->there[bit] = 0;
    }
    pthread_mutex_unlock(&f->lock);
}

/* ---- the backend's functions ---- */

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

int front_memory_alloc(struct backend_device *device, uint64_t size, struct backend_memory **ret_memory, int *ret_fd,
                       struct error *e)
{
    struct front_memory_object *o = new_object(front_device(device), e);
    struct backend_import again = {.kind = MEMORY_CUDA_VMM, .writable = true, .n_fds = 1};
    int fd, r = -1;

    if (!o)
        return -1;
    for (struct front_try t = {.front = o->base.device->front, .key = DOMAIN_COMMON}; front_try_next(&t, r, e);)
        r = call_alloc(o, t.x, size, &fd, e);
    if (r < 0)
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
    end_object(object_of_memory(memory));
    free(memory);
}

/* Extends the memory in the common executor; others extend theirs when a job next needs it. `more` is kept, and has
 * room in o->imports. */
static int extend_in(struct front_memory_object *o, struct executor *x, const struct backend_import *more,
                     uint64_t *ret_size, struct error *e)
{
    struct call_reply reply;
    int r;

    if (front_device_open(x, o->base.device->number, e) < 0 || open_memory(&o->base, x, e) < 0 ||
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
    return r < 0 ? front_distrust(x, e) : 0; /* the executor has extended the memory, or claims so */
}

int front_memory_extend(struct backend_memory *memory, const struct backend_import *more, uint64_t *ret_size,
                        struct error *e)
{
    struct front_memory_object *o = object_of_memory(memory);
    struct backend_import kept;
    int r = -1;

    if (make_room(o, e) < 0 || keep(more, &kept, e) < 0)
        return -1;
    for (struct front_try t = {.front = o->base.device->front, .key = DOMAIN_COMMON}; front_try_next(&t, r, e);)
        r = extend_in(o, t.x, &kept, ret_size, e);
    if (r < 0)
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

int front_memory_attach(struct backend_device *device, struct backend_memory *memory, struct error *e)
{
    struct front_device *d = front_device(device);
    struct front_object *o = make_host_object(d, memory, true, e);

    return o ? front_open_in(o, DOMAIN_COMMON, e) : -1;
}

void front_memory_detach(struct backend_device *device, struct backend_memory *memory)
{
    struct front_object *o;

    pthread_mutex_lock(&attaching);
    o = memory->attached[device->index];
    memory->attached[device->index] = NULL;
    pthread_mutex_unlock(&attaching);
    if (o)
        front_object_close(o);
}

/* ---- a job's objects ---- */

/* The object of memory; NULL: it is shared host memory that the device has not met. */
static struct front_object *object_of(const struct front_device *d, struct backend_memory *memory)
{
    return memory->kind == MEMORY_MEMFD ? host_object(d, memory) : &object_of_memory(memory)->base;
}

static struct backend_memory *memory_of(const struct step_operand *operand)
{
    return operand->extent ? memory_by_id(operand->memory) : NULL;
}

uint32_t front_handle(const struct front_device *d, struct backend_memory *memory)
{
    const struct front_object *o = memory ? object_of(d, memory) : NULL;

    return o ? o->handle : 0;
}

static bool has_memory(const struct front_device *d, struct backend_memory *memory, const struct executor *x)
{
    const struct front_object *o = memory ? object_of(d, memory) : NULL;

    return !memory || (o && front_is_present(o, x));
}

bool front_has_all(const struct front_device *d, const struct backend_job *job, const struct executor *x)
{
    if (!(atomic_load_explicit(&x->active, memory_order_acquire) >> d->number & 1))
        return false;
    for (unsigned i = 0; i < job->n_steps; i++) {
        const struct step *step = &job->steps[i];

        if (step->plan.kind == PLAN_KERNEL && !front_is_present(front_code_of(step->plan.kernel.function), x))
            return false;
        for (unsigned o = 0; o < step_operands(step); o++)
            if (!has_memory(d, memory_of(&step->operands[o]), x))
                return false;
    }
    return has_memory(d, job->signal.page, x);
}

/* Opens the memory; shared host memory gets its object where the device has not met it. */
static int open_memory_of(struct front_device *d, struct backend_memory *memory, bool attach, struct executor *x,
                          struct error *e)
{
    struct front_object *o;

    if (!memory)
        return 0;
    o = memory->kind == MEMORY_MEMFD ? make_host_object(d, memory, attach, e) : object_of(d, memory);
    return o ? open_object(o, x, e) : -1;
}

int front_open_all(struct front_device *d, const struct backend_job *job, struct executor *x, struct error *e)
{
    if (front_device_open(x, d->number, e) < 0)
        return -1;
    for (unsigned i = 0; i < job->n_steps; i++) {
        const struct step *step = &job->steps[i];
        int r = step->plan.kind == PLAN_KERNEL ? open_object(front_code_of(step->plan.kernel.function), x, e) : 0;

        for (unsigned o = 0; r == 0 && o < step_operands(step); o++)
            r = open_memory_of(d, memory_of(&step->operands[o]), false, x, e);
        if (r < 0) {
            backend_job_blame(job, i, e);
            return -1;
        }
    }
    return open_memory_of(d, job->signal.page, true, x, e);
}
