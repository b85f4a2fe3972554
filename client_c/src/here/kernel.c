#include "kernel.h"

#include <stdlib.h>
#include <string.h>

#include "base/fail.h"
#include "core/decode.h"
#include "core/step.h"
#include "ops/launch.h"
#include "wire/put.h"

/* ---- the words of a call ---- */

/* Masks of the bits that count in an argument's value, by its kind. A tensor's value has none, since the tensor's own
 * words follow the arguments'. Arguments of any other kind are refused later. */
enum { N_KINDS = 8 };
static const uint64_t VALUE_MASKS[N_KINDS] = {[KOPS_ARG_INT] = UINT64_MAX,
                                              [KOPS_ARG_UINT] = UINT64_MAX,
                                              [KOPS_ARG_FLOAT] = UINT64_MAX,
                                              [KOPS_ARG_BOOL] = UINT8_MAX};

_Static_assert(sizeof(((struct kops_argument *)0)->value) == sizeof(uint64_t) && sizeof(bool) == 1 &&
                   __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__,
               "a value is a word, and a bool its first byte");

HERE_INLINE void look_at_argument(struct here_walk *w, const struct kops_argument *a)
{
    uint64_t value;

    memcpy(&value, &a->value, sizeof(value));
    here_look(w, (uint64_t)a->kind);
    here_look(w, value & VALUE_MASKS[a->kind % N_KINDS]);
    w->differs |= a->kind == KOPS_ARG_BYTES; /* the bytes behind the pointer may have changed */
}

HERE_INLINE void look_at_dims(struct here_walk *w, const struct kops_dims *d)
{
    here_look(w, d->n);
    for (unsigned i = 0; i < d->n && i < 3; i++)
        here_look(w, (uint64_t)d->size[i]);
}

HERE_INLINE void look_at_geometry(struct here_walk *w, const struct kops_launch_geometry *g)
{
    look_at_dims(w, &g->grid);
    look_at_dims(w, &g->block);
    look_at_dims(w, &g->cluster);
    here_look(w, g->has_shared);
    here_look(w, g->has_shared ? g->shared : 0);
}

/* Returns false where the call is too long, or differs. */
HERE_INLINE bool look_at_call(struct here_walk *w, const struct here_call *call)
{
    if (call->n_args > KERNEL_MAX_PARAMS || call->n_tensors > KERNEL_MAX_TENSORS)
        return false;
    here_look(w, (uint64_t)(uint32_t)call->device << 32 | (uint64_t)(call->geometry != NULL) << 31 |
                     call->n_args << 16 | call->n_tensors);
    for (unsigned i = 0; i < call->n_args; i++)
        look_at_argument(w, &call->args[i]);
    for (unsigned i = 0; i < call->n_tensors; i++)
        if (!here_look_at_tensor(w, &call->tensors[i]) || w->differs)
            return false;
    if (call->geometry)
        look_at_geometry(w, call->geometry);
    return !w->differs;
}

static bool is(struct here_last_call *kept, const struct here_call *call)
{
    struct here_walk w = {.writes = false, .at = kept->words};

    return kept->kept && look_at_call(&w, call);
}

struct here_last_call *here_last_find(struct here_last *last, const struct here_call *call)
{
    for (unsigned i = 0; i < LAST_CALLS; i++) {
        const unsigned at = (last->found + i) % LAST_CALLS; /* the next slot fits where calls alternate */

        if (is(&last->calls[at], call)) {
            last->found = at;
            return &last->calls[at];
        }
    }
    return NULL;
}

/* ---- keeping a call ---- */

static void here_plan_copy(struct plan_kernel *to, const struct plan_kernel *from)
{
    memcpy(to, from, offsetof(struct plan_kernel, params) + from->param_bytes);
}

