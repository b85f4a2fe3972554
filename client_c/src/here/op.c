#include "op.h"

#include <pthread.h>
#include <string.h>

#include "base/fail.h"
#include "context.h"
#include "core/decode.h"
#include "core/overlap.h"
#include "core/step.h"
#include "errors.h"
#include "op_last.h"
#include "ops/launch.h"
#include "timed.h"

/* A call in the terms of the rules. */
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
        r->addresses[o] = call->tensors[o].pointer;
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

/* What the plan depends on, of a context. */
struct place {
    cuda_context context;
    cuda_device device;
    struct cuda_ops_device kernels;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct place last; /* nearly always the next one, too; guarded by the lock */

static void keep_place(const struct place *place)
{
    pthread_mutex_lock(&lock);
    last = *place;
    pthread_mutex_unlock(&lock);
}

static enum kops_code find_place(const struct cuda_driver *d, cuda_context context, struct place *ret,
                                 struct kops_error *e)
{
    enum { MULTIPROCESSOR_COUNT = 16, CAPABILITY_MAJOR = 75, CAPABILITY_MINOR = 76 /* CUdevice_attribute */ };
    cuda_status status;
    int count = 0, major = 0, minor = 0;

    pthread_mutex_lock(&lock);
    *ret = last;
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
    struct here_op_made *made = work;
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

/* Counts a planned call, and keeps it as one of the last. */
static void count(const struct cuda_driver *d, const struct place *place, const struct here_op_call *call,
                  const struct reading *reading, struct here_op_made *made)
{
    const unsigned n = call->n_inputs + call->n_outputs;
    enum dtype dtypes[PLAN_MAX_OPERANDS];
    struct here_row row = {.generation = 0};
    struct here_shapes shapes;

    if (!call->ops)
        return;
    for (unsigned i = 0; i < n; i++)
        dtypes[i] = reading->call.tensors[i]->dtype;
    made->tally = here_ops_tally(call->ops, d, reading->call.op, dtypes, place->device);
    here_shapes_of(reading->call.tensors, n, &shapes);
    shapes.flags = flags_of(&reading->call);
    if (made->tally) {
        here_tally_lock(made->tally);
        made->counted = here_tally_count(made->tally, &shapes, &row);
        here_tally_unlock(made->tally);
    }
    here_op_last_keep(here_ops_last(call->ops), place->context, call, made, &shapes);
}

/* Finds the kernel of a planned call. Where its binary is missing, the call is not counted. */
static enum kops_code find_kernel(const struct cuda_driver *d, const struct place *place,
                                  const struct here_op_call *call, const struct reading *reading,
                                  struct here_op_made *made, const char **ret_missing, struct kops_error *e)
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

/* Checks and plans a call that is none of the last ones again. made->op stays NULL where nothing is to be launched. */
static enum kops_code prepare(const struct cuda_driver *d, cuda_context context, const struct here_op_call *call,
                              struct here_op_made *made, const char **ret_missing, struct kops_error *e)
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
    struct here_op_made made;
    cuda_status status;
    enum kops_code r = here_context(&d, &context, e);

    *ret = (struct here_op_result){.variant = ""};
    if (r)
        return r;
    if (!call->ops || !here_op_last_find(here_ops_last(call->ops), context, call, &made)) {
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
