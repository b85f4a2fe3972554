/* Declared kernels. */
#include "kernel.h"
#include "jobs/job.h"
#include "launch_here.h"

#include <stdlib.h>

#include "base/copy.h"
#include "base/fail.h"

/* ---- the declaration ---- */

static enum kops_code check_map(const struct kops_tensor_map *m, size_t i, struct kops_error *e)
{
    if (m->rank < 1 || m->rank > KOPS_MAX_MAP_RANK)
        return fail(e, KOPS_ERR_BAD_ARGUMENT, "params[%zu].map->rank is %u, but a tensor map has 1 to %d dimensions", i,
                    m->rank, KOPS_MAX_MAP_RANK);
    for (unsigned d = 0; d < m->rank; d++)
        if (!m->box[d])
            return fail(e, KOPS_ERR_BAD_ARGUMENT, "params[%zu].map->box[%u] is NULL", i, d);
    for (size_t r = 0; r < sizeof(m->reserved) / sizeof(m->reserved[0]); r++)
        if (m->reserved[r])
            return fail(e, KOPS_ERR_BAD_ARGUMENT,
                        "params[%zu].map->reserved is not zero: initialise the struct with {0}", i);
    return KOPS_OK;
}

static enum kops_code check_param(const struct kops_param *p, size_t i, struct kops_error *e)
{
    if (!p->name)
        return fail(e, KOPS_ERR_BAD_ARGUMENT, "params[%zu].name is NULL", i);
    if (p->kind < KOPS_PARAM_IN || p->kind > KOPS_PARAM_SCALAR)
        return fail(e, KOPS_ERR_BAD_ARGUMENT, "params[%zu].kind is none of enum kops_param_kind", i);
    if (!kops_dtype_size(p->dtype))
        return fail(e, KOPS_ERR_BAD_ARGUMENT, "params[%zu].dtype is %d, which is no dtype", i, (int)p->dtype);
    if (p->rank > KOPS_MAX_RANK)
        return fail(e, KOPS_ERR_BAD_ARGUMENT, "params[%zu].rank is %u, more than %d", i, p->rank, KOPS_MAX_RANK);
    for (size_t r = 0; r < sizeof(p->reserved) / sizeof(p->reserved[0]); r++)
        if (p->reserved[r])
            return fail(e, KOPS_ERR_BAD_ARGUMENT, "params[%zu].reserved is not zero: initialise the struct with {0}",
                        i);
    return p->map ? check_map(p->map, i, e) : KOPS_OK;
}

static enum kops_code check_signature(const struct kops_signature *s, struct kops_error *e)
{
    enum kops_code r = KOPS_OK;

    if (!s->entry)
        return fail(e, KOPS_ERR_BAD_ARGUMENT, "signature.entry is NULL");
    for (size_t i = 0; i < sizeof(s->reserved) / sizeof(s->reserved[0]); i++)
        if (s->reserved[i])
            return fail(e, KOPS_ERR_BAD_ARGUMENT, "signature.reserved is not zero: initialise the struct with {0}");
    for (size_t i = 0; !r && i < s->n_params; i++)
        r = check_param(&s->params[i], i, e);
    return r;
}

static void copy_sizes(struct arena *a, const char *const *from, const char **to, bool *whole)
{
    for (unsigned i = 0; i < 3; i++)
        to[i] = copy_text(a, from[i], whole);
}

static const struct kops_tensor_map *copy_map(struct arena *a, const struct kops_tensor_map *from, bool *whole)
{
    struct kops_tensor_map *map = copy_bytes(a, from, sizeof(*from), whole);

    for (unsigned d = 0; map && d < map->rank; d++)
        map->box[d] = copy_text(a, map->box[d], whole);
    return map;
}

/* False: there is no memory. */
static bool copy_signature(struct kops_kernel *k, const struct kops_signature *s)
{
    struct arena *a = &k->arena;
    bool whole = true;
    struct kops_param *params = copy_bytes(a, s->params, s->n_params * sizeof(*s->params), &whole);

    for (size_t i = 0; params && i < s->n_params; i++) {
        params[i].name = copy_text(a, params[i].name, &whole);
        params[i].elements = copy_text(a, params[i].elements, &whole);
        for (unsigned d = 0; d < params[i].rank; d++)
            params[i].shape[d] = copy_text(a, params[i].shape[d], &whole);
        if (params[i].map)
            params[i].map = copy_map(a, params[i].map, &whole);
    }
    k->signature = *s;
    k->signature.entry = copy_text(a, s->entry, &whole);
    k->signature.params = params;
    k->signature.geometry.shared = copy_text(a, s->geometry.shared, &whole);
    copy_sizes(a, s->geometry.grid, k->signature.geometry.grid, &whole);
    copy_sizes(a, s->geometry.block, k->signature.geometry.block, &whole);
    copy_sizes(a, s->geometry.cluster, k->signature.geometry.cluster, &whole);
    return whole;
}

/* A declaration under way. */
struct declaring {
    struct kops_kernel *kernel;
    struct wire_kernel wire;
    uint32_t generation; /* of the connection that was asked last */
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
    arena_free(&k->arena);
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
    if (copy_signature(k, signature)) {
        k->name = names_keep(k->client, k->signature.entry);
        r = kernel_ensure(k, deadline, e);
    } else {
        r = fail(e, KOPS_ERR_NO_MEMORY, "there is no memory for a kernel");
    }
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
    return kernel->signature.entry;
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
