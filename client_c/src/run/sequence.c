#include "sequence.h"

#include <stdlib.h>

#include "base/fail.h"
#include "jobs/dispatch.h"
#include "kernel.h"
#include "memory/register.h"
#include "memory/span.h"
#include "operand.h"

static bool resolve(struct kops_client *c, struct job *job)
{
    struct sequence *s = job->context;
    bool known = true;

    for (size_t i = 0; i < s->sequence->n_tensors; i++)
        known &= operand_resolve(c, &s->sequence->tensors[i], &s->tensors[i]);
    for (size_t i = 0; s->kernels && i < s->sequence->n_steps; i++) {
        const struct kops_kernel *kernel = s->sequence->steps[i].kernel;

        if (!kernel)
            continue;
        s->kernels[i] = kernel->remote.id;
        known &= remote_known(c, &kernel->remote);
    }
    s->generation = c->generation;
    return known;
}

static enum kops_code ensure(struct kops_client *c, struct job *job, uint64_t deadline, struct kops_error *e)
{
    const struct sequence *s = job->context;

    for (size_t i = 0; i < s->sequence->n_tensors; i++) {
        struct kops_buffer *b = s->sequence->tensors[i].buffer;

        if (b && !remote_known(c, &b->remote))
            return buffer_ensure(b, deadline, e);
    }
    for (size_t i = 0; s->kernels && i < s->sequence->n_steps; i++) {
        struct kops_kernel *kernel = s->sequence->steps[i].kernel;

        if (kernel && !remote_known(c, &kernel->remote))
            return kernel_ensure(kernel, deadline, e);
    }
    return KOPS_OK;
}

static enum kops_code check_step(const struct kops_client *c, const struct kops_step *step, size_t i,
                                 struct kops_error *e)
{
    if (step->kernel)
        return kernel_check_step(c, step, i, e);
    if (!step->op)
        return fail(e, KOPS_ERR_BAD_ARGUMENT, "steps[%zu].op is NULL", i);
    if (step->n_inputs > KOPS_MAX_OPERANDS || step->n_outputs > KOPS_MAX_OPERANDS)
        return fail(e, KOPS_ERR_BAD_ARGUMENT, "steps[%zu] has more than %d tensors", i, KOPS_MAX_OPERANDS);
    return attrs_check(step->attrs, step->n_attrs, e);
}

/* Refuses a sequence whose message would mean something else; the daemon checks everything about the ops. */
static enum kops_code check(const struct kops_client *c, const struct kops_sequence *s, const struct kops_options *o,
                            struct kops_error *e)
{
    enum kops_code r = o ? options_check(o, e) : KOPS_OK;

    if (!(c->features & FEATURE_SEQUENCE))
        return fail(e, KOPS_ERR_UNSUPPORTED, "the daemon takes no sequences: run the ops one by one");
    if (o && o->variant)
        return fail(e, KOPS_ERR_BAD_ARGUMENT, "options.variant is for single runs: set it in the step");
    for (size_t i = 0; !r && i < s->n_tensors; i++)
        r = operand_check(c, &s->tensors[i], "tensors", i, e);
    for (size_t i = 0; !r && i < s->n_steps; i++)
        r = check_step(c, &s->steps[i], i, e);
    return r;
}

static bool has_kernels(const struct kops_sequence *s)
{
    for (size_t i = 0; i < s->n_steps; i++)
        if (s->steps[i].kernel)
            return true;
    return false;
}

static bool steps_are_safe(const struct kops_sequence *s, bool *reads, bool *writes)
{
    for (size_t i = 0; i < s->n_steps; i++) {
        const struct kops_step *step = &s->steps[i];

        if (step->kernel || !attrs_only_write(step->attrs, step->n_attrs))
            return false;
        for (size_t k = 0; k < step->n_inputs; k++)
            if (step->inputs[k] < s->n_tensors)
                reads[step->inputs[k]] = true;
        for (size_t k = 0; k < step->n_outputs; k++)
            if (step->outputs[k] < s->n_tensors)
                writes[step->outputs[k]] = true;
    }
    return true;
}

