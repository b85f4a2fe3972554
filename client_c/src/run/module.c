/* Compiled sources. */
#include <stdlib.h>

#include "base/copy.h"
#include "base/fail.h"
#include "jobs/job.h"
#include "kernel.h"

/* ---- the copy ---- */

static const char *const *copy_texts(struct arena *a, const char *const *texts, size_t n, bool *whole)
{
    const char **copies = copy_bytes(a, texts, n * sizeof(*texts), whole);

    for (size_t i = 0; copies && i < n; i++)
        copies[i] = copy_text(a, texts[i], whole);
    return copies;
}

/* False: there is no memory. */
static bool copy_source(struct kops_module *m, const struct kops_source *s)
{
    bool whole = true;
    struct kops_file *files = copy_bytes(&m->arena, s->files, s->n_files * sizeof(*s->files), &whole);

    for (size_t i = 0; files && i < s->n_files; i++) {
        files[i].name = copy_text(&m->arena, s->files[i].name, &whole);
        files[i].text = copy_text(&m->arena, s->files[i].text, &whole);
    }
    m->source = (struct kops_source){.text = copy_text(&m->arena, s->text, &whole),
                                     .name = copy_text(&m->arena, s->name, &whole),
                                     .files = files,
                                     .n_files = s->n_files,
                                     .options = copy_texts(&m->arena, s->options, s->n_options, &whole),
                                     .n_options = s->n_options,
                                     .entries = copy_texts(&m->arena, s->entries, s->n_entries, &whole),
                                     .n_entries = s->n_entries,
                                     .arch = copy_text(&m->arena, s->arch, &whole),
                                     .device = copy_text(&m->arena, s->device, &whole)};
    return whole;
}

static const char *missing_text(const char *const *texts, size_t n, const char *list)
{
    for (size_t i = 0; i < n; i++)
        if (!texts[i])
            return list;
    return NULL;
}

/* The same error as the daemon's, for sources that no message can hold. */
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
    for (size_t i = 0; i < sizeof(s->reserved) / sizeof(s->reserved[0]); i++)
        if (s->reserved[i])
            return fail(e, KOPS_ERR_BAD_ARGUMENT, "source.reserved is not zero: initialise the struct with {0}");
    if (!missing)
        missing = missing_text(s->options, s->n_options, "options");
    if (!missing)
        missing = missing_text(s->entries, s->n_entries, "entries");
    for (size_t i = 0; !missing && i < s->n_files; i++)
        missing = s->files[i].name && s->files[i].text ? NULL : "files";
    return missing ? fail(e, KOPS_ERR_BAD_ARGUMENT, "source.%s is NULL, or has a NULL", missing) : check_size(c, s, e);
}

/* ---- making it known ---- */

/* A compilation under way. */
struct compiling {
    struct kops_module *module;
    uint32_t generation; /* of the connection that was asked last */
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
    struct native_reply reply = {0};
    struct wire_module known;
    struct job job = {.pack = wire_pack_compile,
                      .wire = &m->source,
                      .resolve = resolve,
                      .context = compiling,
                      .safe = recovery_always,
                      .decode = wire_decode_module, /* of a late reply */
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
        arena_free(&known.arena); /* callers have pointers into the first one */
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

enum kops_code module_compile(struct kops_client *c, const struct kops_source *source, uint64_t deadline,
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
    if (copy_source(m, source))
        r = ensure(m, deadline, &output, e);
    else
        r = fail(e, KOPS_ERR_NO_MEMORY, "there is no memory for a module");
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
    arena_free(&m->arena);
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