void here_last_keep(struct here_last *last, const struct here_call *call, const struct plan_kernel *plan,
                    const struct here_shapes *shapes)
{
    const unsigned at = (last->found + 1) % LAST_CALLS;
    struct here_last_call *kept = &last->calls[at];
    struct here_walk w = {.writes = true, .at = kept->words};

    kept->kept = look_at_call(&w, call);
    if (!kept->kept)
        return;
    here_plan_copy(&kept->plan, plan);
    memcpy(&kept->shapes, shapes, offsetof(struct here_shapes, words) + shapes->n_words * sizeof(shapes->words[0]));
    kept->row = (struct here_row){.generation = 0};
    last->found = at;
}

void here_last_drop(struct here_last *last)
{
    for (unsigned i = 0; i < LAST_CALLS; i++)
        last->calls[i].kept = false;
}

enum { LAUNCH_BUFFER_POINTER = 1, LAUNCH_BUFFER_SIZE = 2, CLUSTER_DIMENSION = 4, COOPERATIVE = 2 };

struct here_kernel {
    struct kernel_signature *signature;
    struct here_code *code;
    char *symbol;
    struct here_tally *tally; /* tally, whose lock guards all members below: a launch takes no other lock */
    cuda_context context;     /* context of `function` */
    struct here_function function;
    struct here_last last; /* last calls in that context */
};

/* ---- the declaration ---- */

static int read_declaration(const struct here_declaration *from, struct kernel_param_declaration *params,
                            struct kernel_declaration *d, struct error *e)
{
    static const struct rpc_field fields[] = {KOPS_PARAMS_KERNEL(RPC_FIELD)};
    enum { N_FIELDS = sizeof(fields) / sizeof(fields[0]) };
    struct rpc_arg args[N_FIELDS];

    *d = (struct kernel_declaration){.entry = from->entry,
                                     .entry_length = strlen(from->entry),
                                     .n_binary = from->n_params,
                                     .offsets = from->offsets,
                                     .sizes = from->sizes};
    if (rpc_decode_map(from->params, fields, N_FIELDS, "", args, e) < 0)
        return -1;
    return kernel_declaration_decode(args, params, d, e);
}

enum kops_code here_kernel_new(const struct here_declaration *d, struct here_kernel **ret, struct kops_error *e)
{
    struct kernel_param_declaration params[KERNEL_MAX_PARAMS];
    struct here_kernel *k = calloc(1, sizeof(*k));
    struct kernel_declaration declaration;
    struct error why;

    if (!k || !(k->symbol = strdup(d->symbol)) || !(k->tally = here_tally_new())) {
        here_kernel_free(k);
        return fail(e, KOPS_ERR_NO_MEMORY, "there is no memory for a kernel");
    }
    if (read_declaration(d, params, &declaration, &why) < 0 ||
        kernel_signature_new(&declaration, &k->signature, &why) < 0) {
        here_kernel_free(k);
        return here_error(&why, e);
    }
    k->code = d->code;
    *ret = k;
    return KOPS_OK;
}

enum kops_code here_check_declaration(const void *params, size_t length, struct kops_error *e)
{
    const struct here_declaration d = {.entry = "kernel", .params = params, .length = length};
    struct kernel_param_declaration list[KERNEL_MAX_PARAMS];
    struct kernel_declaration declaration;
    struct kernel_signature *s;
    struct error why;

    if (read_declaration(&d, list, &declaration, &why) < 0 || kernel_signature_new(&declaration, &s, &why) < 0)
        return here_error(&why, e);
    kernel_signature_free(s);
    return KOPS_OK;
}

void here_kernel_free(struct here_kernel *k)
{
    if (!k)
        return;
    kernel_signature_free(k->signature);
    here_tally_free(k->tally);
    free(k->symbol);
    free(k);
}

/* ---- a launch ---- */

/* A call in the form that the rules take. */
struct reading {
    struct tensor tensors[KERNEL_MAX_TENSORS];
    const struct tensor *operands[KERNEL_MAX_TENSORS];
    struct kernel_arg args[KERNEL_MAX_PARAMS];
    struct kernel_launch geometry;
    struct plan plan;
};

