/* Compiled sources, and the kernels declared from them. */
#include "kernel.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/fail.h"
#include "here.h"
#include "jobs/job.h"
#include "memory/buffer.h"
#include "run.h"

/* ---- modules: the source ---- */

static const char *missing_text(const char *const *texts, size_t n, const char *list)
{
    for (size_t i = 0; i < n; i++)
        if (!texts[i])
            return list;
    return NULL;
}

/* Refuses a source too long for any message, with the daemon's error. */
static enum kops_code check_size(const struct kops_client *c, const struct kops_source *s, struct kops_error *e)
{
    const uint64_t limit = c->info.info.limits.source_bytes;
    uint64_t bytes = strlen(s->text);

    for (size_t i = 0; i < s->n_files; i++)
        bytes += strlen(s->files[i].text);
    if (!limit || bytes <= limit)
        return KOPS_OK;
    fail(e, KOPS_ERR_LIMIT_EXCEEDED, "the source and its files have %llu bytes, the daemon takes %llu",
         (unsigned long long)bytes, (unsigned long long)limit);
    fail_number(e, e->code, "limit", (int64_t)limit);
    return fail_number(e, e->code, "value", (int64_t)bytes);
}

static enum kops_code check(const struct kops_client *c, const struct kops_source *s, struct kops_error *e)
{
    const char *missing = s->text ? NULL : "text";

    if (!c->info.info.kernels)
        return fail(e, KOPS_ERR_UNSUPPORTED, "the daemon is older than kernels of one's own: install a newer one");
    if (fail_reserved(e, s->reserved, sizeof(s->reserved), "source"))
        return KOPS_ERR_BAD_ARGUMENT;
    if (!missing)
        missing = missing_text(s->options, s->n_options, "options");
    if (!missing)
        missing = missing_text(s->entries, s->n_entries, "entries");
    for (size_t i = 0; !missing && i < s->n_files; i++)
        missing = s->files[i].name && s->files[i].text ? NULL : "files";
    return missing ? fail(e, KOPS_ERR_BAD_ARGUMENT, "source.%s is NULL, or has a NULL", missing) : check_size(c, s, e);
}

/* ---- making it known ---- */

struct compiling {
    struct kops_module *module;
    uint32_t generation; /* generation of the connection that was asked last */
    char **log;
};

static bool resolve(struct kops_client *c, struct job *job)
{
    struct compiling *compiling = job->context;

    compiling->generation = c->generation;
    return true;
}

static enum kops_code compile_now(void *thing, uint64_t deadline, struct kops_error *e)
{
    struct compiling *compiling = thing;
    struct kops_module *m = compiling->module;
    struct kops_client *c = m->client;
    const struct wire_raw wire = {.method = "compile", .params = m->source.data, .length = m->source.length};
    struct native_reply reply = {0};
    struct wire_module known;
    struct job job = {.pack = wire_pack_raw,
                      .wire = &wire,
                      .resolve = resolve,
                      .context = compiling,
                      .safe = recovery_always,
                      .decode = wire_decode_module, /* for a late reply */
                      .reply = &reply};
    enum kops_code r = job_await(c, &job, "the source was not compiled in time", deadline, e);

    free(*compiling->log);
    *compiling->log = NULL;
    if (!r)
        r = wire_read_module(&reply, &known, compiling->log, e);
    native_reply_free(&reply);
    if (r)
        return r;
    remote_defined(c, &m->remote, known.id, compiling->generation);
    if (m->known.info.key)
        arena_free(&known.arena); /* callers have pointers into the first reply */
    else
        m->known = known;
    return KOPS_OK;
}

static enum kops_code ensure(struct kops_module *m, uint64_t deadline, char **log, struct kops_error *e)
{
    struct compiling compiling = {.module = m, .log = log};

    return remote_ensure(m->client, &m->remote, compile_now, &compiling, "module", deadline, e);
}

enum kops_code module_ensure(struct kops_module *m, uint64_t deadline, struct kops_error *e)
{
    char *log = NULL;
    enum kops_code r = ensure(m, deadline, &log, e);

    free(log);
    return r;
}

/* Compiles a module; *log as in kops_compile(). */
static enum kops_code module_compile(struct kops_client *c, const struct kops_source *source, uint64_t deadline,
                                     struct kops_module **ret_module, char **log, struct kops_error *e)
{
    enum kops_code r = check(c, source, e);
    struct kops_module *m = r ? NULL : calloc(1, sizeof(*m));
    char *output = NULL;

    if (r)
        return r;
    if (!m)
        return fail(e, KOPS_ERR_NO_MEMORY, "there is no memory for a module");
    m->client = c;
    m->references = 1;
    c->references++;
    wire_pack_source(&m->source, source);
    if (m->source.failed)
        r = fail(e, KOPS_ERR_NO_MEMORY, "there is no memory for a module");
    else
        r = ensure(m, deadline, &output, e);
    if (log)
        *log = output;
    else
        free(output);
    if (r)
        module_unref(m);
    else
        *ret_module = m;
    return r;
}

