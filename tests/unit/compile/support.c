#include "support.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "util/list.h"

void module_key(unsigned seed, unsigned char ret_key[KEY_BYTES])
{
    for (unsigned i = 0; i < KEY_BYTES; i++)
        ret_key[i] = (unsigned char)(seed * 7 + i * 13 + 1);
    ret_key[5] = (unsigned char)seed;
    ret_key[6] = (unsigned char)(seed >> 8);
}

struct compiled *module_new(unsigned seed, size_t image_size)
{
    struct compiled *c = compiled_new();
    char text[64];

    assert_non_null(c);
    module_key(seed, c->key);
    snprintf(c->arch, sizeof(c->arch), "sm_90a");
    snprintf(c->compiler, sizeof(c->compiler), "NVRTC 13.0");
    c->compile_us = 1000.5 + seed;
    snprintf(text, sizeof(text), "warning %u", seed);
    c->log = strdup(text);
    c->entries = calloc(1, sizeof(*c->entries));
    c->n_entries = 1;
    snprintf(text, sizeof(text), "kernel%u<float>", seed);
    c->entries[0].name = strdup(text);
    snprintf(text, sizeof(text), "_Z7kernel%u", seed);
    c->entries[0].lowered = strdup(text);
    c->entries[0].registers = 16 + seed;
    c->entries[0].n_params = 2;
    c->entries[0].param_sizes[0] = c->entries[0].param_sizes[1] = 8;
    c->entries[0].param_offsets[1] = 8;
    c->image = malloc(image_size);
    c->image_size = image_size;
    for (size_t i = 0; i < image_size; i++)
        c->image[i] = (unsigned char)(i * 31 + seed);
    return c;
}

int compiled_verify(const struct compiled *c, struct error *e)
{
    if (c->image_size >= 3 && !memcmp(c->image, "bad", 3))
        return error_set(e, ERROR_INVALID_ARGUMENT, "the image has no such kernel");
    return 0;
}

void assert_same_module(const struct compiled *a, const struct compiled *b)
{
    assert_memory_equal(a->key, b->key, KEY_BYTES);
    assert_texts(a->arch, b->arch, a->log, b->log, a->entries[0].name, b->entries[0].name);
    assert_int_equal(a->entries[0].registers, b->entries[0].registers);
    assert_int_equal(a->image_size, b->image_size);
    assert_memory_equal(a->image, b->image, a->image_size);
}

const char *path_of_module(const char *directory, unsigned seed)
{
    unsigned char key[KEY_BYTES];
    char hex[KEY_HEX + 1];

    module_key(seed, key);
    key_to_hex(key, hex);
    return folder_path(directory, hex);
}

unsigned directory_count(const char *directory)
{
    DIR *d = opendir(directory);
    unsigned n = 0;

    assert_non_null(d);
    for (struct dirent *entry; (entry = readdir(d));)
        n += strcmp(entry->d_name, "secret") && strcmp(entry->d_name, ".") && strcmp(entry->d_name, "..");
    closedir(d);
    return n;
}

void file_write(const char *path, const void *bytes, size_t size)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);

    assert_true(fd >= 0);
    assert_int_equal(write(fd, bytes, size), size);
    close(fd);
}

void file_used(const char *path, long seconds)
{
    struct timespec times[2];

    clock_gettime(CLOCK_REALTIME, &times[0]);
    times[0].tv_sec -= seconds;
    times[1] = times[0];
    assert_int_equal(utimensat(AT_FDCWD, path, times, AT_SYMLINK_NOFOLLOW), 0);
}

static int log_fd = -1, saved_stderr = -1;

void log_begin(void)
{
    log_fd = memfd_create("log", MFD_CLOEXEC);
    saved_stderr = dup(STDERR_FILENO);
    assert_int_equal(dup2(log_fd, STDERR_FILENO), STDERR_FILENO);
}

unsigned log_end(const char *event)
{
    off_t size = lseek(log_fd, 0, SEEK_END);
    char *text = calloc(1, (size_t)size + 1);
    unsigned n = 0;

    dup2(saved_stderr, STDERR_FILENO);
    close(saved_stderr);
    assert_int_equal(pread(log_fd, text, (size_t)size, 0), size);
    close(log_fd);
    for (const char *at = text; (at = strstr(at, event)); at++)
        n++;
    free(text);
    return n;
}

static void disk_close(void *disk)
{
    cache_disk_close(disk);
}

struct cache_disk *disk_opened(const char *directory, uint64_t limit)
{
    struct cache_disk *d = NULL;
    struct error e;

    if (cache_disk_open(directory, limit, &d, &e) < 0)
        fail_msg("%s: %s", directory, e.message);
    return opened(d, disk_close);
}

void disk_store(struct cache_disk *d, unsigned seed, size_t size)
{
    struct compiled *c = module_new(seed, size);

    MUST(cache_disk_write(d, c, &e));
    compiled_unref(c);
}

bool disk_has(struct cache_disk *d, unsigned seed, size_t size)
{
    struct compiled *wanted = module_new(seed, size), *c;

    c = cache_disk_read(d, wanted->key, true);
    if (c)
        assert_same_module(c, wanted);
    compiled_unref(wanted);
    compiled_unref(c);
    return c;
}

/* ---- the compiler ---- */

struct compiler {
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

struct compiler *compiler_new(uv_loop_t *of, const struct compiler_config *config, struct error *e)
{
    struct compiler *c = calloc(1, sizeof(*c));

    c->handle.data = c;
    uv_check_init(of, &c->handle);
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

/* ---- the service ---- */

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

static void fake_reset(void)
{
    fake_compiler = (struct fake_compiler){.identity = fake_compiler.identity};
    assert_true(list_empty(&jobs));
}

struct code_service *service_open_of(const struct code_service_config *config)
{
    struct code_service *s;
    struct error e;

    fake_reset();
    s = code_service_new(&loop, config, &e);
    if (!s)
        fail_msg("%s", e.message);
    return opened(s, service_end);
}

struct code_service *service_open_with(const char *directory, uint64_t disk_bytes, uint64_t memory_bytes)
{
    const struct code_service_config config = {
        .directory = directory, .disk_bytes = disk_bytes, .memory_bytes = memory_bytes, .source_bytes = 1000};

    return service_open_of(&config);
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