/* Returns the key of a parameter for errors. Keys are constants, since formatting takes longer than the checks. */
static const char *key_of(const struct kernel_param *p)
{
#define KEYS4(a, b, c, d) "args[" #a "]", "args[" #b "]", "args[" #c "]", "args[" #d "]"
    static const char *const keys[] = {KEYS4(0, 1, 2, 3),     KEYS4(4, 5, 6, 7),     KEYS4(8, 9, 10, 11),
                                       KEYS4(12, 13, 14, 15), KEYS4(16, 17, 18, 19), KEYS4(20, 21, 22, 23),
                                       KEYS4(24, 25, 26, 27), KEYS4(28, 29, 30, 31)};
#undef KEYS4
    _Static_assert(sizeof(keys) / sizeof(keys[0]) >= KERNEL_MAX_PARAMS, "there is a key for each parameter");
    return keys[p->index];
}

static int wrong_kind(const struct kernel_param *p, const char *is, const char *give, struct error *e)
{
    error_set(e, ERROR_WRONG_TYPE, "%s: %s is %s of type %s: give %s", key_of(p), p->name, is, dtype_name(p->dtype),
              give);
    return error_detail_text(e, "key", key_of(p));
}

static int read_tensor(const struct native_tensor *from, const struct kernel_param *p, struct reading *r,
                       struct error *e)
{
    struct tensor *t = &r->tensors[p->operand];

    r->operands[p->operand] = t;
    return here_read_tensor(from, key_of(p), t, e);
}

static int read_scalar(const struct kops_argument *a, const struct kernel_param *p, struct kernel_arg *ret,
                       struct error *e)
{
    unsigned char *value = ret->value;

    if (p->structure)
        return kernel_scalar_from_bytes(p, a->kind == KOPS_ARG_BYTES ? a->value.bytes : NULL, a->size, ret, e);
    switch (a->kind) {
    case KOPS_ARG_INT:
        return kernel_scalar_from_int(p, a->value.integer, value, e);
    case KOPS_ARG_UINT:
        return kernel_scalar_from_uint(p, a->value.natural, value, e);
    case KOPS_ARG_FLOAT:
        return kernel_scalar_from_float(p, a->value.real, value, e);
    case KOPS_ARG_BOOL:
        return kernel_scalar_from_bool(p, a->value.boolean, value, e);
    default:
        break;
    }
    return wrong_kind(p, "a scalar", "a number", e);
}

static int read_args(const struct here_kernel *k, const struct here_call *call, struct reading *r, struct error *e)
{
    const struct kernel_signature *s = k->signature;
    unsigned next = 0;

    if (call->n_args != s->n_params) {
        error_set(e, ERROR_INVALID_ARGUMENT, "args: %s takes %u arguments, not %u", s->op.name, s->n_params,
                  call->n_args);
        return error_detail_text(e, "key", "args");
    }
    for (unsigned i = 0; i < s->n_params; i++) {
        const struct kernel_param *p = &s->params[i];
        const struct kops_argument *a = &call->args[i];

        if (p->kind == KERNEL_SCALAR) {
            if (read_scalar(a, p, &r->args[i], e) < 0)
                return -1;
        } else if (a->kind == KOPS_ARG_NULL) {
            r->operands[p->operand] = NULL;
        } else if (a->kind != KOPS_ARG_TENSOR || next == call->n_tensors) {
            return wrong_kind(p, "a tensor", "one, or a null pointer", e);
        } else if (read_tensor(&call->tensors[next++], p, r, e) < 0) {
            return -1;
        }
    }
    return 0;
}

static void read_dimensions(const struct kops_dims *from, struct kernel_launch_dimensions *to)
{
    to->n = from->n;
    for (unsigned i = 0; i < from->n && i < 3; i++)
        to->at[i] = (int64_t)from->size[i];
}

