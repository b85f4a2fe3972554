#include "fake_compiler.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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
};

static const char *identity = "fake 1";
static unsigned begun, cancelled;
static bool short_of_memory;
static struct fake_compile last;
static struct list jobs = {&jobs, &jobs};

void fake_reset(const char *new_identity)
{
    identity = new_identity;
    begun = cancelled = 0;
    short_of_memory = false;
    assert_true(list_empty(&jobs));
}

void fake_short_of_memory(void)
{
    short_of_memory = true;
}

unsigned fake_begun(void)
{
    return begun;
}

unsigned fake_cancelled(void)
{
    return cancelled;
}

unsigned fake_waiting(void)
{
    unsigned n = 0;

    list_for_each_safe (node, after, &jobs)
        n++;
    return n;
}

const struct fake_compile *fake_last(void)
{
    return &last;
}

struct compiler *compiler_new(uv_loop_t *loop, const struct compiler_config *config, struct error *e)
{
    struct compiler *c = calloc(1, sizeof(*c));

    (void)config;
    (void)e;
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
    (void)compiler;
    return "fake";
}

const char *compiler_identity(const struct compiler *compiler)
{
    (void)compiler;
    return identity;
}

const char *compiler_include(const struct compiler *compiler)
{
    (void)compiler;
    return "/opt/toolkit/include";
}

unsigned compiler_trees(const struct compiler *compiler)
{
    (void)compiler;
    return 0;
}

const char *compiler_tree(const struct compiler *compiler, unsigned i)
{
    (void)compiler;
    (void)i;
    return NULL;
}

bool compiler_usable(const struct compiler *compiler, struct error *e)
{
    (void)compiler;
    (void)e;
    return true;
}

void compiler_warm(struct compiler *compiler)
{
    (void)compiler;
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
    struct compile_job *job;

    (void)compiler;
    if (short_of_memory)
        return NULL;
    job = calloc(1, sizeof(*job));
    job->done = done;
    job->context = context;
    list_append(&jobs, &job->link);
    begun++;
    snprintf(last.name, sizeof(last.name), "%s", input->name);
    snprintf(last.source, sizeof(last.source), "%.*s", (int)input->length, input->source);
    for (unsigned i = 0; i < input->n_files; i++) {
        size_t n = strlen(last.source);

        snprintf(last.source + n, sizeof(last.source) - n, " %s=%.*s", input->files[i].name,
                 (int)input->files[i].length, input->files[i].text);
    }
    join_texts(last.options, sizeof(last.options), input->options, input->n_options);
    join_texts(last.entries, sizeof(last.entries), input->entries, input->n_entries);
    return job;
}

void compile_job_cancel(struct compile_job *job)
{
    cancelled++;
    list_remove(&job->link);
    free(job);
}

static struct compile_job take(void)
{
    struct compile_job *job, copy;

    assert_false(list_empty(&jobs));
    job = list_entry(list_first(&jobs), struct compile_job, link);
    copy = *job;
    list_remove(&job->link);
    free(job);
    return copy;
}

void fake_succeed(struct compiled *compiled)
{
    struct compile_job job = take();

    memset(compiled->key, 0, sizeof(compiled->key)); /* a compiler knows no keys */
    job.done(job.context, compiled, NULL, NULL);
}

void fake_fail(const char *reason, const char *log)
{
    struct compile_job job = take();
    struct compile_failure failure = {reason, log, strlen(log)};
    struct error e;

    error_set(&e, ERROR_INVALID_ARGUMENT, "the source does not compile");
    job.done(job.context, NULL, &e, &failure);
}
