#include "service_support.h"

#include <stdio.h>

#include "compile/options.h"
#include "fake_compiler.h"

uv_loop_t loop;

int loop_open(void **state)
{
    return uv_loop_init(&loop);
}

int loop_close(void **state)
{
    return uv_loop_close(&loop);
}

static void note_closed(void *context)
{
    *(bool *)context = true;
}

static void service_end(void *s)
{
    bool closed = false;

    code_service_close(s, note_closed, &closed);
    assert_false(closed); /* never at once: the caller may still use it */
    uv_run(&loop, UV_RUN_DEFAULT);
    assert_true(closed);
}

struct code_service *service_opened(struct code_service *s)
{
    return opened(s, service_end);
}

struct code_service *service_open_with(const char *directory, uint64_t disk_bytes, uint64_t memory_bytes)
{
    struct code_service_config config = {
        .directory = directory, .disk_bytes = disk_bytes, .memory_bytes = memory_bytes, .source_bytes = 1000};
    struct error e;
    struct code_service *s = code_service_new(&loop, &config, &e);

    if (!s)
        fail_msg("%s", e.message);
    return service_opened(s);
}

struct code_service *service_open(const char *directory)
{
    return service_open_with(directory, 1 << 20, 1 << 20);
}

struct compile_input input_of(const char *source)
{
    static const char *const entries[] = {"f"};

    return (struct compile_input){.name = "k.cu",
                                  .source = source,
                                  .length = strlen(source),
                                  .entries = entries,
                                  .n_entries = 1,
                                  .arch = "sm_90a"};
}

static void unref(void *compiled)
{
    compiled_unref(compiled);
}

static void answered(void *context, struct compiled *compiled, enum code_origin origin, const struct error *e,
                     const struct compile_failure *failure)
{
    struct asker *a = context;

    a->answers++;
    a->request = NULL;
    a->compiled = compiled ? opened(compiled, unref) : NULL;
    a->origin = origin;
    a->code = compiled ? ERROR_NONE : e->code;
    snprintf(a->message, sizeof(a->message), "%s", compiled ? "" : e->message);
    if (failure) {
        snprintf(a->reason, sizeof(a->reason), "%s", failure->reason);
        snprintf(a->log, sizeof(a->log), "%s", failure->log);
    }
    if (a->then)
        a->then(a);
}

void ask(struct asker *asker, struct code_service *s, const char *source)
{
    ask_from(asker, s, 0, 0, source);
}

void ask_from(struct asker *asker, struct code_service *s, uint64_t user, uint64_t connection, const char *source)
{
    struct compile_input in = input_of(source);
    struct code_request *request = NULL;

    in.user = user;
    in.connection = connection;
    asker->service = s;
    MUST(code_get(s, &in, answered, asker, &request, &e));
    if (!asker->answers)
        assert_non_null(request);
    if (asker->answers)
        assert_null(request);
    asker->request = request;
}

void until_compiling(unsigned n)
{
    while (fake_waiting() < n)
        uv_run(&loop, UV_RUN_ONCE);
}

void until_answered(struct asker *asker)
{
    while (!asker->answers)
        uv_run(&loop, UV_RUN_ONCE);
}

void until_idle(void)
{
    uv_run(&loop, UV_RUN_DEFAULT); /* the made-up compiler keeps no loop alive */
}

enum code_origin fetch(struct code_service *s, const char *source, unsigned seed)
{
    struct asker a = {0};

    ask(&a, s, source);
    while (!a.answers) {
        if (fake_waiting())
            fake_succeed(module_new(seed, 1000), false);
        else
            uv_run(&loop, UV_RUN_ONCE);
    }
    assert_non_null(a.compiled);
    assert_int_equal(a.compiled->image[1], (unsigned char)(31 + seed));
    return a.origin;
}
