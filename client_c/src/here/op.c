#include "op.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "base/fail.h"
#include "core/decode.h"
#include "core/op.h"
#include "core/step.h"
#include "ops/launch.h"
#include "wire/put.h"

/* ---- the last executions of a client. An execution that is equal in all that the rules look at is launched by its
 * kept plan. One lock guards them. ---- */

/* A planned execution: its launch and the tally that counts it. */
struct made {
    const struct op *op;
    cuda_function function;
    struct cuda_launch launch; /* launch, with its tensor maps encoded */
    struct here_tally *tally;  /* NULL: not counted */
    struct here_counted counted;
};

enum {
    CALLS = 16, /* room for the ops of a model's step that repeats, or for one op on as many buffers */
    ATTRS_MOST = 128,
    /* Words of a tensor: address, length, rank and dtype, whether it has strides, shape, strides. */
    WORDS = 1 + PLAN_MAX_OPERANDS * (4 + 2 * TENSOR_MAX_RANK)
};

/* Everything that the rules look at. */
struct key {
    cuda_context context;
    unsigned n_words;
    size_t attrs_length;
    uint64_t words[WORDS];
    unsigned char attrs[ATTRS_MOST];
};

struct kept {
    struct key key;
    const struct op *op; /* NULL: the slot is empty */
    cuda_function function;
    struct cuda_launch launch;
    struct here_tally *tally;
    struct here_row row;
    struct here_shapes shapes;
};

struct last {
    pthread_mutex_t lock;
    unsigned found; /* slot found last; the next call is likely to be in the slot after it */
    struct kept calls[CALLS];
};

/* ---- keys ---- */

/* Returns false where the call is too long to be kept. */
static bool make_key(cuda_context context, const struct here_op_call *call, struct key *ret)
{
    const unsigned n = call->n_inputs + call->n_outputs;
    struct here_walk w = {.writes = true, .at = ret->words};

    if (n > PLAN_MAX_OPERANDS || call->attrs_length > ATTRS_MOST)
        return false;
    here_look(&w, (uint64_t)(uint32_t)call->device << 32 | call->n_inputs << 8 | call->n_outputs);
    for (unsigned i = 0; i < n; i++)
        if (!here_look_at_tensor(&w, &call->tensors[i]))
            return false;
    ret->context = context;
    ret->n_words = (unsigned)(w.at - ret->words);
    ret->attrs_length = call->attrs_length;
    if (call->attrs_length)
        memcpy(ret->attrs, call->attrs, call->attrs_length);
    return true;
}

static bool is(const struct kept *k, const struct key *key, const char *op)
{
    return k->op && k->key.context == key->context && k->key.n_words == key->n_words &&
           k->key.attrs_length == key->attrs_length &&
           !memcmp(k->key.words, key->words, key->n_words * sizeof(key->words[0])) &&
           !memcmp(k->key.attrs, key->attrs, key->attrs_length) && !strcmp(k->op->name, op);
}

/* ---- calls ---- */

static void copy_launch(struct cuda_launch *to, const struct cuda_launch *from)
{
    memcpy(to, from, offsetof(struct cuda_launch, params) + from->params_size);
    to->n_maps = 0; /* the parameters contain them already */
}

static struct here_counted count_again(struct here_tally *tally, const struct here_shapes *shapes, struct here_row *row)
{
    struct here_counted counted;

    here_tally_lock(tally);
    counted = here_tally_count(tally, shapes, row);
    here_tally_unlock(tally);
    return counted;
}

/* Lock held. */
static void take(struct kept *k, struct made *ret)
{
    ret->op = k->op;
    ret->function = k->function;
    copy_launch(&ret->launch, &k->launch);
    ret->tally = k->tally;
    ret->counted = (struct here_counted){.timed = false};
    if (k->tally)
        ret->counted = count_again(k->tally, &k->shapes, &k->row);
}

static bool last_find(struct last *l, cuda_context context, const struct here_op_call *call, struct made *ret)
{
    struct key key;
    bool found = false;

    if (!make_key(context, call, &key))
        return false;
    pthread_mutex_lock(&l->lock);
    for (unsigned i = 0; i < CALLS && !found; i++) {
        const unsigned at = (l->found + i) % CALLS; /* the next slot fits where calls alternate */

        found = is(&l->calls[at], &key, call->op);
        if (found) {
            l->found = at;
            take(&l->calls[at], ret);
        }
    }
    pthread_mutex_unlock(&l->lock);
    return found;
}

