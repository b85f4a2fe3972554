/* Runs of ops: blocking, on a CUDA stream, by tickets, or for their counters. */
#include "run.h"

#include <stdlib.h>
#include <string.h>

#include "base/fail.h"
#include "here.h"
#include "jobs/job.h"
#include "kernel.h"
#include "memory/buffer.h"
#include "session/session.h"
#include "wire/wire.h"

/* ---- operands, attributes, options ---- */

enum kops_code operand_refuse(enum operand_fault fault, const struct kops_tensor *t, const char *list, size_t place,
                              struct kops_error *e)
{
    switch (fault) {
    case OPERAND_HAS_TOO_MANY_DIMENSIONS:
        return fail(e, KOPS_ERR_BAD_ARGUMENT, "%s[%zu].rank is %u, more than %d", list, place, t->rank, KOPS_MAX_RANK);
    case OPERAND_HAS_NO_DTYPE:
        return fail(e, KOPS_ERR_BAD_ARGUMENT, "%s[%zu].dtype is %d, which is no dtype", list, place, (int)t->dtype);
    case OPERAND_IS_FOREIGN:
        return fail(e, KOPS_ERR_BAD_ARGUMENT, "%s[%zu].buffer belongs to another client", list, place);
    case OPERAND_LIES_TOO_FAR:
        return fail(e, KOPS_ERR_BAD_ARGUMENT, "%s[%zu].offset is too large", list, place);
    case OPERAND_IS_GOOD:
        break;
    }
    return KOPS_OK;
}

enum kops_code attrs_check(const struct kops_attr *attrs, size_t n, struct kops_error *e)
{
    for (size_t i = 0; i < n; i++)
        if (!attrs[i].name || attrs[i].type < KOPS_ATTR_BOOL || attrs[i].type > KOPS_ATTR_TEXT ||
            (attrs[i].type == KOPS_ATTR_TEXT && !attrs[i].value.text))
            return fail(e, KOPS_ERR_BAD_ARGUMENT, "attrs[%zu] has no name, type or text", i);
    return KOPS_OK;
}

bool attrs_only_write(const struct kops_attr *attrs, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (!strcmp(attrs[i].name, "beta") &&
            (attrs[i].type == KOPS_ATTR_FLOAT ? attrs[i].value.real != 0.0
                                              : attrs[i].type != KOPS_ATTR_INT || attrs[i].value.integer != 0))
            return false;
    return true;
}

enum kops_code options_check(const struct kops_options *options, struct kops_error *e)
{
    if (options->priority > KOPS_PRIORITY_LOW)
        return fail(e, KOPS_ERR_BAD_ARGUMENT, "options.priority is none of enum kops_priority");
    if (options->where > KOPS_WHERE_HERE)
        return fail(e, KOPS_ERR_BAD_ARGUMENT, "options.where is none of enum kops_where");
    return fail_reserved(e, options->reserved, sizeof(options->reserved), "options");
}

/* ---- runs ---- */

enum kops_code request_check(const struct kops_client *c, const struct kops_request *r, struct kops_error *e)
{
    size_t n = r->n_inputs + r->n_outputs;
    enum kops_code code;

    if (!r->op)
        return fail(e, KOPS_ERR_BAD_ARGUMENT, "request.op is NULL");
    if (r->n_inputs > KOPS_MAX_OPERANDS || n > KOPS_MAX_OPERANDS)
        return fail(e, KOPS_ERR_BAD_ARGUMENT, "a run takes at most %d tensors", KOPS_MAX_OPERANDS);
    for (size_t i = 0; i < n; i++) {
        bool input = i < r->n_inputs;

        code = operand_check(c, request_tensor(r, i), input ? "inputs" : "outputs", input ? i : i - r->n_inputs, e);
        if (code)
            return code;
    }
    code = attrs_check(r->attrs, r->n_attrs, e);
    return code ? code : options_check(&r->options, e);
}

