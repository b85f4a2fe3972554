/* Launches of kernels: blocking, on a CUDA stream, by tickets, and as steps of sequences. */
#include "base/fail.h"
#include "here.h"
#include "jobs/job.h"
#include "kernel.h"
#include "memory/buffer.h"
#include "run.h"

struct launch {
    struct kops_kernel *kernel;
    const struct kops_tensor *given[KOPS_MAX_KERNEL_TENSORS]; /* the tensors among the arguments */
    struct native_tensor tensors[KOPS_MAX_KERNEL_TENSORS];
    struct wire_run wire;
    struct job job;
};

static enum kops_code check_dims(const char *name, const struct kops_dims *d, struct kops_error *e)
{
    const unsigned most = sizeof(d->size) / sizeof(d->size[0]);

    return d->n > most ? fail(e, KOPS_ERR_BAD_ARGUMENT, "%s.n is %u, more than %u", name, d->n, most) : KOPS_OK;
}

static enum kops_code check_geometry(const struct kops_launch_geometry *g, struct kops_error *e)
{
    enum kops_code r = check_dims("grid", &g->grid, e);

    if (!r)
        r = check_dims("block", &g->block, e);
    return r ? r : check_dims("cluster", &g->cluster, e);
}

/* Tells whether a launch gives any part of its geometry itself. */
static bool is_given(const struct kops_launch_geometry *g)
{
    return g->grid.n || g->block.n || g->cluster.n || g->has_shared;
}

static enum kops_code check_options(const struct kops_options *o, struct kops_error *e)
{
    if (o->device || o->variant)
        return fail(e, KOPS_ERR_BAD_ARGUMENT,
                    "options.device and variant are not for kernels: the device is the module's");
    return options_check(o, e);
}

/* Checks the i-th argument. *ret_tensor is its tensor, else NULL. `n` tensors came before it: only their room is
 * checked, since the daemon compares their number. */
static inline enum kops_code check_arg(const struct kops_client *c, const struct kops_argument *args, size_t i,
                                       unsigned n, const struct kops_tensor **ret_tensor, struct kops_error *e)
{
    *ret_tensor = NULL;
    if (args[i].kind < KOPS_ARG_NULL || args[i].kind > KOPS_ARG_BYTES || args[i].kind == KOPS_ARG_INDEX)
        return fail(e, KOPS_ERR_BAD_ARGUMENT, "args[%zu].kind is %d: no kind, or one for sequences", i,
                    (int)args[i].kind);
    if (args[i].kind != KOPS_ARG_TENSOR)
        return KOPS_OK;
    if (!args[i].value.tensor)
        return fail(e, KOPS_ERR_BAD_ARGUMENT, "args[%zu] is no tensor: kops_arg_null() makes a null pointer", i);
    if (n == KOPS_MAX_KERNEL_TENSORS)
        return fail(e, KOPS_ERR_BAD_ARGUMENT, "a kernel takes at most %d tensors", KOPS_MAX_KERNEL_TENSORS);
    *ret_tensor = args[i].value.tensor;
    return operand_check(c, *ret_tensor, "args", i, e);
}

/* Checks the arguments, and notes their tensors. */
static enum kops_code check_args(struct launch *l, const struct kops_client *c, const struct kops_argument *args,
                                 size_t n_args, struct kops_error *e)
{
    const struct kops_tensor *t;
    enum kops_code r = KOPS_OK;

    l->wire.n_inputs = 0;
    for (size_t i = 0; !r && i < n_args; i++) {
        r = check_arg(c, args, i, l->wire.n_inputs, &t, e);
        if (t)
            l->given[l->wire.n_inputs++] = t;
    }
    return r;
}

static bool resolve(struct kops_client *c, struct job *job)
{
    struct launch *l = job->context;
    bool known = remote_known(c, &l->kernel->remote);

    for (unsigned i = 0; i < l->wire.n_inputs; i++)
        known &= operand_resolve(c, l->given[i], &l->tensors[i]);
    l->wire.kernel = l->kernel->remote.id;
    return known;
}

static enum kops_code ensure(struct kops_client *c, struct job *job, uint64_t deadline, struct kops_error *e)
{
    const struct launch *l = job->context;

    for (unsigned i = 0; i < l->wire.n_inputs; i++) {
        struct kops_buffer *b = l->given[i]->buffer;

        if (b && !remote_known(c, &b->remote))
            return buffer_ensure(b, deadline, e);
    }
    return kernel_ensure(l->kernel, deadline, e);
}

