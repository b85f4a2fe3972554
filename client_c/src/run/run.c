/* Running ops: blocking, on a CUDA stream, and by tickets (tickets.c). */
#include "run.h"

#include "base/fail.h"
#include "launch_here.h"
#include "memory/register.h"
#include "memory/span.h"
#include "operand.h"

/* A run of the public struct on its way. */
struct run {
    const struct kops_request *request;
    struct native_tensor tensors[KOPS_MAX_OPERANDS];
    struct wire_run wire;
    struct job job;
};

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
    struct run *run = job->context;
    bool known = true;

    for (unsigned i = 0; i < run->wire.n_inputs + run->wire.n_outputs; i++)
        known &= operand_resolve(c, request_tensor(run->request, i), &run->tensors[i]);
    return known;
}

static enum kops_code ensure(struct kops_client *c, struct job *job, uint64_t deadline, struct kops_error *e)
{
    const struct run *run = job->context;

    for (unsigned i = 0; i < run->wire.n_inputs + run->wire.n_outputs; i++) {
        struct kops_buffer *b = request_tensor(run->request, i)->buffer;

        if (b && !remote_known(c, &b->remote))
            return buffer_ensure(b, deadline, e);
    }
    return KOPS_OK;
}

/* The inputs stay the same where the outputs lie elsewhere and are only written. */
static bool is_safe(const void *context)
{
    const struct run *run = context;
    const struct kops_request *r = run->request;
    struct span inputs[KOPS_MAX_OPERANDS], output;

    if (!attrs_only_write(r->attrs, r->n_attrs))
        return false;
    for (size_t i = 0; i < r->n_inputs; i++)
        if (!span_of(&r->inputs[i], &inputs[i]))
            return false;
    for (size_t i = 0; i < r->n_outputs; i++) {
        if (!span_of(&r->outputs[i], &output))
            return false;
        for (size_t k = 0; k < r->n_inputs; k++)
            if (spans_meet(&inputs[k], &output))
                return false;
    }
    return true;
}

static void begin(struct run *run, const struct kops_client *c, const struct kops_request *r)
{
    run->request = r;
    run->wire = (struct wire_run){.op = r->op,
                                  .n_inputs = (unsigned)r->n_inputs,
                                  .n_outputs = (unsigned)r->n_outputs,
                                  .tensors = run->tensors,
                                  .attrs = r->attrs,
                                  .n_attrs = r->n_attrs,
                                  .variant = r->options.variant,
                                  .how = client_how(c, &r->options)};
    run->job = (struct job){.pack = wire_pack_run,
                            .wire = &run->wire,
                            .resolve = resolve,
                            .ensure = ensure,
                            .context = run,
                            .safe = is_safe,
                            .options = &r->options,
                            .decode = wire_decode_run,
                            .how = &run->wire.how,
                            .run = &run->wire};
}

/* Whether an op that a capture refused can be part of it. */
static bool can_be_captured(const struct kops_client *c, const struct kops_options *o, const struct dispatch *d)
{
    return d->way == DISPATCH_ENQUEUE && c->features & FEATURE_IMAGES && o->where == KOPS_WHERE_DEFAULT;
}

enum kops_code run_request(struct kops_client *c, const struct kops_request *request, const struct dispatch *d,
                           struct kops_error *ret_error)
{
    struct kops_error unwanted, *e = ret_error ? ret_error : &unwanted;
    const uint64_t deadline = client_deadline(c, request->options.timeout_ms);
    struct run run;
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
        begin(&run, c, request);
        run.wire.caches = d->caches;
        if (d->way == DISPATCH_ENQUEUE)
            run.job.name = client_op_name(c, request->op);
        r = dispatch(d, c, &run.job, deadline, e);
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