static int plan(const struct here_kernel *k, const struct here_function *f, const struct here_call *call,
                struct reading *r, struct error *e)
{
    unsigned budget = TENSOR_SEARCH_STEPS;
    const struct overlap_call overlap = {.op = &k->signature->op,
                                         .kernel = k->signature,
                                         .kind = PLAN_KERNEL,
                                         .tensors = r->operands,
                                         .same_memory = here_one_memory,
                                         .budget = &budget};
    int8_t in_place;

    r->geometry = (struct kernel_launch){.has_shared = false};
    if (call->geometry) {
        read_dimensions(&call->geometry->grid, &r->geometry.grid);
        read_dimensions(&call->geometry->block, &r->geometry.block);
        read_dimensions(&call->geometry->cluster, &r->geometry.cluster);
        r->geometry.has_shared = call->geometry->has_shared;
        r->geometry.shared = (int64_t)call->geometry->shared;
    }
    if (read_args(k, call, r, e) < 0 ||
        kernel_plan(k->signature, r->operands, r->args, &r->geometry, &f->limits, &r->plan, e) < 0)
        return -1;
    return overlap_check(&overlap, &in_place, e);
}

enum { MAX_ATTRIBUTES = 2 };

static struct cuda_launch_config configure(const struct plan_kernel *p, cuda_queue stream,
                                           struct cuda_launch_attribute attributes[MAX_ATTRIBUTES])
{
    struct cuda_launch_config config = {.shared_bytes = p->shared_bytes, .stream = stream, .attributes = attributes};

    memcpy(config.grid, p->grid, sizeof(config.grid));
    memcpy(config.block, p->block, sizeof(config.block));
    memset(attributes, 0, MAX_ATTRIBUTES * sizeof(*attributes));
    if (p->cluster[0]) {
        attributes[0].id = CLUSTER_DIMENSION;
        memcpy(attributes[config.n_attributes++].value.cluster, p->cluster, sizeof(p->cluster));
    }
    if (p->cooperative) {
        attributes[config.n_attributes].id = COOPERATIVE;
        attributes[config.n_attributes++].value.cooperative = 1;
    }
    return config;
}

/* Checks that all blocks of a cooperative kernel fit on the device at one time. */
static enum kops_code check_room(const struct cuda_driver *d, const struct here_function *f,
                                 const struct plan_kernel *p, struct kops_error *e)
{
    struct cuda_launch_attribute attributes[MAX_ATTRIBUTES];
    const struct cuda_launch_config config = configure(p, NULL, attributes);
    struct error why;
    uint64_t room;
    cuda_status status;
    int n = 0;

    if (p->cluster[0])
        status = d->occupancy_clusters(&n, f->function, &config);
    else
        status = d->occupancy_blocks(&n, f->function, (int)(p->block[0] * p->block[1] * p->block[2]), p->shared_bytes);
    if (status)
        return cuda_fail(d, e, KOPS_ERR_DEVICE_ERROR, status, "cuOccupancyMaxActiveBlocksPerMultiprocessor");
    room = (uint64_t)(n > 0 ? n : 0) *
           (p->cluster[0] ? (uint64_t)p->cluster[0] * p->cluster[1] * p->cluster[2] : f->limits.multiprocessors);
    return kernel_check_cooperative(p, room, &why) < 0 ? here_error(&why, e) : KOPS_OK;
}

static cuda_status launch_with_attributes(const struct cuda_driver *d, cuda_function function, struct plan_kernel *p,
                                          cuda_queue stream, void **params, void **buffer)
{
    struct cuda_launch_attribute attributes[MAX_ATTRIBUTES];
    const struct cuda_launch_config config = configure(p, stream, attributes);

    return d->launch_ex(&config, function, params, buffer);
}