static enum kops_code begin(struct launch *l, struct kops_kernel *k, const struct kops_argument *args, size_t n_args,
                            const struct kops_launch_options *how, struct kops_error *e)
{
    const struct kops_options *o = how ? &how->options : NULL;
    enum kops_code r = KOPS_OK;

    if (how)
        r = check_geometry(&how->geometry, e);
    if (!r && o)
        r = check_options(o, e);
    if (r)
        return r;
    l->kernel = k;
    l->wire = (struct wire_run){.op = k->name,
                                .tensors = l->tensors,
                                .args = args,
                                .n_args = n_args,
                                .launch_geometry = how ? &how->geometry : NULL,
                                .how = client_how(k->client, o)};
    l->job = (struct job){.pack = wire_pack_run,
                          .wire = &l->wire,
                          .resolve = resolve,
                          .ensure = ensure,
                          .context = l,
                          .safe = recovery_never,
                          .options = o,
                          .decode = wire_decode_run,
                          .how = &l->wire.how,
                          .run = &l->wire,
                          .name = k->name};
    return check_args(l, k->client, args, n_args, e);
}

/* ---- in the caller's context ---- */

/* Checks the arguments and finds their tensors. */
static enum kops_code find_here(const struct kops_client *c, const struct kops_argument *args, size_t n_args,
                                struct here_tensors *h, struct kops_error *e)
{
    const struct kops_tensor *t;
    enum kops_code r = KOPS_OK;

    for (size_t i = 0; !r && i < n_args; i++) {
        r = check_arg(c, args, i, h->n, &t, e);
        if (!r && t)
            r = here_tensors_add(h, t, e);
    }
    return r;
}

/* Makes sure that the kernel's code is in this process. */
static enum kops_code ensure_here(struct kops_kernel *k, const struct kops_options *o, struct kops_error *e)
{
    struct kops_client *c = k->client;
    enum kops_code r;

    client_enter(c, e);
    r = kernel_ensure_here(k, client_deadline(c, o ? o->timeout_ms : 0), e);
    client_leave(c);
    return r;
}

/* Settles a batch that is open on the launch's stream. Takes the lock only where the client has open batches. */
static enum kops_code settle(struct kops_client *c, const struct kops_options *o, const struct dispatch *d,
                             struct kops_error *e)
{
    enum kops_code r;

    if (!atomic_load(&c->batches))
        return KOPS_OK;
    client_enter(c, e);
    r = batch_settle(c, d->stream, client_deadline(c, o ? o->timeout_ms : 0), e);
    client_leave(c);
    return r;
}

/* Launches without the client's lock, so that a full GPU queue delays no other thread. The lock is taken only to fetch
 * code, to map memory that is not in this process yet, or where a batch is open. Geometry and options were checked
 * before. */
static enum kops_code run_here(struct kops_kernel *k, const struct kops_argument *args, size_t n_args,
                               const struct kops_launch_options *how, const struct dispatch *d, struct kops_error *e)
{
    const struct kops_options *o = how ? &how->options : NULL;
    struct here_tensors tensors;
    struct here_call call;
    enum kops_code r = launch_here_check(d, o, e);

    tensors.n = 0;
    tensors.process = process_id();
    tensors.with = NULL;
    if (!r)
        r = find_here(k->client, args, n_args, &tensors, e);
    if (!r && !atomic_load_explicit(&k->here, memory_order_acquire))
        r = ensure_here(k, o, e);
    if (!r)
        r = settle(k->client, o, d, e);
    if (r)
        return r;
    call = (struct here_call){.tensors = tensors.at,
                              .n_tensors = tensors.n,
                              .args = args,
                              .n_args = (unsigned)n_args,
                              .geometry = how && is_given(&how->geometry) ? &how->geometry : NULL,
                              .stream = d->way == DISPATCH_ENQUEUE ? d->stream : NULL,
                              .device = here_tensors_device(&tensors)};
    return launch_here(k, &call, d, o, e);
}

/* Tells whether a launch that failed because of a capture can be captured. */
static bool can_be_captured(const struct kops_client *c, const struct kops_options *o, const struct dispatch *d)
{
    return d->way == DISPATCH_ENQUEUE && c->features & FEATURE_CODE && (!o || o->where == KOPS_WHERE_DEFAULT);
}

