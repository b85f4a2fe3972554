/* What a job needs in an executor: memory and code; and shared host memory, which is opened when a job first needs it.
 */
#include <stdlib.h>

#include "backend/memory_ids.h"
#include "executor/front.h"

/* ---- devices ---- */

int front_device_open(struct executor *x, uint32_t number, struct error *e)
{
    struct call_request request = {.kind = CALL_ACTIVATE, .device = number};
    struct call_reply reply;
    int r = 0;

    if (atomic_load(&x->active) >> number & 1)
        return 0;
    pthread_mutex_lock(&x->activating);
    if (!(atomic_load(&x->active) >> number & 1))
        r = front_call(x, &request, NULL, NULL, &reply, NULL, e);
    if (r == 0) {
        atomic_fetch_or(&x->active, 1U << number);
        atomic_fetch_or(&x->front->used, 1U << number);
    }
    pthread_mutex_unlock(&x->activating);
    return r;
}

/* ---- shared host memory ---- */

/* A memfd on one device: backend_memory.attached. */
struct front_host {
    struct front_object base; /* first */
    struct backend_memory *memory;
    bool attach; /* for signals */
};

/* Guards backend_memory.attached. */
static pthread_mutex_t attaching = PTHREAD_MUTEX_INITIALIZER;

/* Keepers make attachments while the loop looks. */
static struct front_object *host_object(const struct front_device *d, const struct backend_memory *memory)
{
    return __atomic_load_n(&memory->attached[d->base.index], __ATOMIC_ACQUIRE);
}

static struct front_host *host_new(struct front_device *d, struct backend_memory *memory, bool attach, struct error *e)
{
    struct front_host *h = calloc(1, sizeof(*h));

    if (!h) {
        error_set(e, ERROR_OUT_OF_MEMORY, "no memory for a mapping's record");
        return NULL;
    }
    list_init(&h->base.link);
    h->memory = memory;
    h->attach = attach;
    if (front_object_add(&h->base, FRONT_HOST, d, e) == 0)
        return h;
    free(h);
    return NULL;
}

struct front_object *front_host_of(struct front_device *d, struct backend_memory *memory, bool attach, struct error *e)
{
    struct front_object *o;

    pthread_mutex_lock(&attaching);
    o = host_object(d, memory);
    if (!o) {
        struct front_host *h = host_new(d, memory, attach, e);

        o = h ? &h->base : NULL;
        __atomic_store_n(&memory->attached[d->base.index], o, __ATOMIC_RELEASE);
    }
    pthread_mutex_unlock(&attaching);
    return o;
}

int front_host_open(struct front_object *o, struct executor *x, struct error *e)
{
    struct front_host *h = (struct front_host *)(void *)o;
    const struct backend_memory *memory = h->memory;
    struct call_request request = {.kind = CALL_MAP_HOST,
                                   .device = o->device->number,
                                   .handle = o->handle,
                                   .attach = h->attach,
                                   .size = memory->size,
                                   .n_fds = 1};
    struct call_reply reply;
    int r;

    request.import.writable = memory->writable;
    if (!front_object_begin(o, x))
        return 0;
    r = front_call(x, &request, NULL, &memory->fd, &reply, NULL, e);
    if (r == 0)
        front_object_set_present(o, x);
    front_object_end(o, x);
    return r;
}

static int open_object(struct front_object *o, struct executor *x, struct error *e)
{
    if (front_is_present(o, x))
        return 0;
    if (front_device_open(x, o->device->number, e) < 0)
        return -1;
    switch (o->kind) {
    case FRONT_MEMORY:
        return front_memory_open(o, x, e);
    case FRONT_HOST:
        return front_host_open(o, x, e);
    case FRONT_CODE:
        return front_code_open(o, x, e);
    }
    return 0;
}

int front_open_in(struct front_object *o, uint64_t domain, struct error *e)
{
    bool lost = true;
    int r = -1;

    for (unsigned i = 0; r < 0 && lost && i < FRONT_TRIES; i++) {
        struct executor *x = front_executor_of(o->device->front, domain, e);

        if (!x)
            return -1;
        r = open_object(o, x, e);
        lost = front_is_lost(x);
        front_executor_release(x);
    }
    return r;
}

int front_memory_attach(struct backend_device *device, struct backend_memory *memory, struct error *e)
{
    struct front_device *d = front_device(device);
    struct front_object *o = front_host_of(d, memory, true, e);

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

/* The memory's object, made where it is shared host memory that the device has not met; NULL and 0: none is needed. */
static struct front_object *object_of(struct front_device *d, const struct step_operand *operand, bool make,
                                      struct error *e)
{
    struct backend_memory *memory = operand->extent ? memory_by_id(operand->memory) : NULL;

    if (!memory)
        return NULL;
    if (memory->kind != MEMORY_MEMFD)
        return front_memory_object(memory);
    return make ? front_host_of(d, memory, false, e) : host_object(d, memory);
}

uint32_t front_handle(const struct front_device *d, struct backend_memory *memory)
{
    const struct front_object *o = NULL;

    if (memory)
        o = memory->kind == MEMORY_MEMFD ? host_object(d, memory) : front_memory_object(memory);
    return o ? o->handle : 0;
}

static bool has_operand(const struct front_device *d, const struct step_operand *operand, const struct executor *x)
{
    struct backend_memory *memory = operand->extent ? memory_by_id(operand->memory) : NULL;
    const struct front_object *o;

    if (!memory)
        return true;
    o = memory->kind == MEMORY_MEMFD ? host_object(d, memory) : front_memory_object(memory);
    return o && front_is_present(o, x);
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
            if (!has_operand(d, &step->operands[o], x))
                return false;
    }
    if (!job->signal.page)
        return true;
    return host_object(d, job->signal.page) && front_is_present(host_object(d, job->signal.page), x);
}

static int open_step(struct front_device *d, const struct step *step, struct executor *x, struct error *e)
{
    if (step->plan.kind == PLAN_KERNEL && open_object(front_code_of(step->plan.kernel.function), x, e) < 0)
        return -1;
    for (unsigned i = 0; i < step_operands(step); i++) {
        struct front_object *o;

        e->code = ERROR_NONE;
        o = object_of(d, &step->operands[i], true, e);
        if ((!o && e->code != ERROR_NONE) || (o && open_object(o, x, e) < 0))
            return -1;
    }
    return 0;
}

int front_open_all(struct front_device *d, const struct backend_job *job, struct executor *x, struct error *e)
{
    struct front_object *page;

    if (front_device_open(x, d->number, e) < 0)
        return -1;
    for (unsigned i = 0; i < job->n_steps; i++)
        if (open_step(d, &job->steps[i], x, e) < 0) {
            backend_job_blame(job, i, e);
            return -1;
        }
    if (!job->signal.page)
        return 0;
    page = front_host_of(d, job->signal.page, true, e);
    return page ? open_object(page, x, e) : -1;
}
