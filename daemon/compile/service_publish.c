/* Modules that were compiled here, on their way to the cache that machines share. No request waits for them. */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "compile/cache_disk_internal.h"
#include "compile/service_internal.h"

enum { UPLOADS_MAX = 64, UPLOAD_BYTES_MAX = 128 << 20 };

struct upload {
    struct work work; /* making it: first */
    struct list link; /* of the service's uploads */
    struct code_service *service;
    struct compiled *compiled; /* a reference */
    uint64_t bytes;
    struct signing_key key;
    int fd;                         /* the body; -1: it could not be made, or is given away */
    struct remote_request *request; /* NULL: it is being made */
};

static int write_body(const struct buffer *body)
{
    const int fd = memfd_create("kops-signed", MFD_CLOEXEC | MFD_ALLOW_SEALING);

    if (fd < 0)
        return -1;
    if (cache_write_all(fd, body->data + body->start, buffer_length(body)) == 0 && remote_body_seal(fd) == 0)
        return fd;
    close(fd);
    return -1;
}

static void make_run(struct work *work)
{
    struct upload *u = (struct upload *)work;
    struct buffer body;

    buffer_init(&body, SIGNED_MAX);
    if (signed_make(u->compiled, &u->key, (uint64_t)time(NULL), &body) == 0)
        u->fd = write_body(&body);
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

static void on_answer(void *context, enum remote_status status, int fd, const char *why)
{
    struct upload *u = context;
    struct code_remote_counters *n = &u->service->remote.counters;

    (void)fd; /* of a put there is none */
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
        u->request = remote_put(s->remote.server, u->compiled->key, u->fd, on_answer, u);
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
    list_init(&u->link);
    list_append(&r->uploads, &u->link);
    service_hold(s);
    work_submit(s->loop, &u->work, make_run, make_done);
}

void service_publish_end(struct code_service *s)
{
    list_for_each_safe (node, after, &s->remote.uploads) {
        struct upload *u = list_entry(node, struct upload, link);

        if (!u->request)
            continue; /* make_done() will see */
        s->remote.counters.upload_drops++;
        upload_free(u);
    }
}
