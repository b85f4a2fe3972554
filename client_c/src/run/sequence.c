/* Sequences and programs. */
#include <stdlib.h>

#include "base/arena.h"
#include "base/fail.h"
#include "jobs/job.h"
#include "kernel.h"
#include "memory/buffer.h"
#include "run.h"
#include "session/connect.h"

/* ---- sequences: one of the public structs on its way. Lock held. ---- */

struct sequence {
    const struct kops_sequence *sequence;
    struct native_tensor *tensors; /* owned */
    uint64_t *kernels;             /* ids, one for each step; owned, NULL where no step launches a kernel */
    uint32_t generation;           /* generation of the connection that it was resolved for last */
    struct wire_sequence wire;
    struct job job;
};

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

/* Refuses a sequence whose message would have another meaning. The daemon checks everything about the ops. */
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

/* Tells whether running the sequence twice is harmless: it has built-in ops only, and none of them reads another's
 * output. `tensors` replace the sequence's own. */
static bool sequence_is_safe(const struct kops_sequence *s, const struct kops_tensor *tensors)
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

/* Checks a sequence; `options` may be NULL. On success sequence_end() frees its lists. */
static enum kops_code sequence_begin(struct sequence *s, const struct kops_client *c,
                                     const struct kops_sequence *sequence, const struct kops_options *options,
                                     struct kops_error *e)
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

static void sequence_end(struct sequence *s)
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

/* ---- programs ---- */

enum { FEW_BINDINGS = 32 };

struct kops_program {
    struct kops_client *client;
    struct arena arena; /* memory of `sequence` and `device` */
    struct kops_sequence sequence;
    const char *device;
    struct remote remote;
};

/* ---- the copy ---- */

static void copy_step(struct arena *a, struct kops_step *s, bool *whole)
{
    struct kops_attr *attrs = copy_bytes(a, s->attrs, s->n_attrs * sizeof(*s->attrs), whole);

    s->op = copy_text(a, s->op, whole);
    s->inputs = copy_bytes(a, s->inputs, s->n_inputs * sizeof(*s->inputs), whole);
    s->outputs = copy_bytes(a, s->outputs, s->n_outputs * sizeof(*s->outputs), whole);
    s->variant = copy_text(a, s->variant, whole);
    for (size_t i = 0; attrs && i < s->n_attrs; i++) {
        attrs[i].name = copy_text(a, attrs[i].name, whole);
        if (attrs[i].type == KOPS_ATTR_TEXT)
            attrs[i].value.text = copy_text(a, attrs[i].value.text, whole);
    }
    s->attrs = attrs;
    s->args = copy_bytes(a, s->args, s->n_args * sizeof(*s->args), whole);
    s->geometry = copy_bytes(a, s->geometry, s->geometry ? sizeof(*s->geometry) : 0, whole);
}

/* False: there is no memory. */
static bool copy_sequence(struct kops_program *p, const struct kops_sequence *s, const char *device)
{
    bool whole = true;
    struct kops_step *steps = copy_bytes(&p->arena, s->steps, s->n_steps * sizeof(*s->steps), &whole);

    p->sequence = *s;
    p->sequence.n_steps = steps ? s->n_steps : 0;
    p->sequence.tensors = copy_bytes(&p->arena, s->tensors, s->n_tensors * sizeof(*s->tensors), &whole);
    p->sequence.steps = steps;
    for (size_t i = 0; i < p->sequence.n_steps; i++) {
        copy_step(&p->arena, &steps[i], &whole);
        if (steps[i].kernel)
            steps[i].kernel->references++;
    }
    p->device = copy_text(&p->arena, device, &whole);
    return whole;
}

/* ---- making it known ---- */

static enum kops_code define_now(void *thing, uint64_t deadline, struct kops_error *e)
{
    struct kops_program *p = thing;
    struct kops_client *c = p->client;
    struct sequence s;
    uint64_t id = 0;
    enum kops_code r = sequence_begin(&s, c, &p->sequence, NULL, e);