static bool arguments_are_here(const struct kops_argument *args, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (args[i].kind == KOPS_ARG_TENSOR && args[i].value.tensor && !tensors_are_here(args[i].value.tensor, 1))
            return false;
    return true;
}

static bool is_batched(struct kops_client *c, const struct dispatch *d)
{
    bool batched;

    if (!atomic_load(&c->batches))
        return false;
    client_enter(c, NULL);
    batched = call_is_batched(c, d);
    client_leave(c);
    return batched;
}

/* `how` may be NULL. */
static enum kops_code request_here(struct kops_kernel *k, const struct kops_argument *args, size_t n_args,
                                   const struct kops_launch_options *how, const struct dispatch *d,
                                   struct kops_error *e)
{
    enum kops_code r = how ? check_geometry(&how->geometry, e) : KOPS_OK;

    if (!r && how)
        r = check_options(&how->options, e);
    return r ? r : run_here(k, args, n_args, how, d, e);
}

enum kops_code launch_request(struct kops_kernel *k, const struct kops_argument *args, size_t n_args,
                              const struct kops_launch_options *how, const struct dispatch *d,
                              struct kops_error *ret_error)
{
    struct kops_error unwanted, *e = ret_error ? ret_error : &unwanted;
    struct kops_client *c = k->client;
    const struct kops_options *o = how ? &how->options : NULL;
    struct launch l;
    enum kops_code r;

    if ((o && o->where == KOPS_WHERE_HERE) ||
        (call_goes_here(c, d, o) && !is_batched(c, d) && arguments_are_here(args, n_args))) {
        fail_clear(e);
        return request_here(k, args, n_args, how, d, e);
    }
    client_enter(c, e);
    r = dispatch_check(d, o, e);
    if (!r)
        r = begin(&l, k, args, n_args, how, e);
    l.wire.caches = d->caches;
    if (!r)
        r = dispatch(d, c, &l.job, client_deadline(c, o ? o->timeout_ms : 0), e);
    if (r == KOPS_ERR_CAPTURING && can_be_captured(c, o, d)) {
        client_leave(c);
        fail_clear(e);
        return run_here(k, args, n_args, how, d, e);
    }
    client_leave(c);
    return r;
}

enum kops_code kops_kernel_launch(kops_kernel *kernel, const struct kops_argument *args, size_t n_args,
                                  const struct kops_launch_options *how, struct kops_result *ret_result,
                                  struct kops_error *ret_error)
{
    return launch_request(kernel, args, n_args, how, &(struct dispatch){DISPATCH_RUN, .ret_result = ret_result},
                          ret_error);
}

enum kops_code kops_kernel_submit(kops_kernel *kernel, const struct kops_argument *args, size_t n_args,
                                  const struct kops_launch_options *how, kops_ticket *ret_ticket,
                                  struct kops_error *ret_error)
{
    return launch_request(kernel, args, n_args, how, &(struct dispatch){DISPATCH_SUBMIT, .ret_ticket = ret_ticket},
                          ret_error);
}

enum kops_code kops_kernel_enqueue(kops_kernel *kernel, const struct kops_argument *args, size_t n_args,
                                   const struct kops_launch_options *how, void *cuda_stream,
                                   struct kops_error *ret_error)
{
    return launch_request(kernel, args, n_args, how, &(struct dispatch){DISPATCH_ENQUEUE, .stream = cuda_stream},
                          ret_error);
}

enum kops_code kernel_check_step(const struct kops_client *c, const struct kops_step *step, size_t place,
                                 struct kops_error *e)
{
    if (step->kernel->client != c)
        return fail(e, KOPS_ERR_BAD_ARGUMENT, "steps[%zu].kernel belongs to another client", place);
    if (step->op || step->n_inputs || step->n_outputs || step->n_attrs || step->variant)
        return fail(e, KOPS_ERR_BAD_ARGUMENT, "steps[%zu] has a kernel and an op's members: its arguments are `args`",
                    place);
    for (size_t i = 0; i < step->n_args; i++)
        if (step->args[i].kind < KOPS_ARG_NULL || step->args[i].kind > KOPS_ARG_BYTES ||
            step->args[i].kind == KOPS_ARG_TENSOR)
            return fail(e, KOPS_ERR_BAD_ARGUMENT,
                        "steps[%zu].args[%zu].kind is %d: tensors of a sequence are given by kops_arg_index()", place,
                        i, (int)step->args[i].kind);
    return step->geometry ? check_geometry(step->geometry, e) : KOPS_OK;
}
