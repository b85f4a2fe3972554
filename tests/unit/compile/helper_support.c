#include "helper_support.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

#include "compile/helper.h"

static void on_closed(void *context)
{
    struct fixture *f = context;

    f->closed = true;
}

static void fixture_close(void *fixture)
{
    struct fixture *f = fixture;

    compiler_close(f->compiler, on_closed, f);
    while (uv_run(&f->loop, UV_RUN_ONCE))
        ;
    assert_true(f->closed);
    assert_int_equal(uv_loop_close(&f->loop), 0);
    free(f);
}

struct fixture *fixture_open_with(void (*change)(struct compiler_config *config))
{
    struct fixture *f = calloc(1, sizeof(*f));
    struct error e;

    assert_non_null(f);
    f->config = (struct compiler_config){.helpers = 2, .memory_mib = 1024, .time_s = 60, .keep_s = 60};
    if (change)
        change(&f->config);
    assert_int_equal(uv_loop_init(&f->loop), 0);
    f->compiler = compiler_new(&f->loop, &f->config, &e);
    assert_non_null(f->compiler);
    opened(f, fixture_close);
    if (!compiler_usable(f->compiler, &e)) {
        print_message("not possible here: %s\n", e.message);
        skip();
    }
    return f;
}

struct fixture *fixture_open(void)
{
    return fixture_open_with(NULL);
}

static void unref(void *compiled)
{
    compiled_unref(compiled);
}

static void on_done(void *context, struct compiled *compiled, const struct error *e,
                    const struct compile_failure *failure)
{
    struct outcome *o = context;

    assert_false(o->done);
    o->done = true;
    uv_stop(o->loop); /* it may be about to wait for more */
    o->compiled = compiled ? opened(compiled, unref) : NULL;
    o->error = *e;
    if (failure) {
        snprintf(o->reason, sizeof(o->reason), "%s", failure->reason);
        assert_int_equal(strlen(failure->log), failure->log_length);
        o->log = opened(strdup(failure->log), free);
    }
}

struct compile_job *compile_start_input(struct fixture *f, const struct compile_input *input, struct outcome *o)
{
    struct compile_job *job;

    *o = (struct outcome){.loop = &f->loop};
    job = compiler_compile(f->compiler, input, on_done, o);
    assert_non_null(job);
    assert_false(o->done);
    return job;
}

struct compile_job *compile_start(struct fixture *f, const char *source, const char *const *entries, struct outcome *o)
{
    struct compile_input input = {
        .name = "kernel.cu", .source = source, .length = strlen(source), .entries = entries, .arch = "sm_90a"};

    while (entries[input.n_entries])
        input.n_entries++;
    return compile_start_input(f, &input, o);
}

void compile_wait(struct fixture *f, struct outcome *o)
{
    while (!o->done)
        uv_run(&f->loop, UV_RUN_ONCE);
}

struct outcome compile_one(struct fixture *f, const char *source, const char *entry)
{
    const char *const entries[] = {entry, NULL};
    struct outcome o;

    compile_start(f, source, entries, &o);
    compile_wait(f, &o);
    return o;
}

void assert_compiles(struct fixture *f, const char *source, const char *entry)
{
    const struct outcome o = compile_one(f, source, entry);

    if (!o.compiled)
        fail_msg("%s\n%s\n%s", source, o.error.message, o.log ? o.log : "");
}

void assert_failed(const struct outcome *o, enum error_code code, const char *reason)
{
    assert_null(o->compiled);
    if (o->error.code != code || strcmp(o->reason, reason) != 0)
        print_message("%s (%s): %s\n%s", error_code_name(o->error.code), o->reason, o->error.message,
                      o->log ? o->log : "");
    assert_int_equal(o->error.code, code);
    assert_string_equal(o->reason, reason);
}

/* A fork keeps its parent's command line. */
static bool is_helper(const char *pid)
{
    char path[300], text[8192], mine[32];
    bool helper = false, ours = false;
    ssize_t n;
    int fd;

    snprintf(path, sizeof(path), "/proc/%s/cmdline", pid);
    snprintf(mine, sizeof(mine), "parent=%d", (int)getpid());
    fd = open(path, O_RDONLY | O_CLOEXEC);
    n = fd >= 0 ? read(fd, text, sizeof(text) - 1) : 0;
    if (fd >= 0)
        close(fd);
    for (ssize_t i = 0; i < n; i += (ssize_t)strlen(text + i) + 1) {
        text[n] = '\0';
        helper = helper || !strcmp(text + i, HELPER_ARGUMENT);
        ours = ours || !strcmp(text + i, mine);
    }
    return helper && ours;
}

unsigned helper_pids(pid_t *pids, unsigned max)
{
    DIR *d = opendir("/proc");
    struct dirent *entry;
    unsigned n = 0;

    assert_non_null(d);
    while ((entry = readdir(d))) {
        if (entry->d_name[0] < '1' || entry->d_name[0] > '9' || !is_helper(entry->d_name))
            continue;
        if (n < max)
            pids[n] = (pid_t)strtol(entry->d_name, NULL, 10);
        n++;
    }
    closedir(d);
    return n;
}

unsigned open_descriptors(void)
{
    DIR *d = opendir("/proc/self/fd");
    unsigned n = 0;

    assert_non_null(d);
    while (readdir(d))
        n++;
    closedir(d);
    return n;
}

static void on_tick(uv_timer_t *timer)
{
}

void run_until(struct fixture *f, bool (*true_now)(void *context), void *context)
{
    uv_timer_t tick;

    uv_timer_init(&f->loop, &tick);
    uv_timer_start(&tick, on_tick, 10, 10);
    while (!true_now(context))
        uv_run(&f->loop, UV_RUN_ONCE);
    uv_close((uv_handle_t *)&tick, NULL);
    uv_run(&f->loop, UV_RUN_NOWAIT);
}

static int be_a_helper(int argc, char **argv)
{
    return compile_helper_wanted(argc, argv) ? compile_helper_main(argc, argv) : -1;
}

FIRST(be_a_helper)
