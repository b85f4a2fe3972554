#include "op_tally.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "op_last.h"
#include "wire/put.h"

/* One tally, with its key. The key is constant; the tally has its own lock. */
struct entry {
    const struct op *op;
    enum dtype dtypes[PLAN_MAX_OPERANDS]; /* 0 behind the last */
    cuda_device device;
    char uuid[CUDA_UUID_TEXT]; /* of the device; "": the driver does not tell */
    struct here_tally *tally;  /* owned */
    struct entry *next;
};

struct here_ops {
    pthread_mutex_t lock;          /* of those who add */
    _Atomic(struct entry *) first; /* entries are added in front, and stay */
    struct here_op_last *last;     /* owned; it refers to the tallies */
};

struct here_ops *here_ops_new(void)
{
    struct here_ops *o = calloc(1, sizeof(*o));

    if (!o)
        return NULL;
    o->last = here_op_last_new();
    if (!o->last) {
        free(o);
        return NULL;
    }
    pthread_mutex_init(&o->lock, NULL);
    return o;
}

struct here_ops *here_ops_free(struct here_ops *o)
{
    struct entry *e = o ? atomic_load(&o->first) : NULL;

    if (!o)
        return NULL;
    here_op_last_free(o->last);
    while (e) {
        struct entry *next = e->next;

        here_tally_free(e->tally);
        free(e);
        e = next;
    }
    pthread_mutex_destroy(&o->lock);
    free(o);
    return NULL;
}

static unsigned tensors_of(const struct op *op)
{
    return op->n_inputs + op->n_outputs;
}

static bool are(const struct entry *e, const enum dtype *dtypes)
{
    return !memcmp(e->dtypes, dtypes, tensors_of(e->op) * sizeof(*dtypes));
}

static struct entry *find(struct here_ops *o, const struct op *op, const enum dtype *dtypes, cuda_device device)
{
    struct entry *e = atomic_load_explicit(&o->first, memory_order_acquire);

    while (e && (e->op != op || e->device != device || !are(e, dtypes)))
        e = e->next;
    return e;
}

static struct entry *add(struct here_ops *o, const struct cuda_driver *d, const struct op *op, const enum dtype *dtypes,
                         cuda_device device)
{
    struct entry *e = calloc(1, sizeof(*e));

    if (!e)
        return NULL;
    e->op = op;
    memcpy(e->dtypes, dtypes, tensors_of(op) * sizeof(*dtypes));
    e->device = device;
    e->tally = here_tally_new();
    if (!e->tally) {
        free(e);
        return NULL;
    }
    if (cuda_device_uuid(d, device, e->uuid, NULL))
        e->uuid[0] = '\0';
    e->next = atomic_load(&o->first);
    atomic_store_explicit(&o->first, e, memory_order_release);
    return e;
}

struct here_tally *here_ops_tally(struct here_ops *o, const struct cuda_driver *d, const struct op *op,
                                  const enum dtype *dtypes, cuda_device device)
{
    struct entry *e = find(o, op, dtypes, device);

    if (!e) {
        pthread_mutex_lock(&o->lock);
        e = find(o, op, dtypes, device);
        if (!e)
            e = add(o, d, op, dtypes, device);
        pthread_mutex_unlock(&o->lock);
    }
    return e ? e->tally : NULL;
}

struct here_op_last *here_ops_last(struct here_ops *o)
{
    return o->last;
}

void here_ops_read(struct here_ops *o)
{
    for (struct entry *e = atomic_load(&o->first); e; e = e->next)
        here_tally_read(e->tally);
}

static void tell_one(const struct entry *e, here_ops_told *tell, void *to)
{
    const unsigned n = tensors_of(e->op);
    struct bytes params = {.data = NULL};
    struct mp_pairs m = mp_open(&params);
    bool news;

    put_launched_op(&m, e->op->name);
    put_launched_device(&m, e->uuid[0] ? e->uuid : NULL);
    put_launched_dtypes(&m, n);
    for (unsigned i = 0; i < n; i++)
        mp_text(&params, dtype_name(e->dtypes[i]));
    news = here_tally_take(e->tally, e->op, key_launched_rows(&m));
    mp_close(&m);
    if (news && !params.failed)
        tell(to, params.data, params.length);
    bytes_free(&params);
}

void here_ops_tell(struct here_ops *o, here_ops_told *tell, void *to)
{
    for (const struct entry *e = atomic_load(&o->first); e; e = e->next)
        tell_one(e, tell, to);
}
