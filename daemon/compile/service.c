#include "compile/service.h"

#include <limits.h>
#include <sodium.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "compile/compiled.h"
#include "compile/options.h"
#include "compile/service_internal.h"
#include "util/clock.h"
#include "util/log.h"

/* ---- files on disk, after the answer: no request waits for them ---- */

struct store { /* a file that is being written, or told that it is used */
    struct work work;
    struct code_service *service;
    struct compiled *compiled; /* a reference */
    struct list link;          /* in code_service.stores, while the file is written */
    atomic_bool dropped;       /* the cache was cleared since it was begun */
};

static void store_run(struct work *work)
{
    struct store *t = list_entry(work, struct store, work);
    struct error e;

    pthread_rwlock_rdlock(&t->service->storing);
    if (!atomic_load(&t->dropped))
        cache_disk_write(t->service->disk, t->compiled, &e); /* counts and logs its failures */
    pthread_rwlock_unlock(&t->service->storing);
}

static void touch_run(struct work *work)
{
    struct store *t = list_entry(work, struct store, work);

    cache_disk_touch(t->service->disk, t->compiled->key);
}

static void store_done(struct work *work)
{
    struct store *t = list_entry(work, struct store, work);
    struct code_service *s = t->service;

    list_remove(&t->link);
    compiled_unref(t->compiled);
    free(t);
    service_let_go(s);
}

static struct store *begin_store(struct code_service *s, struct compiled *compiled, void (*run)(struct work *))
{
    struct store *t = s->disk ? calloc(1, sizeof(*t)) : NULL;

    if (!t)
        return NULL;
    t->service = s;
    t->compiled = compiled_ref(compiled);
    list_init(&t->link);
    service_hold(s);
    work_submit(s->loop, &t->work, run, store_done);
    return t;
}

void service_store(struct code_service *s, struct compiled *compiled)
{
    struct store *t = begin_store(s, compiled, store_run);

    if (t)
        list_append(&s->stores, &t->link);
}

void service_drop_stores(struct code_service *s, const unsigned char *key)
{
    list_for_each_safe (node, after, &s->stores) {
        struct store *t = list_entry(node, struct store, link);

        if (!key || memcmp(t->compiled->key, key, KEY_BYTES) == 0)
            atomic_store(&t->dropped, true);
    }
}

/* How often files of modules that memory answers for are marked as used. */
#define TOUCH_NS (UINT64_C(3600) * 1000000000)

const char *code_origin_name(enum code_origin origin)
{
    static const char *const names[] = {
        [CODE_COMPILED] = "no", [CODE_MEMORY] = "memory", [CODE_DISK] = "disk", [CODE_REMOTE] = "remote"};

    return names[origin];
}

/* ---- the service itself ---- */

static void open_disk(struct code_service *s, const struct code_service_config *config)
{
    struct error e;
    char path[512];

    if (!config->directory || !config->disk_bytes)
        return;
    if (cache_disk_open(config->directory, config->disk_bytes, &s->disk, &e) < 0)
        log_warning("cache_directory_unusable", "path=%s reason=\"%s\"",
                    log_quote(path, sizeof(path), config->directory, strlen(config->directory)), e.message);
}

struct code_service *code_service_new(uv_loop_t *loop, const struct code_service_config *config, struct error *e)
{
    struct code_service *s;

    if (sodium_init() < 0) {
        error_set(e, ERROR_INTERNAL, "libsodium cannot be set up");
        return NULL;
    }
    s = calloc(1, sizeof(*s));
    if (s)
        s->memory = cache_memory_new(config->memory_bytes);
    if (!s || !s->memory) {
        error_set(e, ERROR_OUT_OF_MEMORY, "no memory for the cache of code");
        goto free_service;
    }
    s->loop = loop;
    s->source_bytes = config->source_bytes;
    s->memory_bytes = config->memory_bytes;
    s->most = config->compiler.helpers ? config->compiler.helpers : UINT_MAX;
    s->time_ms = UINT64_C(1000) * config->compiler.time_s;
    list_init(&s->inflight);
    list_init(&s->stores);
    pthread_rwlock_init(&s->storing, NULL);
    list_init(&s->turns.users);
    s->compiler = compiler_new(loop, &config->compiler, e);
    if (!s->compiler)
        goto free_memory;
    open_disk(s, config);
    service_queue_begin(s);
    service_remote_begin(s);
    code_service_use_remote(s, &config->remote);
    return s;

free_memory:
    pthread_rwlock_destroy(&s->storing);
    cache_memory_free(s->memory);
free_service:
    free(s);
    return NULL;
}