static void last_keep(struct last *l, cuda_context context, const struct here_op_call *call, const struct made *made,
                      const struct here_shapes *shapes)
{
    struct kept *k;
    struct key key;

    if (!make_key(context, call, &key))
        return;
    pthread_mutex_lock(&l->lock);
    l->found = (l->found + 1) % CALLS;
    k = &l->calls[l->found];
    k->key = key;
    k->op = made->op;
    k->function = made->function;
    copy_launch(&k->launch, &made->launch);
    k->tally = made->tally;
    k->row = made->counted.row;
    k->shapes = *shapes;
    pthread_mutex_unlock(&l->lock);
}

/* ---- counts: a tally for each op, dtypes and device ---- */

/* A tally with its constant key. The tally has its own lock. */
struct entry {
    const struct op *op;
    enum dtype dtypes[PLAN_MAX_OPERANDS]; /* 0 after the last operand */
    cuda_device device;
    char uuid[CUDA_UUID_TEXT]; /* UUID of the device; "": the driver does not tell */
    struct here_tally *tally;  /* owned */
    struct entry *next;
};

struct here_ops {
    pthread_mutex_t lock;          /* guards additions */
    _Atomic(struct entry *) first; /* entries are added in front, and stay */
    struct last last;              /* refers to the tallies */
};

struct here_ops *here_ops_new(void)
{
    struct here_ops *o = calloc(1, sizeof(*o));

    if (!o)
        return NULL;
    pthread_mutex_init(&o->last.lock, NULL);
    pthread_mutex_init(&o->lock, NULL);
    return o;
}

struct here_ops *here_ops_free(struct here_ops *o)
{
    struct entry *e = o ? atomic_load(&o->first) : NULL;