static bool resolve(struct kops_client *c, struct job *job)
{
    struct work *w = job->context;
    bool known = !w->kernel || remote_known(c, &w->kernel->remote);

    for (unsigned i = 0; i < w->wire.n_inputs + w->wire.n_outputs; i++)
        known &= operand_resolve(c, w->given[i], &w->tensors[i]);
    w->wire.kernel = w->kernel ? w->kernel->remote.id : 0;
    return known;
}

static enum kops_code ensure(struct kops_client *c, struct job *job, uint64_t deadline, struct kops_error *e)
{
    const struct work *w = job->context;

    for (unsigned i = 0; i < w->wire.n_inputs + w->wire.n_outputs; i++) {
        struct kops_buffer *b = w->given[i]->buffer;

        if (b && !remote_known(c, &b->remote))
            return buffer_ensure(b, deadline, e);
    }
    return w->kernel ? kernel_ensure(w->kernel, deadline, e) : KOPS_OK;
}

/* Tells whether repeating an op is harmless: the outputs are only written, and overlap no input. */
static bool is_safe(const void *context)
{
    const struct work *w = context;
    const unsigned n_inputs = w->wire.n_inputs;
    struct span spans[KOPS_MAX_OPERANDS];

    if (!attrs_only_write(w->wire.attrs, w->wire.n_attrs))
        return false;
    for (unsigned i = 0; i < n_inputs + w->wire.n_outputs; i++) {
        if (!span_of(w->given[i], &spans[i]))
            return false;
        for (unsigned k = 0; i >= n_inputs && k < n_inputs; k++)
            if (spans_meet(&spans[k], &spans[i]))
                return false;
    }
    return true;
}

void work_begin(struct work *work, const struct kops_options *options, recovery_safe *safe)
{
    work->job = (struct job){.pack = wire_pack_run,
                             .wire = &work->wire,
                             .resolve = resolve,
                             .ensure = ensure,
                             .context = work,
                             .safe = safe,
                             .options = options,
                             .decode = wire_decode_run,
                             .how = &work->wire.how,
                             .run = &work->wire,
                             .name = work->kernel ? work->kernel->name : NULL};
}

static void begin(struct work *w, const struct kops_client *c, const struct kops_request *r)
{
    w->kernel = NULL;
    for (size_t i = 0; i < r->n_inputs + r->n_outputs; i++)
        w->given[i] = request_tensor(r, i);
    w->wire = (struct wire_run){.op = r->op,
                                .n_inputs = (unsigned)r->n_inputs,
                                .n_outputs = (unsigned)r->n_outputs,
                                .tensors = w->tensors,
                                .attrs = r->attrs,
                                .n_attrs = r->n_attrs,
                                .variant = r->options.variant,
                                .how = client_how(c, &r->options)};
    work_begin(w, &r->options, is_safe);
}

/* Tells whether an op that failed because of a capture can be captured. */
static bool can_be_captured(const struct kops_client *c, const struct kops_options *o, const struct dispatch *d)
{
    return d->way == DISPATCH_ENQUEUE && c->features & FEATURE_IMAGES && o->where == KOPS_WHERE_DEFAULT;
}

/* Enters the client. `ret_error` may be NULL. */
static enum kops_code run_request(struct kops_client *c, const struct kops_request *request, const struct dispatch *d,
                                  struct kops_error *ret_error)
{
    struct kops_error unwanted, *e = ret_error ? ret_error : &unwanted;
    const uint64_t deadline = client_deadline(c, request->options.timeout_ms);
    struct work work;
    enum kops_code r;

    client_enter(c, e);
    r = request_check(c, request, e);
    if (!r && (request->options.where == KOPS_WHERE_HERE ||
               (call_goes_here(c, d, &request->options) && !call_is_batched(c, d) &&
                tensors_are_here(request->inputs, request->n_inputs) &&
                tensors_are_here(request->outputs, request->n_outputs))))
        return op_here(c, request, d, e);
    if (!r)
        r = dispatch_check(d, &request->options, e);
    if (!r) {
        begin(&work, c, request);
        work.wire.caches = d->caches;
        if (d->way == DISPATCH_ENQUEUE)
            work.job.name = client_op_name(c, request->op);
        r = dispatch(d, c, &work.job, deadline, e);
    }
    if (r == KOPS_ERR_CAPTURING && can_be_captured(c, &request->options, d)) {
        fail_clear(e);
        return op_here(c, request, d, e);
    }
    client_leave(c);
    return r;
}