void service_let_go(struct code_service *s)
{
    if (--s->busy || !s->closing)
        return;
    cache_memory_free(s->memory);
    cache_disk_close(s->disk);
    pthread_rwlock_destroy(&s->storing);
    if (s->closed)
        s->closed(s->closed_context);
    free(s);
}

static void compiler_closed(void *context)
{
    struct code_service *s = context;

    s->compiler = NULL;
    service_let_go(s);
}

static void code_request_free(struct code_request *q)
{
    list_remove(&q->link);
    turn_place_unref(q->place);
    free(q);
}

static void inflight_free(struct inflight *f)
{
    service_remote_leave(f, false);
    inflight_stop(f);
    list_remove(&f->link);
    compiled_unref(f->compiled);
    request_free(&f->request);
    buffer_free(&f->frame);
    free(f);
}

void code_service_close(struct code_service *service, void (*closed)(void *context), void *context)
{
    struct code_service *s = service;

    s->closed = closed;
    s->closed_context = context;
    service_hold(s); /* until the compiler is closed */
    s->closing = true;
    list_for_each_safe (node, after, &s->inflight) {
        struct inflight *f = list_entry(node, struct inflight, link);

        list_for_each_safe (waiter, next, &f->waiters)
            code_request_free(list_entry(waiter, struct code_request, link));
        if (f->state == COMPILING || f->state == QUEUED || f->state == ASKING)
            inflight_free(f);
    }
    service_queue_end(s);
    service_remote_end(s);
    compiler_close(s->compiler, compiler_closed, s);
}

struct compiler *code_service_compiler(struct code_service *service)
{
    return service->compiler;
}

struct code_counters code_service_counters(const struct code_service *service)
{
    struct code_counters c = service->counters;

    if (service->disk) {
        struct cache_disk_counters disk = cache_disk_counters(service->disk);

        c.disk_rejected = disk.rejected;
        c.disk_failures = disk.failures;
        c.evictions = disk.evictions;
    }
    return c;
}

/* ---- in-flight compiles ---- */

void inflight_finish(struct inflight *f, struct compiled *compiled, enum code_origin origin, const struct error *e,
                     const struct compile_failure *failure)
{
    struct code_service *s = f->service;
    struct list *node;

    f->state = FINISHED;
    service_remote_leave(f, false);
    service_hold(s);
    while ((node = list_first(&f->waiters))) {
        struct code_request *q = list_entry(node, struct code_request, link);
        code_done *done = q->done;
        void *context = q->context;

        code_request_free(q);
        done(context, compiled ? compiled_ref(compiled) : NULL, origin, e, failure);
    }
    inflight_free(f);
    service_let_go(s);
}

static void read_run(struct work *work)
{
    struct inflight *f = list_entry(work, struct inflight, work);

    f->compiled = cache_disk_read(f->service->disk, f->key, true);
}

static void read_done(struct work *work)
{
    struct inflight *f = list_entry(work, struct inflight, work);
    struct code_service *s = f->service;

    if (f->compiled && !s->closing) {
        struct compiled *compiled = compiled_ref(f->compiled);

        cache_memory_put(s->memory, compiled, clock_now_ns());
        s->counters.disk_hits++;
        inflight_finish(f, compiled, CODE_DISK, NULL, NULL);
        compiled_unref(compiled);
    } else if (list_empty(&f->waiters)) { /* all have gone, perhaps with the service */
        inflight_free(f);
    } else if (!service_remote_ask(f)) {
        inflight_queue(f);
    }
    service_let_go(s);
}

void inflight_succeed(struct inflight *f, struct compiled *compiled, enum code_origin origin)
{
    struct code_service *s = f->service;

    service_hold(s);
    inflight_stop(f);
    cache_memory_put(s->memory, compiled, clock_now_ns());
    service_store(s, compiled);
    inflight_finish(f, compiled, origin, NULL, NULL);
    service_start_queued(s);
    service_let_go(s);
}