    if (!o)
        return NULL;
    pthread_mutex_destroy(&o->last.lock);
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

static struct here_tally *tally_of(struct here_ops *o, const struct cuda_driver *d, const struct op *op,
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

/* A call in the form that the rules take. */
struct reading {
    struct tensor tensors[STEP_MAX_OPERANDS];
    uint64_t addresses[STEP_MAX_OPERANDS];
    char variant[STEP_VARIANT_BYTES]; /* forced; "": none */
    struct op_call call;
    struct plan plan;
};

/* ---- planning ---- */

static int read_op(const struct here_op_call *call, struct reading *r, struct error *e)
{
    const struct op *op = op_find(call->op, strlen(call->op));

    if (!op) {
        error_set(e, ERROR_UNKNOWN_OP, "there is no op %.64s whose kernels clients can launch", call->op);
        return error_detail_text(e, "key", "op");
    }
    r->call.op = op;
    if (call->n_inputs == op->n_inputs && call->n_outputs == op->n_outputs)
        return 0;
    error_set(e, ERROR_INVALID_ARGUMENT, "%s takes %u inputs and %u outputs, not %u and %u", op->name, op->n_inputs,
              op->n_outputs, call->n_inputs, call->n_outputs);
    return error_detail_text(e, "key", call->n_inputs == op->n_inputs ? "out" : "in");
}

static int read_tensors(const struct here_op_call *call, struct reading *r, struct error *e)
{
    char key[16];

    for (unsigned o = 0; o < call->n_inputs + call->n_outputs; o++) {
        if (here_read_tensor(&call->tensors[o], operand_key(r->call.op, NULL, o, key), &r->tensors[o], e) < 0)
            return -1;
        r->call.tensors[o] = &r->tensors[o];
        r->addresses[o] = call->tensors[o].offset;
    }
    return 0;
}

static int read_attrs(const struct here_op_call *call, struct reading *r, struct error *e)
{
    struct rpc_arg variant = {.present = false};

    r->variant[0] = '\0';
    if (op_attrs_decode(r->call.op, call->attrs, r->call.attrs, &variant, e) < 0)
        return -1;
    if (!variant.present)
        return 0;
    if (variant.length >= STEP_VARIANT_BYTES) {
        error_set(e, ERROR_INVALID_ARGUMENT, "attrs.variant: no kernel has a name that long");
        return error_detail_text(e, "key", "attrs.variant");
    }
    memcpy(r->variant, variant.text, variant.length);
    r->variant[variant.length] = '\0';
    return 0;
}

static int check_overlap(const struct reading *r, struct error *e)
{
    unsigned budget = TENSOR_SEARCH_STEPS;
    const struct overlap_call overlap = {.op = r->call.op,
                                         .kind = r->plan.kind,
                                         .tensors = r->call.tensors,
                                         .same_memory = here_one_memory,
                                         .budget = &budget};
    int8_t in_place;

    return overlap_check(&overlap, &in_place, e);
}

static int plan(const struct here_op_call *call, const struct cuda_ops_device *device, struct reading *r,
                struct cuda_launch *ret_launch, struct error *e)
{
    if (read_op(call, r, e) < 0 || read_tensors(call, r, e) < 0 || read_attrs(call, r, e) < 0 ||
        op_plan(&r->call, &r->plan, e) < 0 || check_overlap(r, e) < 0)
        return -1;
    if (plan_is_empty(&r->plan))
        return 0;
    return cuda_ops_launch(r->call.op->id, &r->plan, r->addresses, r->variant[0] ? r->variant : NULL, device,
                           ret_launch, e);
}

/* ---- the device ---- */

/* A context's device, as far as plans depend on it. */
struct place {
    cuda_context context;
    cuda_device device;
    struct cuda_ops_device kernels;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct place last_place; /* place of the last call, and nearly always of the next; guarded by the lock */

static void keep_place(const struct place *place)
{
    pthread_mutex_lock(&lock);
    last_place = *place;
    pthread_mutex_unlock(&lock);
}

static enum kops_code find_place(const struct cuda_driver *d, cuda_context context, struct place *ret,
                                 struct kops_error *e)
{
    enum { MULTIPROCESSOR_COUNT = 16, CAPABILITY_MAJOR = 75, CAPABILITY_MINOR = 76 /* CUdevice_attribute */ };
    cuda_status status;
    int count = 0, major = 0, minor = 0;

    pthread_mutex_lock(&lock);
    *ret = last_place;
    pthread_mutex_unlock(&lock);
    if (ret->context == context)
        return KOPS_OK;
    status = d->context_device(&ret->device);
    if (!status)
        status = d->device_attribute(&count, MULTIPROCESSOR_COUNT, ret->device);
    if (!status)
        status = d->device_attribute(&major, CAPABILITY_MAJOR, ret->device);
    if (!status)
        status = d->device_attribute(&minor, CAPABILITY_MINOR, ret->device);
    if (status)
        return cuda_fail(d, e, KOPS_ERR_DEVICE_ERROR, status, "cuDeviceGetAttribute");
    ret->context = context;
    ret->kernels.multiprocessors = count > 0 ? (unsigned)count : 1;
    ret->kernels.level = cuda_ops_level_of(NULL, (unsigned)(10 * major + minor));
    if (ret->kernels.level == CUDA_OPS_SM90A && !d->map_encode)
        ret->kernels.level = CUDA_OPS_SM90;
    keep_place(ret);
    return KOPS_OK;
}

/* ---- the launch ---- */

static cuda_status enqueue(const struct cuda_driver *d, void *work, cuda_queue stream)
{
    struct made *made = work;
    struct cuda_launch *l = &made->launch;
    void *params[] = {l->params};

    return d->launch(made->function, l->grid[0], l->grid[1], l->grid[2], l->block[0], l->block[1], l->block[2],
                     l->shared_bytes, stream, params, NULL);
}

/* The attributes that are true: shapes depend on them. */
static uint32_t flags_of(const struct op_call *call)
{
    uint32_t flags = 0;

    for (unsigned i = 0; i < call->op->n_attrs; i++)
        flags |= (uint32_t)(call->op->attrs[i].type == OP_ATTR_BOOL && call->attrs[i].b) << i;
    return flags;
}

/* Counts a planned call, and keeps it among the last ones. */
static void count(const struct cuda_driver *d, const struct place *place, const struct here_op_call *call,
                  const struct reading *reading, struct made *made)
{
    const unsigned n = call->n_inputs + call->n_outputs;
    enum dtype dtypes[PLAN_MAX_OPERANDS];
    struct here_row row = {.generation = 0};
    struct here_shapes shapes;

    if (!call->ops)
        return;
    for (unsigned i = 0; i < n; i++)
        dtypes[i] = reading->call.tensors[i]->dtype;
    made->tally = tally_of(call->ops, d, reading->call.op, dtypes, place->device);
    here_shapes_of(reading->call.tensors, n, &shapes);
    shapes.flags = flags_of(&reading->call);
    if (made->tally) {
        here_tally_lock(made->tally);
        made->counted = here_tally_count(made->tally, &shapes, &row);
        here_tally_unlock(made->tally);
    }
    last_keep(&call->ops->last, place->context, call, made, &shapes);
}

/* Finds the kernel of a planned call. Where its binary is missing, the call is not counted. */
static enum kops_code find_kernel(const struct cuda_driver *d, const struct place *place,
                                  const struct here_op_call *call, const struct reading *reading, struct made *made,
                                  const char **ret_missing, struct kops_error *e)
{
    struct here_function f;
    cuda_status status;
    enum kops_code r = here_image_function(d, place->context, made->launch.kernel, &f, ret_missing, e);

    if (r || *ret_missing)
        return r;
    if (made->launch.n_maps) {
        status = cuda_ops_encode(&made->launch, d->map_encode);
        if (status)
            return cuda_fail(d, e, KOPS_ERR_DEVICE_ERROR, status, "cuTensorMapEncodeTiled");
    }
    made->op = reading->call.op;
    made->function = f.function;
    count(d, place, call, reading, made);
    return KOPS_OK;
}

/* The daemon's binaries may have been built without code for the kernels of this device's level. */
static bool lacks_kernel(enum kops_code r, const char *kernel, struct place *place)
{
    const enum cuda_ops_level level = r == KOPS_ERR_UNSUPPORTED ? here_image_level(kernel) : CUDA_OPS_ANY;

    if (level == CUDA_OPS_ANY)
        return false;
    place->kernels.level = (enum cuda_ops_level)(level - 1);
    keep_place(place);
    return true;
}

/* Checks and plans a call that equals none of the last ones. made->op stays NULL where there is nothing to launch. */
static enum kops_code prepare(const struct cuda_driver *d, cuda_context context, const struct here_op_call *call,
                              struct made *made, const char **ret_missing, struct kops_error *e)
{
    struct reading reading;
    struct place place;
    struct error why;
    enum kops_code r = find_place(d, context, &place, e);

    if (!r)
        r = here_check_device(call->device, place.device, e);
    if (r)
        return r;
    do {
        if (plan(call, &place.kernels, &reading, &made->launch, &why) < 0)
            return here_error(&why, e);
        if (plan_is_empty(&reading.plan))
            return KOPS_OK;
        r = find_kernel(d, &place, call, &reading, made, ret_missing, e);
    } while (lacks_kernel(r, made->launch.kernel, &place));
    return r;
}

enum kops_code here_op(const struct here_op_call *call, struct here_op_result *ret, struct kops_error *e)
{
    const struct cuda_driver *d = NULL;
    cuda_context context = NULL;
    struct made made;
    cuda_status status;
    enum kops_code r = here_context(&d, &context, e);

    *ret = (struct here_op_result){.variant = ""};
    if (r)
        return r;
    if (!call->ops || !last_find(&call->ops->last, context, call, &made)) {
        made.op = NULL;
        made.tally = NULL;
        made.counted = (struct here_counted){.timed = false};
        r = prepare(d, context, call, &made, &ret->missing, e);
    }
    if (r || !made.op)
        return r;
    ret->variant = made.launch.variant;
    ret->due = made.counted.due;
    if (call->timed)
        return here_timed(made.tally, &made.counted, d, call->stream, enqueue, &made, &ret->us, e);
    status = here_enqueue_counted(made.tally, &made.counted, d, context, call->stream, enqueue, &made);
    return status ? cuda_fail(d, e, KOPS_ERR_DEVICE_ERROR, status, "cuLaunchKernel") : KOPS_OK;
}