enum kops_code kops_run(kops_client *client, const struct kops_request *request, struct kops_result *ret_result,
                        struct kops_error *ret_error)
{
    return run_request(client, request, &(struct dispatch){DISPATCH_RUN, .ret_result = ret_result}, ret_error);
}

enum kops_code kops_submit(kops_client *client, const struct kops_request *request, kops_ticket *ret_ticket,
                           struct kops_error *ret_error)
{
    return run_request(client, request, &(struct dispatch){DISPATCH_SUBMIT, .ret_ticket = ret_ticket}, ret_error);
}

enum kops_code kops_enqueue(kops_client *client, const struct kops_request *request, void *cuda_stream,
                            struct kops_error *ret_error)
{
    return run_request(client, request, &(struct dispatch){DISPATCH_ENQUEUE, .stream = cuda_stream}, ret_error);
}

/* ---- counters ---- */

static enum kops_code new_result(enum kops_counter_caches caches, struct wire_counters **ret, struct dispatch *d,
                                 struct kops_error *e)
{
    static const char *const names[] = {[KOPS_CACHES_COLD] = "cold", [KOPS_CACHES_WARM] = "warm"};

    if (caches != KOPS_CACHES_COLD && caches != KOPS_CACHES_WARM)
        return fail(e, KOPS_ERR_BAD_ARGUMENT, "caches is %d: KOPS_CACHES_COLD or KOPS_CACHES_WARM", (int)caches);
    *ret = calloc(1, sizeof(**ret));
    if (!*ret)
        return fail(e, KOPS_ERR_NO_MEMORY, "there is no memory for counters");
    *d = (struct dispatch){.way = DISPATCH_COUNT, .counters = *ret, .caches = names[caches]};
    return KOPS_OK;
}

static enum kops_code finish(enum kops_code code, struct wire_counters *w, struct kops_counters **ret,
                             struct kops_error *e)
{
    if (code)
        kops_counters_free(&w->counters);
    else
        *ret = &w->counters;
    return fail_older(e, code, "counters");
}

enum kops_code kops_counters_run(kops_client *client, const struct kops_request *request,
                                 enum kops_counter_caches caches, struct kops_counters **ret_counters,
                                 struct kops_error *ret_error)
{
    struct kops_error unwanted, *e = ret_error ? ret_error : &unwanted;
    struct wire_counters *w;
    struct dispatch d;
    enum kops_code r = new_result(caches, &w, &d, e);

    return r ? r : finish(run_request(client, request, &d, e), w, ret_counters, e);
}

enum kops_code kops_counters_launch(kops_kernel *kernel, const struct kops_argument *args, size_t n_args,
                                    const struct kops_launch_options *how, enum kops_counter_caches caches,
                                    struct kops_counters **ret_counters, struct kops_error *ret_error)
{
    struct kops_error unwanted, *e = ret_error ? ret_error : &unwanted;
    struct wire_counters *w;
    struct dispatch d;
    enum kops_code r = new_result(caches, &w, &d, e);

    return r ? r : finish(launch_request(kernel, args, n_args, how, &d, e), w, ret_counters, e);
}

struct kops_counters *kops_counters_free(struct kops_counters *counters)
{
    return wire_result_free(counters);
}

/* ---- built-in ops ---- */

static enum kops_code run_op(kops_client *client, const char *op, const struct kops_tensor *inputs, size_t n_inputs,
                             const struct kops_tensor *out, const struct kops_attr *attrs, size_t n_attrs,
                             const struct kops_options *options, struct kops_result *ret_result,
                             struct kops_error *ret_error)
{
    struct kops_request request = {.op = op,
                                   .inputs = inputs,
                                   .n_inputs = n_inputs,
                                   .outputs = out,
                                   .n_outputs = 1,
                                   .attrs = attrs,
                                   .n_attrs = n_attrs};

