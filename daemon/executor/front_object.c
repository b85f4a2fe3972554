/* Objects: what the daemon has under a number and executors open when they need it. */
#include "executor/front.h"

#include <stdlib.h>

int front_object_add(struct front_object *o, enum front_kind kind, struct front_device *device, struct error *e)
{
    struct front *f = device->front;

    o->kind = kind;
    o->device = device;
    atomic_init(&o->present, 0);
    atomic_init(&o->opened, 0);
    atomic_init(&o->closing, 1);
    pthread_mutex_lock(&f->lock);
    o->handle = ids_take(kind == FRONT_CODE ? &f->codes : &f->handles);
    if (o->handle)
        list_append(&f->objects, &o->link);
    pthread_mutex_unlock(&f->lock);
    return o->handle ? 0 : error_set(e, ERROR_OUT_OF_MEMORY, "executors have as many objects as they can");
}

void front_object_set_present(struct front_object *o, const struct executor *x)
{
    atomic_fetch_or(&o->opened, 1ULL << x->bit);
    atomic_fetch_or(&o->present, 1ULL << x->bit);
}

bool front_object_begin(struct front_object *o, const struct executor *x)
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

void front_object_end(struct front_object *o, const struct executor *x)
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

/* One of those that close it has ended: the last one frees it. A number that may still be open in an executor, which
 * then is about to be killed, is not given to another object before that. */
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

void front_objects_forget(struct front *f, unsigned bit)
{
    pthread_mutex_lock(&f->lock);
    list_for_each_safe (node, after, &f->objects) {
        struct front_object *o = list_entry(node, struct front_object, link);

        atomic_fetch_and(&o->present, ~(1ULL << bit));
        atomic_fetch_and(&o->opened, ~(1ULL << bit));
        if (o->kind == FRONT_MEMORY)
            front_memory_forget(o, bit);
    }
    pthread_mutex_unlock(&f->lock);
}