bool sequence_is_safe(const struct kops_sequence *s, const struct kops_tensor *tensors)
{
    const size_t n = s->n_tensors;
    struct span *spans = calloc(n + 1, sizeof(*spans));
    bool *reads = calloc(n + 1, sizeof(*reads)), *writes = calloc(n + 1, sizeof(*writes));
    bool safe = spans && reads && writes && steps_are_safe(s, reads, writes);

    for (size_t i = 0; safe && i < n; i++)
        safe = span_of(&tensors[i], &spans[i]);
    for (size_t i = 0; safe && i < n; i++)
        for (size_t k = 0; safe && writes[i] && k < n; k++)
            safe = !reads[k] || !spans_meet(&spans[i], &spans[k]);
    free(spans);
    free(reads);
    free(writes);
    return safe;
}

static bool is_safe(const void *context)
{
    const struct sequence *s = context;

    return sequence_is_safe(s->sequence, s->sequence->tensors);
}

enum kops_code sequence_begin(struct sequence *s, const struct kops_client *c, const struct kops_sequence *sequence,
                              const struct kops_options *options, struct kops_error *e)
{
    enum kops_code r = check(c, sequence, options, e);

    if (r)
        return r;
    s->sequence = sequence;
    s->kernels = NULL;
    s->tensors = calloc(sequence->n_tensors ? sequence->n_tensors : 1, sizeof(*s->tensors));
    if (!s->tensors || (has_kernels(sequence) && !(s->kernels = calloc(sequence->n_steps, sizeof(*s->kernels))))) {
        free(s->tensors);
        return fail(e, KOPS_ERR_NO_MEMORY, "there is no memory for a sequence");
    }
    s->wire = (struct wire_sequence){.tensors = s->tensors,
                                     .n_tensors = sequence->n_tensors,
                                     .steps = sequence->steps,
                                     .n_steps = sequence->n_steps,
                                     .kernels = s->kernels,
                                     .how = client_how(c, options)};
    s->job = (struct job){.pack = wire_pack_sequence,
                          .wire = &s->wire,
                          .resolve = resolve,
                          .ensure = ensure,
                          .context = s,
                          .safe = is_safe,
                          .options = options,
                          .decode = wire_decode_run,
                          .how = &s->wire.how,
                          .name = "a sequence"};
    return KOPS_OK;
}

void sequence_end(struct sequence *s)
{
    free(s->tensors);
    free(s->kernels);
}

static enum kops_code call_sequence(struct kops_client *c, const struct kops_sequence *sequence,
                                    const struct kops_options *options, const struct dispatch *d,
                                    struct kops_error *ret_error)
{
    struct kops_error unwanted, *e = ret_error ? ret_error : &unwanted;
    const uint64_t deadline = client_deadline(c, options ? options->timeout_ms : 0);
    struct sequence s;
    enum kops_code r;

    client_enter(c, e);
    r = dispatch_check(d, options, e);
    if (!r)
        r = sequence_begin(&s, c, sequence, options, e);
    if (!r) {
        r = dispatch(d, c, &s.job, deadline, e);
        sequence_end(&s);
    }
    client_leave(c);
    return r;
}

enum kops_code kops_sequence_run(kops_client *client, const struct kops_sequence *sequence,
                                 const struct kops_options *options, struct kops_result *ret_result,
                                 struct kops_error *ret_error)
{
    return call_sequence(client, sequence, options, &(struct dispatch){DISPATCH_RUN, .ret_result = ret_result},
                         ret_error);
}

enum kops_code kops_sequence_submit(kops_client *client, const struct kops_sequence *sequence,
                                    const struct kops_options *options, kops_ticket *ret_ticket,
                                    struct kops_error *ret_error)
{
    return call_sequence(client, sequence, options, &(struct dispatch){DISPATCH_SUBMIT, .ret_ticket = ret_ticket},
                         ret_error);
}

enum kops_code kops_sequence_enqueue(kops_client *client, const struct kops_sequence *sequence,
                                     const struct kops_options *options, void *cuda_stream,
                                     struct kops_error *ret_error)
{
    return call_sequence(client, sequence, options, &(struct dispatch){DISPATCH_ENQUEUE, .stream = cuda_stream},
                         ret_error);
}
