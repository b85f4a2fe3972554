/* The cache that several machines share: it is asked after memory and disk, and before the compiler, which waits a
 * short time for its answer and then begins; the first that has the module ends the other. */
#include "compile/service_internal.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "util/clock.h"
#include "util/log.h"

enum { UPLOADS_MAX = 64, UPLOAD_BYTES_MAX = 128 << 20 };

/* ---- uploads of modules that were compiled here: no request waits for them ---- */

struct upload {
    struct work work; /* making it: first */
    struct list link; /* in service_remote.uploads */
    struct code_service *service;
    struct compiled *compiled; /* a reference */
    uint64_t bytes;
    struct signing_key key;
    int fd;                         /* the body; -1: it could not be made, or is given away */
    struct remote_request *request; /* NULL: it is being made */
};

static void make_run(struct work *work)
{
    struct upload *u = (struct upload *)work;
    struct buffer body;

    buffer_init(&body, SIGNED_MAX);
    if (signed_make(u->compiled, &u->key, (uint64_t)time(NULL), &body) == 0)
        u->fd = memfd_create("kops-signed", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (u->fd >= 0 &&
        (cache_write_all(u->fd, body.data + body.start, buffer_length(&body)) < 0 || remote_body_seal(u->fd) < 0)) {
        close(u->fd);
        u->fd = -1;
    }
    buffer_free(&body);
}

static void upload_free(struct upload *u)
{
    struct service_remote *r = &u->service->remote;

    r->n_uploads--;
    r->upload_bytes -= u->bytes;
    list_remove(&u->link);
    if (u->fd >= 0)
        close(u->fd);
    compiled_unref(u->compiled);
    signing_key_forget(&u->key);
    free(u);
}

static void on_upload(void *context, enum remote_status status, int fd, const char *why)
{
    struct upload *u = context;
    struct code_remote_counters *n = &u->service->remote.counters;

    (void)fd; /* a put has none */
    (void)why;
    n->uploads += status == REMOTE_HIT;
    n->upload_failures += status != REMOTE_HIT;
    upload_free(u);
}

static void make_done(struct work *work)
{
    struct upload *u = (struct upload *)work;
    struct code_service *s = u->service;

    if (u->fd >= 0 && s->remote.server && !s->closing) {
        u->request = remote_put(s->remote.server, u->compiled->key, u->fd, on_upload, u);
        u->fd = -1; /* taken */
    }
    if (!u->request) {
        s->remote.counters.upload_drops++;
        upload_free(u);
    }
    service_let_go(s);
}

void service_publish(struct code_service *s, struct compiled *compiled)
{
    struct service_remote *r = &s->remote;
    const uint64_t bytes = compiled_memory(compiled);
    struct upload *u = NULL;

    if (!r->server || !r->publishes || s->closing)
        return;
    if (r->n_uploads < UPLOADS_MAX && r->upload_bytes + bytes <= UPLOAD_BYTES_MAX)
        u = calloc(1, sizeof(*u));
    if (!u) {
        r->counters.upload_drops++;
        return;
    }
    u->service = s;
    u->compiled = compiled_ref(compiled);
    u->bytes = bytes;
    u->key = r->key;
    u->fd = -1;
    r->n_uploads++;
    r->upload_bytes += bytes;
    list_append(&r->uploads, &u->link);
    service_hold(s);
    work_submit(s->loop, &u->work, make_run, make_done);
}

static void service_publish_end(struct code_service *s)
{
    list_for_each_safe (node, after, &s->remote.uploads) {
        struct upload *u = list_entry(node, struct upload, link);

        if (!u->request)
            continue; /* make_done() will see */
        s->remote.counters.upload_drops++;
        upload_free(u);
    }
}

enum { LINES_A_SECOND = 1 };

struct verification {
    struct work work;
    struct code_service *service;
    struct inflight *inflight; /* NULL: nobody wants it any more */
    unsigned generation;
    int fd;
    unsigned char key[KEY_BYTES];
    struct signed_trust trust;
    struct compiled *compiled; /* NULL: refused */
    struct error error;
};

static uint64_t now_ms(const struct code_service *s)
{
    return uv_now(s->loop);
}

/* ---- an answer ---- */

static void verify_run(struct work *work)
{
    struct verification *v = (struct verification *)work;
    const char *why = NULL;
    const int64_t sent = remote_body_size(v->fd, SIGNED_MAX, &why);
    unsigned char *bytes = NULL;
    size_t size = 0;

    if (sent < 0)
        error_set(&v->error, ERROR_INVALID_ARGUMENT, "%s", why);
    else if (lseek(v->fd, 0, SEEK_SET) == 0 && cache_slurp(v->fd, (size_t)sent, &bytes, &size, &v->error) == 0 &&
             signed_open(bytes, size, &v->trust, v->key, (uint64_t)time(NULL), &v->compiled, &v->error) == 0)
        v->compiled->from = COMPILED_REMOTE;
    free(bytes);
    close(v->fd);
}

static void tell_refusal(struct verification *v)
{
    static struct log_limit limit; /* the loop's thread only */
    char hex[KEY_HEX + 1], quoted[2 * ERROR_MESSAGE_MAX];
    unsigned held_back;

    if (!log_limit_pass(&limit, clock_now_ns(), LINES_A_SECOND, &held_back))
        return;
    key_to_hex(v->key, hex);
    log_warning("remote_cache", "refused=%s why=%s", hex,
                log_quote(quoted, sizeof(quoted), v->error.message, strlen(v->error.message)));
}

static void verify_done(struct work *work)
{
    struct verification *v = (struct verification *)work;
    struct code_service *s = v->service;
    struct inflight *f = v->inflight;

    if (!v->compiled && !s->closing) {
        s->remote.counters.rejected++;
        tell_refusal(v);
    }
    if (!s->closing && s->remote.server && v->generation == s->remote.generation)
        remote_judge(s->remote.server, v->compiled, v->error.message);
    if (f) {
        f->verified = NULL;
        if (v->compiled) {
            s->remote.counters.hits++;
            inflight_succeed(f, v->compiled, CODE_REMOTE);
        } else if (f->state == ASKING) {
            inflight_queue(f);
        }
    }
    compiled_unref(v->compiled);
    free(v);
    service_let_go(s);
}

static bool verify(struct inflight *f, int fd)
{
    struct code_service *s = f->service;
    struct verification *v = calloc(1, sizeof(*v));

    if (!v) {
        close(fd);
        return false;
    }
    v->service = s;
    v->inflight = f;
    v->generation = s->remote.generation;
    v->fd = fd;
    v->trust = s->remote.trust;
    memcpy(v->key, f->key, KEY_BYTES);
    f->verified = v;
    service_hold(s);
    work_submit(s->loop, &v->work, verify_run, verify_done);
    return true;
}

static void on_answer(void *context, enum remote_status status, int fd, const char *why)
{
    struct inflight *f = context;
    struct code_service *s = f->service;

    (void)why; /* the server's state has it */
    f->asked = NULL;
    if (status == REMOTE_HIT) {
        if (verify(f, fd))
            return;
        remote_judge(s->remote.server, true, NULL); /* nothing is known against it */
    }
    s->remote.counters.misses += status == REMOTE_MISS;
    s->remote.counters.failures += status != REMOTE_MISS;
    if (f->state == ASKING)
        inflight_queue(f);
}

/* ---- questions ---- */

/* The first that has waited for long enough; NULL: *ret_next_ms is when the next one has, 0: none waits. */
static struct inflight *find_patient(struct code_service *s, uint64_t *ret_next_ms)
{
    *ret_next_ms = 0;
    list_for_each_safe (node, after, &s->inflight) {
        struct inflight *f = list_entry(node, struct inflight, link);

        if (f->state != ASKING)
            continue;
        if (f->patient_until_ms <= now_ms(s))
            return f;
        if (!*ret_next_ms || f->patient_until_ms < *ret_next_ms)
            *ret_next_ms = f->patient_until_ms;
    }
    return NULL;
}

static void on_patience(uv_timer_t *timer)
{
    struct code_service *s = timer->data;
    struct inflight *f;
    uint64_t next_ms;

    service_hold(s);
    while (!s->closing && (f = find_patient(s, &next_ms)))
        inflight_queue(f);
    if (!s->closing && next_ms)
        uv_timer_start(timer, on_patience, next_ms - now_ms(s), 0);
    service_let_go(s);
}

bool service_remote_ask(struct inflight *f)
{
    struct code_service *s = f->service;
    struct service_remote *r = &s->remote;

    if (!r->server || s->closing)
        return false;
    f->asked = remote_get(r->server, f->key, on_answer, f);
    if (!f->asked || !r->wait_ms)
        return false; /* with no patience at all both begin at once */
    f->state = ASKING;
    f->patient_until_ms = now_ms(s) + r->wait_ms;
    if (!uv_is_active((uv_handle_t *)&r->patience))
        uv_timer_start(&r->patience, on_patience, r->wait_ms, 0);
    return true;
}

void service_remote_leave(struct inflight *f, bool too_late)
{
    uv_timer_t *patience = &f->service->remote.patience;

    f->service->remote.counters.late += too_late && (f->asked || f->verified);
    if (f->asked)
        remote_cancel(f->asked, too_late);
    if (f->verified)
        f->verified->inflight = NULL;
    f->asked = NULL;
    f->verified = NULL;
    list_for_each_safe (node, after, &f->service->inflight) {
        const struct inflight *other = list_entry(node, struct inflight, link);

        if (other != f && other->state == ASKING)
            return;
    }
    uv_timer_stop(patience);
}

/* ---- the server ---- */

void service_remote_begin(struct code_service *s)
{
    struct service_remote *r = &s->remote;

    list_init(&r->uploads);
    r->patience.data = s;
    uv_timer_init(s->loop, &r->patience);
}

static void server_closed(void *context)
{
    service_let_go(context);
}

static void drop_server(struct code_service *s)
{
    struct service_remote *r = &s->remote;
    struct remote *server = r->server;

    if (!server)
        return;
    list_for_each_safe (node, after, &s->inflight)
        service_remote_leave(list_entry(node, struct inflight, link), false);
    service_publish_end(s);
    r->server = NULL;
    service_hold(s);
    remote_close(server, server_closed, s);
    /* Compiles that waited for its answer go on with the next turn of the loop. */
    if (!s->closing)
        uv_timer_start(&r->patience, on_patience, 0, 0);
}

void code_service_use_remote(struct code_service *service, const struct code_remote_config *remote)
{
    struct service_remote *r = &service->remote;
    struct error e;

    r->trust = remote->trust;
    r->publishes = remote->publishes;
    r->key = remote->key;
    r->wait_ms = remote->wait_ms;
    if (r->server && remote->server.url && remote_is(r->server, &remote->server))
        return;
    drop_server(service);
    list_for_each_safe (node, after, &service->inflight)
        list_entry(node, struct inflight, link)->patient_until_ms = 0;
    if (!remote->server.url)
        return;
    r->generation++;
    r->server = remote_new(service->loop, &remote->server, &e);
    if (!r->server)
        log_error("remote_cache", "why=\"%s\"", e.message);
}

static void timer_closed(uv_handle_t *handle)
{
    service_let_go(handle->data);
}

void service_remote_end(struct code_service *s)
{
    drop_server(s);
    signing_key_forget(&s->remote.key);
    service_hold(s);
    uv_close((uv_handle_t *)&s->remote.patience, timer_closed);
}

bool code_service_remote(const struct code_service *service, struct code_remote_counters *ret_counters,
                         struct remote_report *ret_report)
{
    const struct service_remote *r = &service->remote;

    if (!r->server)
        return false;
    *ret_counters = r->counters;
    remote_report(r->server, ret_report);
    ret_counters->skipped = ret_report->skipped;
    return true;
}