    if (options)
        request.options = *options;
    return run_request(client, &request, &(struct dispatch){DISPATCH_RUN, .ret_result = ret_result}, ret_error);
}

enum kops_code kops_add(kops_client *client, const struct kops_tensor *a, const struct kops_tensor *b,
                        const struct kops_tensor *out, const struct kops_options *options,
                        struct kops_result *ret_result, struct kops_error *ret_error)
{
    const struct kops_tensor inputs[2] = {*a, *b};

    return run_op(client, "add", inputs, 2, out, NULL, 0, options, ret_result, ret_error);
}

enum kops_code kops_copy(kops_client *client, const struct kops_tensor *a, const struct kops_tensor *out,
                         const struct kops_options *options, struct kops_result *ret_result,
                         struct kops_error *ret_error)
{
    return run_op(client, "copy", a, 1, out, NULL, 0, options, ret_result, ret_error);
}

enum kops_code kops_square(kops_client *client, const struct kops_tensor *a, const struct kops_tensor *out,
                           const struct kops_options *options, struct kops_result *ret_result,
                           struct kops_error *ret_error)
{
    return run_op(client, "square", a, 1, out, NULL, 0, options, ret_result, ret_error);
}

enum kops_code kops_gemm(kops_client *client, const struct kops_tensor *a, const struct kops_tensor *b,
                         const struct kops_tensor *out, const struct kops_gemm_params *params,
                         const struct kops_options *options, struct kops_result *ret_result,
                         struct kops_error *ret_error)
{
    static const struct kops_gemm_params defaults = KOPS_GEMM_INIT;
    const struct kops_gemm_params *p = params ? params : &defaults;
    const struct kops_tensor inputs[2] = {*a, *b};
    struct kops_attr attrs[5];
    size_t n = 0;

    if (p->trans_a)
        attrs[n++] = kops_attr_bool("trans_a", true);
    if (p->trans_b)
        attrs[n++] = kops_attr_bool("trans_b", true);
    if (p->alpha != 1.0)
        attrs[n++] = kops_attr_float("alpha", p->alpha);
    if (p->beta != 0.0)
        attrs[n++] = kops_attr_float("beta", p->beta);
    if (p->high || p->medium)
        attrs[n++] = kops_attr_text("precision", p->medium ? "medium" : "high");
    return run_op(client, "gemm", inputs, 2, out, attrs, n, options, ret_result, ret_error);
}

enum kops_code kops_linear(kops_client *client, const struct kops_tensor *a, const struct kops_tensor *b,
                           const struct kops_tensor *bias, const struct kops_tensor *out,
                           const struct kops_linear_params *params, const struct kops_options *options,
                           struct kops_result *ret_result, struct kops_error *ret_error)
{
    static const struct kops_linear_params defaults = KOPS_LINEAR_INIT;
    static const char *const activations[] = {[KOPS_ACTIVATION_NONE] = "none",
                                              [KOPS_ACTIVATION_RELU] = "relu",
                                              [KOPS_ACTIVATION_GELU] = "gelu",
                                              [KOPS_ACTIVATION_GELU_TANH] = "gelu_tanh"};
    const struct kops_linear_params *p = params ? params : &defaults;
    const struct kops_tensor inputs[3] = {*a, *b, *bias};
    struct kops_attr attrs[5];
    size_t n = 0;

    if (p->trans_a)
        attrs[n++] = kops_attr_bool("trans_a", true);
    if (p->trans_b)
        attrs[n++] = kops_attr_bool("trans_b", true);
    if (p->alpha != 1.0)
        attrs[n++] = kops_attr_float("alpha", p->alpha);
    if ((unsigned)p->activation > KOPS_ACTIVATION_GELU_TANH)
        return fail(ret_error, KOPS_ERR_BAD_ARGUMENT, "params->activation is %d, which is none", (int)p->activation);
    if (p->activation != KOPS_ACTIVATION_NONE)
        attrs[n++] = kops_attr_text("activation", activations[p->activation]);
    if (p->high || p->medium)
        attrs[n++] = kops_attr_text("precision", p->medium ? "medium" : "high");
    return run_op(client, "linear", inputs, 3, out, attrs, n, options, ret_result, ret_error);
}