    if (r)
        return r;
    s.wire.device = p->device;
    s.job.pack = wire_pack_program;
    s.job.decode = wire_decode_program;
    s.job.into = &id;
    s.job.safe = recovery_always;
    r = job_await(c, &s.job, "the daemon did not define the program in time", deadline, e);
    if (!r)
        remote_defined(c, &p->remote, id, s.generation);
    sequence_end(&s);
    return r;
}

static enum kops_code define(struct kops_program *p, uint64_t deadline, struct kops_error *e)
{
    return remote_ensure(p->client, &p->remote, define_now, p, "program", deadline, e);
}

static void free_leave(struct kops_program *p)
{
    struct kops_client *c = p->client;

    for (size_t i = 0; i < p->sequence.n_steps; i++)
        kernel_unref(p->sequence.steps[i].kernel);
    arena_free(&p->arena);
    free(p);
    client_leave_unref(c);
}

enum kops_code kops_program_define(kops_client *client, const struct kops_sequence *sequence, const char *device,
                                   kops_program **ret_program, struct kops_error *ret_error)
{
    struct kops_error unwanted, *e = ret_error ? ret_error : &unwanted;
    struct kops_program *p = calloc(1, sizeof(*p));
    enum kops_code r = KOPS_OK;

    fail_clear(e);
    if (!p)
        return fail(e, KOPS_ERR_NO_MEMORY, "there is no memory for a program");
    client_enter(client, e);
    p->client = client;
    client->references++;
    if (!(client->features & FEATURE_PROGRAM))
        r = fail(e, KOPS_ERR_UNSUPPORTED, "the daemon keeps no programs: use kops_sequence_run()");
    else if (!copy_sequence(p, sequence, device))
        r = fail(e, KOPS_ERR_NO_MEMORY, "there is no memory for a program");
    else
        r = define(p, client_deadline(client, 0), e);
    if (r) {
        free_leave(p);
        return r;
    }
    client_leave(client);
    *ret_program = p;
    return KOPS_OK;
}

kops_program *kops_program_release(kops_program *program)
{
    struct kops_client *c;

    if (!program)
        return NULL;
    c = program->client;
    client_enter(c, NULL);
    remote_release(c, &program->remote, "program");
    free_leave(program);
    return NULL;
}

/* ---- running it ---- */

struct run {
    struct kops_program *program;
    const struct kops_binding *bindings;
    struct wire_bound few[FEW_BINDINGS], *many; /* `many` is owned, NULL while `few` has room */
    struct wire_run_program wire;
    struct job job;
};

static bool resolve_run(struct kops_client *c, struct job *job)
{
    struct run *run = job->context;
    struct wire_bound *bound = run->many ? run->many : run->few;

    for (size_t i = 0; i < run->wire.n_bound; i++) {
        const struct kops_binding *b = &run->bindings[i];

        if (!remote_known(c, &b->buffer->remote))
            return false;
        bound[i] = (struct wire_bound){b->tensor, b->buffer->remote.id, b->offset + b->buffer->base_offset};
    }
    run->wire.program = run->program->remote.id;
    return remote_known(c, &run->program->remote);
}

static enum kops_code ensure_run(struct kops_client *c, struct job *job, uint64_t deadline, struct kops_error *e)
{
    const struct run *run = job->context;

    for (size_t i = 0; i < run->wire.n_bound; i++)
        if (!remote_known(c, &run->bindings[i].buffer->remote))
            return buffer_ensure(run->bindings[i].buffer, deadline, e);
    return define(run->program, deadline, e);
}