/* Never lets a kernel begin early (`pdl`), since the work before it on the stream is unknown. */
static inline cuda_status launch(const struct cuda_driver *d, cuda_function function, struct plan_kernel *p,
                                 cuda_queue stream)
{
    size_t size = p->param_bytes;
    void *extra[] = {(void *)(uintptr_t)LAUNCH_BUFFER_POINTER, p->params, (void *)(uintptr_t)LAUNCH_BUFFER_SIZE, &size,
                     NULL};
    void *list[KERNELS_PARAMS_MAX], **params = p->n_listed ? cuda_ops_list_params(p, p->params, list) : NULL;
    void **buffer = params || !size ? NULL : extra;

    if (p->cluster[0] || p->cooperative)
        return launch_with_attributes(d, function, p, stream, params, buffer);
    return d->launch(function, p->grid[0], p->grid[1], p->grid[2], p->block[0], p->block[1], p->block[2],
                     p->shared_bytes, stream, params, buffer);
}

/* ---- what a launch needs ---- */

struct prepared {
    const struct cuda_driver *driver; /* NULL: nothing to launch */
    cuda_context context;
    cuda_function function; /* in that context */
    struct plan_kernel plan;
    struct here_counted counted;
};

/* Takes the kernel to another context. */
static enum kops_code find_function(struct here_kernel *k, const struct cuda_driver *d, cuda_context context,
                                    struct here_function *ret, struct kops_error *e)
{
    enum kops_code r = here_code_function(k->code, d, context, k->symbol, ret, e);

    if (r)
        return r;
    here_tally_lock(k->tally);
    here_last_drop(&k->last);
    k->function = *ret;
    k->context = context;
    here_tally_unlock(k->tally);
    return KOPS_OK;
}

static unsigned n_operands(const struct here_kernel *k)
{
    return k->signature->op.n_inputs + k->signature->op.n_outputs;
}

/* Checks a call and plans it, with the addresses in its parameters. *ret_shapes is set where something is to be done.
 */
static enum kops_code check(const struct here_kernel *k, const struct here_function *f, const struct here_call *call,
                            struct prepared *ret, struct here_shapes *ret_shapes, struct kops_error *e)
{
    struct plan_kernel *p = &ret->plan;
    struct reading reading;
    struct error why;
    cuda_status status;
    enum kops_code r = here_check_device(call->device, f->device, e);

    if (r)
        return r;
    if (plan(k, f, call, &reading, &why) < 0)
        return here_error(&why, e);
    if (plan_is_empty(&reading.plan)) {
        ret->driver = NULL;
        return KOPS_OK;
    }
    here_plan_copy(p, &reading.plan.kernel);
    if (p->cooperative && (r = check_room(ret->driver, f, p, e)))
        return r;
    for (unsigned i = 0; i < p->n_pointers; i++) {
        const uint64_t address = reading.operands[i] ? reading.operands[i]->offset : 0;

        memcpy(p->params + p->pointers[i], &address, sizeof(address));
    }
    if (p->maps && (status = cuda_ops_encode_params(p, p->params, ret->driver->map_encode)))
        return cuda_fail(ret->driver, e, KOPS_ERR_INVALID_ARGUMENT, status, "cuTensorMapEncodeTiled");
    here_shapes_of(reading.operands, n_operands(k), ret_shapes);
    return KOPS_OK;
}

/* Checks a call that equals none of the last calls, and keeps it among them. */
static enum kops_code prepare_new(struct here_kernel *k, const struct here_function *f, const struct here_call *call,
                                  struct prepared *ret, struct kops_error *e)
{
    struct here_row row = {.generation = 0};
    struct here_shapes shapes;
    enum kops_code r = check(k, f, call, ret, &shapes, e);

    if (r || !ret->driver)
        return r;
    here_tally_lock(k->tally);
    ret->counted = here_tally_count(k->tally, &shapes, &row);
    if (k->context == ret->context) /* false where another thread took the kernel to its own context */
        here_last_keep(&k->last, call, &ret->plan, &shapes);
    here_tally_unlock(k->tally);
    return KOPS_OK;
}

/* Prepares a call that equals none of the last calls, or is in another context. */
static enum kops_code prepare_unknown(struct here_kernel *k, const struct here_call *call, struct prepared *ret,
                                      struct kops_error *e)
{
    struct here_function function;
    enum kops_code r = KOPS_OK;
    bool known;

