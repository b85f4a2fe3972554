#include "fake_compiler.h"

#include <stdio.h>

#include "cache_support.h"
#include "util/list.h"

struct compiler {
    uv_loop_t *loop;
    uv_check_t handle; /* only to be closed on the loop */
    void (*closed)(void *context);
    void *context;
};

struct compile_job {
    struct list link;
    compile_done *done;
    void *context;
    char source[64];
    bool paused;
};

struct fake_compiler fake_compiler = {.identity = "fake 1"};
static struct list jobs = {&jobs, &jobs};

void fake_reset(const char *identity)
{
    fake_compiler = (struct fake_compiler){.identity = identity};
    assert_true(list_empty(&jobs));
}

static struct compile_job *oldest(bool paused, unsigned *ret_n)
{
    struct compile_job *first = NULL;

    *ret_n = 0;
    list_for_each_safe (node, after, &jobs) {
        struct compile_job *job = list_entry(node, struct compile_job, link);

        if (job->paused != paused)
            continue;
        first = first ? first : job;
        ++*ret_n;
    }
    return first;
}

unsigned fake_waiting(void)
{
    unsigned n;

    oldest(false, &n);
    return n;
}

unsigned fake_paused(const char **ret_source)
{
    unsigned n;
    const struct compile_job *job = oldest(true, &n);

    *ret_source = job ? job->source : "";
    return n;
}

struct compiler *compiler_new(uv_loop_t *loop, const struct compiler_config *config, struct error *e)
{
    struct compiler *c = calloc(1, sizeof(*c));

    c->loop = loop;
    c->handle.data = c;
    uv_check_init(loop, &c->handle);
    return c;
}

static void handle_closed(uv_handle_t *handle)
{
    struct compiler *c = handle->data;

    c->closed(c->context);
    free(c);
}

void compiler_close(struct compiler *compiler, void (*closed)(void *context), void *context)
{
    assert_true(list_empty(&jobs)); /* the service cancels what it has */
    compiler->closed = closed;
    compiler->context = context;
    uv_close((uv_handle_t *)&compiler->handle, handle_closed);
}

const char *compiler_name(const struct compiler *compiler)
{
    return "fake";
}

const char *compiler_identity(const struct compiler *compiler)
{
    return fake_compiler.identity;
}

const char *compiler_include(const struct compiler *compiler)
{
    return "/opt/toolkit/include";
}

unsigned compiler_trees(const struct compiler *compiler)
{
    return 0;
}

const char *compiler_tree(const struct compiler *compiler, unsigned i)
{
    return NULL;
}

bool compiler_usable(const struct compiler *compiler, struct error *e)
{
    return true;
}

static void join_texts(char *into, size_t size, const char *const *texts, unsigned n)
{
    size_t at = 0;

    *into = '\0';
    for (unsigned i = 0; i < n && at < size; i++)
        at += (size_t)snprintf(into + at, size - at, "%s%s", i ? " " : "", texts[i]);
}

struct compile_job *compiler_compile(struct compiler *compiler, const struct compile_input *input, compile_done *done,
                                     void *context)
{
    struct fake_compile *last = &fake_compiler.last;
    struct compile_job *job;

    if (fake_compiler.short_of_memory)
        return NULL;
    job = calloc(1, sizeof(*job));
    job->done = done;
    job->context = context;
    list_append(&jobs, &job->link);
    fake_compiler.begun++;
    snprintf(last->name, sizeof(last->name), "%s", input->name);
    snprintf(last->source, sizeof(last->source), "%.*s", (int)input->length, input->source);
    for (unsigned i = 0; i < input->n_files; i++) {
        size_t n = strlen(last->source);

        snprintf(last->source + n, sizeof(last->source) - n, " %s=%.*s", input->files[i].name,
                 (int)input->files[i].length, input->files[i].text);
    }
    snprintf(job->source, sizeof(job->source), "%s", last->source);
    join_texts(last->options, sizeof(last->options), input->options, input->n_options);
    join_texts(last->entries, sizeof(last->entries), input->entries, input->n_entries);
    return job;
}

bool compile_job_pause(struct compile_job *job)
{
    assert_false(job->paused);
    job->paused = !fake_compiler.may_not_pause;
    return job->paused;
}

void compile_job_resume(struct compile_job *job)
{
    assert_true(job->paused);
    job->paused = false;
    list_remove(&job->link); /* it is the last one that was begun */
    list_append(&jobs, &job->link);
    fake_compiler.begun++;
    snprintf(fake_compiler.last.source, sizeof(job->source), "%s", job->source);
}

void compile_job_cancel(struct compile_job *job)
{
    fake_compiler.cancelled++;
    list_remove(&job->link);
    free(job);
}

static struct compile_job take(bool paused)
{
    unsigned n;
    struct compile_job *job = oldest(paused, &n), copy;

    assert_non_null(job);
    copy = *job;
    list_remove(&job->link);
    free(job);
    return copy;
}

void fake_succeed(struct compiled *compiled, bool paused)
{
    struct compile_job job = take(paused);

    memset(compiled->key, 0, sizeof(compiled->key)); /* a compiler knows no keys */
    job.done(job.context, compiled, NULL, NULL);
}

void fake_fail(const char *reason, const char *log)
{
    struct compile_job job = take(false);
    struct compile_failure failure = {reason, log, strlen(log)};
    struct error e;

    error_set(&e, ERROR_INVALID_ARGUMENT, "the source does not compile");
    job.done(job.context, NULL, &e, &failure);
}