static bool run_is_safe(const void *context)
{
    const struct run *run = context;
    const struct kops_sequence *s = &run->program->sequence;
    struct kops_tensor *tensors = calloc(s->n_tensors + 1, sizeof(*tensors));
    bool safe;

    if (!tensors)
        return false;
    for (size_t i = 0; i < s->n_tensors; i++)
        tensors[i] = s->tensors[i];
    for (size_t i = 0; i < run->wire.n_bound; i++) {
        const struct kops_binding *b = &run->bindings[i];

        if (b->tensor >= s->n_tensors)
            continue;
        tensors[b->tensor].buffer = b->buffer;
        tensors[b->tensor].offset = b->offset;
    }
    safe = sequence_is_safe(s, tensors);
    free(tensors);
    return safe;
}

static enum kops_code begin(struct run *run, struct kops_program *p, const struct kops_binding *bindings, size_t n,
                            const struct kops_options *options, struct kops_error *e)
{
    const struct kops_client *c = p->client;
    enum kops_code r = options ? options_check(options, e) : KOPS_OK;

    if (r)
        return r;
    if (options && (options->variant || options->device))
        return fail(e, KOPS_ERR_BAD_ARGUMENT, "options.variant and device are part of a program's definition");
    for (size_t i = 0; i < n; i++)
        if (!bindings[i].buffer || bindings[i].buffer->client != c ||
            bindings[i].offset > UINT64_MAX - bindings[i].buffer->base_offset)
            return fail(e, KOPS_ERR_BAD_ARGUMENT, "bindings[%zu] has no buffer of this client, or too large an offset",
                        i);
    run->program = p;
    run->bindings = bindings;
    run->many = n > FEW_BINDINGS ? calloc(n, sizeof(*run->many)) : NULL;
    if (n > FEW_BINDINGS && !run->many)
        return fail(e, KOPS_ERR_NO_MEMORY, "there is no memory for %zu bindings", n);
    run->wire = (struct wire_run_program){
        .bound = run->many ? run->many : run->few, .n_bound = n, .how = client_how(c, options)};
    run->job = (struct job){.pack = wire_pack_run_program,
                            .wire = &run->wire,
                            .resolve = resolve_run,
                            .ensure = ensure_run,
                            .context = run,
                            .safe = run_is_safe,
                            .options = options,
                            .decode = wire_decode_run,
                            .how = &run->wire.how,
                            .name = "a program"};
    return KOPS_OK;
}

static enum kops_code call_program(struct kops_program *p, const struct kops_binding *bindings, size_t n,
                                   const struct kops_options *options, const struct dispatch *d,
                                   struct kops_error *ret_error)
{
    struct kops_error unwanted, *e = ret_error ? ret_error : &unwanted;
    struct kops_client *c = p->client;
    const uint64_t deadline = client_deadline(c, options ? options->timeout_ms : 0);
    struct run run;
    enum kops_code r;

    client_enter(c, e);
    r = dispatch_check(d, options, e);
    if (!r)
        r = begin(&run, p, bindings, n, options, e);
    if (!r) {
        r = dispatch(d, c, &run.job, deadline, e);
        free(run.many);
    }
    client_leave(c);
    return r;
}

enum kops_code kops_program_run(kops_program *program, const struct kops_binding *bindings, size_t n_bindings,
                                const struct kops_options *options, struct kops_result *ret_result,
                                struct kops_error *ret_error)
{
    return call_program(program, bindings, n_bindings, options,
                        &(struct dispatch){DISPATCH_RUN, .ret_result = ret_result}, ret_error);
}

enum kops_code kops_program_submit(kops_program *program, const struct kops_binding *bindings, size_t n_bindings,
                                   const struct kops_options *options, kops_ticket *ret_ticket,
                                   struct kops_error *ret_error)
{
    return call_program(program, bindings, n_bindings, options,
                        &(struct dispatch){DISPATCH_SUBMIT, .ret_ticket = ret_ticket}, ret_error);
}

enum kops_code kops_program_enqueue(kops_program *program, const struct kops_binding *bindings, size_t n_bindings,
                                    const struct kops_options *options, void *cuda_stream, struct kops_error *ret_error)
{
    return call_program(program, bindings, n_bindings, options,
                        &(struct dispatch){DISPATCH_ENQUEUE, .stream = cuda_stream}, ret_error);
}