enum kops_code kops_scaled_gemm(kops_client *client, const struct kops_tensor *a, const struct kops_tensor *b,
                                const struct kops_tensor *scale_a, const struct kops_tensor *scale_b,
                                const struct kops_tensor *out, const struct kops_scaled_gemm_params *params,
                                const struct kops_options *options, struct kops_result *ret_result,
                                struct kops_error *ret_error)
{
    static const struct kops_scaled_gemm_params defaults = KOPS_SCALED_GEMM_INIT;
    static const char *const precisions[] = {
        [KOPS_SUMS_HIGH] = "high", [KOPS_SUMS_HIGHEST] = "highest", [KOPS_SUMS_MEDIUM] = "medium"};
    const struct kops_scaled_gemm_params *p = params ? params : &defaults;
    const struct kops_tensor inputs[4] = {*a, *b, *scale_a, *scale_b};
    struct kops_attr attrs[3];
    size_t n = 0;

    if (p->trans_a)
        attrs[n++] = kops_attr_bool("trans_a", true);
    if (p->trans_b)
        attrs[n++] = kops_attr_bool("trans_b", true);
    if ((unsigned)p->sums > KOPS_SUMS_MEDIUM)
        return fail(ret_error, KOPS_ERR_BAD_ARGUMENT, "params->sums is %d, which is none of enum kops_sums",
                    (int)p->sums);
    if (p->sums != KOPS_SUMS_HIGH)
        attrs[n++] = kops_attr_text("precision", precisions[p->sums]);
    return run_op(client, "scaled_gemm", inputs, 4, out, attrs, n, options, ret_result, ret_error);
}

/* ---- tickets ---- */

static struct call *find(struct kops_client *c, kops_ticket ticket, struct kops_error *e)
{
    struct call *call = call_by_ticket(&c->calls, ticket);

    if (!call)
        fail(e, KOPS_ERR_BAD_ARGUMENT, "no such ticket: it was waited for already, or is another client's");
    return call;
}

enum kops_code kops_wait(kops_client *client, kops_ticket ticket, int64_t timeout_ms, struct kops_result *ret_result,
                         struct kops_error *ret_error)
{
    struct kops_error unwanted, *e = ret_error ? ret_error : &unwanted;
    uint64_t deadline = client_deadline(client, timeout_ms);
    struct call *call;
    enum kops_code r;

    client_enter(client, e);
    call = find(client, ticket, e);
    if (!call) {
        r = KOPS_ERR_BAD_ARGUMENT;
    } else if (call->waited) {
        r = fail(e, KOPS_ERR_BAD_ARGUMENT, "another thread waits for this ticket");
    } else {
        call->waited = true;
        if (session_wait(client, call, deadline)) {
            r = job_finish(client, call, ret_result, e);
        } else {
            call->waited = false;
            r = fail(e, KOPS_ERR_TIMEOUT, "the run has not ended yet: wait again, or kops_cancel() it");
        }
    }
    client_leave(client);
    return r;
}

enum kops_code kops_poll(kops_client *client, kops_ticket ticket, bool *ret_done, struct kops_error *ret_error)
{
    struct kops_error unwanted, *e = ret_error ? ret_error : &unwanted;
    struct call *call;

    client_enter(client, e);
    call = find(client, ticket, e);
    if (call && call->state != CALL_DONE)
        session_poll(client);
    if (call)
        *ret_done = call->state == CALL_DONE;
    client_leave(client);
    return call ? KOPS_OK : KOPS_ERR_BAD_ARGUMENT;
}

enum kops_code kops_cancel(kops_client *client, kops_ticket ticket, struct kops_error *ret_error)
{
    struct kops_error unwanted, *e = ret_error ? ret_error : &unwanted;
    struct call *call;

    client_enter(client, e);
    call = find(client, ticket, e);
    if (call && call->state == CALL_SENT)
        session_cancel(client, call);
    client_leave(client);
    return call ? KOPS_OK : KOPS_ERR_BAD_ARGUMENT;
}