void module_unref(struct kops_module *m)
{
    struct kops_client *c;

    if (!m || --m->references)
        return;
    c = m->client;
    remote_release(c, &m->remote, "module");
    arena_free(&m->known.arena);
    bytes_free(&m->source);
    free(m);
    c->references--;
}

enum kops_code kops_compile(kops_client *client, const struct kops_source *source, kops_module **ret_module, char **log,
                            struct kops_error *ret_error)
{
    struct kops_error unwanted, *e = ret_error ? ret_error : &unwanted;
    const uint64_t deadline = client_deadline(client, source->timeout_ms);
    enum kops_code r;

    if (log)
        *log = NULL;
    client_enter(client, e);
    r = module_compile(client, source, deadline, ret_module, log, e);
    client_leave(client);
    return r;
}

const struct kops_module_info *kops_module_info(const kops_module *module)
{
    return &module->known.info;
}

const struct kops_entry *kops_module_entry(const kops_module *module, const char *name)
{
    for (const struct kops_entry *const *entry = module->known.info.entries; *entry; entry++)
        if (!strcmp((*entry)->name, name))
            return *entry;
    return NULL;
}

kops_module *kops_module_free(kops_module *module)
{
    struct kops_client *c;

    if (!module)
        return NULL;
    c = module->client;
    client_enter(c, NULL);
    c->references++; /* until the lock is left */
    module_unref(module);
    client_leave_unref(c);
    return NULL;
}

void kops_log_free(char *log)
{
    free(log);
}

/* ---- kernels: the declaration ---- */

static enum kops_code check_map(const struct kops_tensor_map *m, size_t i, struct kops_error *e)
{
    char name[48];

    if (m->rank < 1 || m->rank > KOPS_MAX_MAP_RANK)
        return fail(e, KOPS_ERR_BAD_ARGUMENT, "params[%zu].map->rank is %u, but a tensor map has 1 to %d dimensions", i,
                    m->rank, KOPS_MAX_MAP_RANK);
    for (unsigned d = 0; d < m->rank; d++)
        if (!m->box[d])
            return fail(e, KOPS_ERR_BAD_ARGUMENT, "params[%zu].map->box[%u] is NULL", i, d);
    snprintf(name, sizeof(name), "params[%zu].map", i);
    return fail_reserved(e, m->reserved, sizeof(m->reserved), name);
}

static enum kops_code check_param(const struct kops_param *p, size_t i, struct kops_error *e)
{
    char name[32];

    if (!p->name)
        return fail(e, KOPS_ERR_BAD_ARGUMENT, "params[%zu].name is NULL", i);
    if (p->kind < KOPS_PARAM_IN || p->kind > KOPS_PARAM_SCALAR)
        return fail(e, KOPS_ERR_BAD_ARGUMENT, "params[%zu].kind is none of enum kops_param_kind", i);
    if (!kops_dtype_size(p->dtype))
        return fail(e, KOPS_ERR_BAD_ARGUMENT, "params[%zu].dtype is %d, which is no dtype", i, (int)p->dtype);
    if (p->rank > KOPS_MAX_RANK)
        return fail(e, KOPS_ERR_BAD_ARGUMENT, "params[%zu].rank is %u, more than %d", i, p->rank, KOPS_MAX_RANK);
    snprintf(name, sizeof(name), "params[%zu]", i);
    if (fail_reserved(e, p->reserved, sizeof(p->reserved), name))
        return KOPS_ERR_BAD_ARGUMENT;
    return p->map ? check_map(p->map, i, e) : KOPS_OK;
}

static enum kops_code check_signature(const struct kops_signature *s, struct kops_error *e)
{
    enum kops_code r = KOPS_OK;

    if (!s->entry)
        return fail(e, KOPS_ERR_BAD_ARGUMENT, "signature.entry is NULL");
    r = fail_reserved(e, s->reserved, sizeof(s->reserved), "signature");
    for (size_t i = 0; !r && i < s->n_params; i++)
        r = check_param(&s->params[i], i, e);
    return r;
}

struct declaring {
    struct kops_kernel *kernel;
    struct wire_kernel wire;
    uint32_t generation; /* generation of the connection that was asked last */
};

static bool resolve_module(struct kops_client *c, struct job *job)
{
    struct declaring *d = job->context;

    d->wire.module = d->kernel->module->remote.id;
    d->generation = c->generation;
    return remote_known(c, &d->kernel->module->remote);
}

static enum kops_code ensure_module(struct kops_client *c, struct job *job, uint64_t deadline, struct kops_error *e)
{
    const struct declaring *d = job->context;

    (void)c;
    return module_ensure(d->kernel->module, deadline, e);
}

static enum kops_code define_now(void *thing, uint64_t deadline, struct kops_error *e)
{
    struct declaring d = {.kernel = thing, .wire = {.signature = &((struct kops_kernel *)thing)->signature}};
    uint64_t id = 0;
    struct job job = {.pack = wire_pack_kernel,
                      .wire = &d.wire,
                      .resolve = resolve_module,
                      .ensure = ensure_module,
                      .context = &d,
                      .safe = recovery_always,
                      .decode = wire_decode_kernel,
                      .into = &id};
    enum kops_code r = job_await(d.kernel->client, &job, "the daemon did not define the kernel in time", deadline, e);