    here_tally_lock(k->tally);
    known = k->context == ret->context;
    if (known)
        function = k->function;
    here_tally_unlock(k->tally);
    if (!known)
        r = find_function(k, ret->driver, ret->context, &function, e);
    if (r)
        return r;
    ret->function = function.function;
    return prepare_new(k, &function, call, ret, e);
}

/* Prepares a call. A call that equals one of the last calls in their context needs no check: nothing else was looked at
 * then. Takes one lock. */
static inline enum kops_code prepare(struct here_kernel *k, const struct here_call *call, struct prepared *ret,
                                     struct kops_error *e)
{
    struct here_last_call *again;
    enum kops_code r = here_context(&ret->driver, &ret->context, e);

    if (r)
        return r;
    here_tally_lock(k->tally);
    again = k->context == ret->context ? here_last_find(&k->last, call) : NULL;
    if (again) {
        ret->function = k->function.function;
        here_plan_copy(&ret->plan, &again->plan);
        ret->counted = here_tally_count(k->tally, &again->shapes, &again->row);
    }
    here_tally_unlock(k->tally);
    return again ? KOPS_OK : prepare_unknown(k, call, ret, e);
}

/* ---- the launch ---- */

static cuda_status enqueue(const struct cuda_driver *d, void *work, cuda_queue stream)
{
    struct prepared *p = work;

    return launch(d, p->function, &p->plan, stream);
}

enum kops_code here_launch(struct here_kernel *k, const struct here_call *call, bool *ret_due, struct kops_error *e)
{
    struct prepared p;
    cuda_status status;
    enum kops_code r = prepare(k, call, &p, e);

    *ret_due = false;
    if (r || !p.driver)
        return r;
    *ret_due = p.counted.due;
    status = here_enqueue_counted(k->tally, &p.counted, p.driver, p.context, call->stream, enqueue, &p);
    return status ? cuda_fail(p.driver, e, KOPS_ERR_DEVICE_ERROR, status, "cuLaunchKernel") : KOPS_OK;
}

enum kops_code here_launch_timed(struct here_kernel *k, const struct here_call *call, double *ret_us,
                                 struct kops_error *e)
{
    struct prepared p;
    enum kops_code r = prepare(k, call, &p, e);

    *ret_us = 0;
    if (r || !p.driver)
        return r;
    return here_timed(k->tally, &p.counted, p.driver, call->stream, enqueue, &p, ret_us, e);
}

void here_kernel_read(struct here_kernel *k)
{
    here_tally_read(k->tally);
}

bool here_kernel_tell(struct here_kernel *k, uint64_t module, struct bytes *out)
{
    const struct kernel_signature *s = k->signature;
    const unsigned n = n_operands(k);
    const size_t from = out->length;
    char uuid[CUDA_UUID_TEXT];
    struct mp_pairs params;

    here_tally_lock(k->tally);
    memcpy(uuid, k->function.uuid, sizeof(uuid));
    here_tally_unlock(k->tally);
    params = mp_open(out);
    put_launched_module(&params, module);
    put_launched_entry(&params, s->op.name);
    put_launched_device(&params, uuid[0] ? uuid : NULL);
    put_launched_dtypes(&params, n);
    for (unsigned i = 0; i < n; i++)
        mp_text(out, dtype_name(s->operands[i]->dtype));
    if (here_tally_take(k->tally, NULL, key_launched_rows(&params))) {
        mp_close(&params);
        return true;
    }
    out->length = from;
    return false;
}

enum kops_code here_device(char ret_uuid[CUDA_UUID_TEXT], struct kops_error *e)
{
    const struct cuda_driver *d = cuda_load(e);
    cuda_device device;
    cuda_status status = d ? d->context_device(&device) : 0;

    if (!d)
        return KOPS_ERR_NO_CUDA;
    return status ? cuda_fail(d, e, KOPS_ERR_NO_CUDA, status, "cuCtxGetDevice")
                  : cuda_device_uuid(d, device, ret_uuid, e);
}