static struct inflight *find_inflight(struct code_service *s, const unsigned char *key)
{
    list_for_each_safe (node, after, &s->inflight) {
        struct inflight *f = list_entry(node, struct inflight, link);

        if (f->state != FINISHED && !memcmp(f->key, key, KEY_BYTES))
            return f;
    }
    return NULL;
}

static struct inflight *inflight_new(struct code_service *s, const unsigned char *key, struct turn_place *place,
                                     const struct compile_input *input, struct error *e)
{
    struct inflight *f = calloc(1, sizeof(*f));

    if (!f || request_copy(input, &f->frame, &f->request) < 0) {
        free(f);
        inflight_no_memory(input->length, e);
        return NULL;
    }
    f->service = s;
    memcpy(f->key, key, KEY_BYTES);
    f->state = QUEUED;
    list_init(&f->waiters);
    list_append(&s->inflight, &f->link);
    if (s->disk) {
        f->state = READING;
        service_hold(s);
        work_submit(s->loop, &f->work, read_run, read_done);
    } else if (!service_remote_ask(f) && service_has_room(s, place) && !inflight_begin(f, place)) {
        inflight_no_memory(input->length, e);
        inflight_free(f);
        return NULL;
    }
    return f;
}

static int join(struct code_service *s, const unsigned char *key, const struct compile_input *input, code_done *done,
                void *context, struct code_request **ret_request, struct error *e)
{
    struct turn_place *place = turn_place_get(&s->turns, input->user, input->connection);
    struct code_request *q = malloc(sizeof(*q));
    struct inflight *f;

    if (!q || !place) {
        error_set(e, ERROR_OUT_OF_MEMORY, "no memory for a request");
        goto free_request;
    }
    f = find_inflight(s, key);
    if (f)
        s->counters.joins++;
    else
        f = inflight_new(s, key, place, input, e);
    if (!f)
        goto free_request;
    *q = (struct code_request){
        .inflight = f, .place = place, .number = ++s->n_requests, .done = done, .context = context};
    list_append(&f->waiters, &q->link);
    if (f->state == QUEUED)
        service_watch_turns(s);
    *ret_request = q;
    return 0;

free_request:
    free(q);
    turn_place_unref(place);
    return -1;
}

static bool from_memory(struct code_service *s, const unsigned char *key, code_done *done, void *context,
                        struct code_request **ret_request)
{
    uint64_t now = clock_now_ns();
    struct cache_item *item = cache_memory_get(s->memory, key, now);

    if (!item)
        return false;
    s->counters.memory_hits++;
    if (now - item->touched_ns >= TOUCH_NS) {
        item->touched_ns = now;
        begin_store(s, item->compiled, touch_run);
    }
    *ret_request = NULL;
    done(context, compiled_ref(item->compiled), CODE_MEMORY, NULL, NULL);
    return true;
}

int code_get(struct code_service *service, const struct compile_input *input, code_done *done, void *context,
             struct code_request **ret_request, struct error *e)
{
    struct compile_input normal = *input;
    unsigned char key[KEY_BYTES];
    struct options options;
    int r = 0;

    if (service->closing)
        return error_set(e, ERROR_SHUTTING_DOWN, "the daemon is ending");
    if (options_check_input(input, service->source_bytes, e) < 0 ||
        options_normalise(input->options, input->n_options, input->arch, compiler_include(service->compiler), &options,
                          e) < 0)
        return -1;
    normal.options = (const char *const *)options.texts;
    normal.n_options = options.n;
    key_make(&normal, compiler_identity(service->compiler), key);
    if (!from_memory(service, key, done, context, ret_request))
        r = join(service, key, &normal, done, context, ret_request, e);
    options_free(&options);
    return r;
}

void code_request_cancel(struct code_request *request)
{
    struct inflight *f = request->inflight;
    struct code_service *s = f->service;

    code_request_free(request);
    if (!list_empty(&f->waiters))
        return;
    if (f->state == QUEUED || f->state == ASKING || f->state == COMPILING) {
        inflight_free(f);
        service_start_queued(s);
    }
}

void code_service_limit_source(struct code_service *service, uint64_t source_bytes)
{
    service->source_bytes = source_bytes;
}