    if (!r)
        remote_defined(d.kernel->client, &d.kernel->remote, id, d.generation);
    return r;
}

enum kops_code kernel_ensure(struct kops_kernel *k, uint64_t deadline, struct kops_error *e)
{
    return remote_ensure(k->client, &k->remote, define_now, k, "kernel", deadline, e);
}

static void forget_here(struct kops_kernel *k)
{
    struct kops_kernel **at = &k->client->here;

    if (!k->here)
        return;
    kernel_tell_here(k);
    while (*at != k)
        at = &(*at)->next_here;
    *at = k->next_here;
    here_kernel_free(k->here);
}

void kernel_unref(struct kops_kernel *k)
{
    struct kops_client *c;

    if (!k || --k->references)
        return;
    c = k->client;
    forget_here(k);
    remote_release(c, &k->remote, "kernel");
    module_unref(k->module);
    bytes_free(&k->signature);
    free(k->entry);
    free(k);
    c->references--;
}

static enum kops_code check_lanes(const struct kops_client *c, const struct kops_signature *s, struct kops_error *e)
{
    for (size_t i = 0; i < s->n_params; i++)
        if (s->params[i].lanes > 1 && !kops_info_feature(c, "structures"))
            return fail(e, KOPS_ERR_UNSUPPORTED,
                        "params[%zu].lanes: this daemon takes no structures by value, it is older than that: pass a "
                        "pointer to one",
                        i);
    return KOPS_OK;
}

static enum kops_code define(struct kops_module *m, const struct kops_signature *signature, uint64_t deadline,
                             struct kops_kernel **ret_kernel, struct kops_error *e)
{
    const enum kops_code well_formed = check_signature(signature, e);
    enum kops_code r = well_formed ? well_formed : check_lanes(m->client, signature, e);
    struct kops_kernel *k = r ? NULL : calloc(1, sizeof(*k));

    if (r)
        return r;
    if (!k)
        return fail(e, KOPS_ERR_NO_MEMORY, "there is no memory for a kernel");
    k->client = m->client;
    k->client->references++;
    k->references = 1;
    k->module = m;
    m->references++;
    k->name = names_keep(k->client, signature->entry);
    k->entry = strdup(signature->entry);
    wire_pack_signature(&k->signature, signature);
    if (!k->entry || k->signature.failed)
        r = fail(e, KOPS_ERR_NO_MEMORY, "there is no memory for a kernel");
    else
        r = kernel_ensure(k, deadline, e);
    if (r)
        kernel_unref(k);
    else
        *ret_kernel = k;
    return r;
}

enum kops_code kops_kernel_define(kops_module *module, const struct kops_signature *signature, kops_kernel **ret_kernel,
                                  struct kops_error *ret_error)
{
    struct kops_error unwanted, *e = ret_error ? ret_error : &unwanted;
    struct kops_client *c = module->client;
    enum kops_code r;

    client_enter(c, e);
    r = define(module, signature, client_deadline(c, 0), ret_kernel, e);
    client_leave(c);
    return r;
}

enum kops_code kops_kernel_compile(kops_client *client, const struct kops_source *source,
                                   const struct kops_signature *signature, kops_kernel **ret_kernel, char **log,
                                   struct kops_error *ret_error)
{
    struct kops_error unwanted, *e = ret_error ? ret_error : &unwanted;
    const uint64_t deadline = client_deadline(client, source->timeout_ms);
    struct kops_source with_entry = *source;
    struct kops_module *m = NULL;
    enum kops_code r;

    if (log)
        *log = NULL;
    if (!with_entry.n_entries) {
        with_entry.entries = &signature->entry;
        with_entry.n_entries = 1;
    }
    client_enter(client, e);
    r = check_signature(signature, e);
    if (!r)
        r = module_compile(client, &with_entry, deadline, &m, log, e);
    if (!r)
        r = define(m, signature, deadline, ret_kernel, e);
    module_unref(m);
    client_leave(client);
    return r;
}

const kops_module *kops_kernel_module(const kops_kernel *kernel)
{
    return kernel->module;
}

const char *kops_kernel_entry(const kops_kernel *kernel)
{
    return kernel->entry;
}

kops_kernel *kops_kernel_free(kops_kernel *kernel)
{
    struct kops_client *c;

    if (!kernel)
        return NULL;
    c = kernel->client;
    client_enter(c, NULL);
    c->references++; /* until the lock is left */
    kernel_unref(kernel);
    client_leave_unref(c);
    return NULL;
}

/* ---- launches: blocking, on a CUDA stream, by tickets, and as steps of sequences ---- */

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
static enum kops_code check_args(struct work *l, const struct kops_client *c, const struct kops_argument *args,
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

static enum kops_code begin(struct work *l, struct kops_kernel *k, const struct kops_argument *args, size_t n_args,
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
    work_begin(l, o, recovery_never);
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
    struct work l;
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
