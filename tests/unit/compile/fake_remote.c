#include "fake_remote.h"

#include <sys/mman.h>
#include <unistd.h>

#include "tests/support/unit.h"
#include "util/list.h"

struct remote {
    uv_idle_t later; /* closing takes a turn of the loop */
    char url[64];
    void (*closed)(void *context);
    void *context;
};

struct remote_request {
    struct list link;
    bool put;
    int fd;
    remote_done *done;
    void *context;
};

static struct list gets = {&gets, &gets}, puts_ = {&puts_, &puts_};
static unsigned servers, late, cancelled, good;
static bool rests;

const char *const remote_state_names[] = {"starting", "serving", "resting", "down"};

static unsigned count(const struct list *l)
{
    unsigned n = 0;

    for (const struct list *i = l->next; i != l; i = i->next)
        n++;
    return n;
}

void fake_remote_reset(void)
{
    assert_true(list_empty(&gets) && list_empty(&puts_));
    servers = late = cancelled = good = 0;
    rests = false;
}

void fake_remote_rest(void)
{
    rests = true;
}

unsigned fake_remote_servers(void)
{
    return servers;
}

unsigned fake_remote_waiting(void)
{
    return count(&gets);
}

unsigned fake_remote_late(void)
{
    return late;
}

unsigned fake_remote_cancelled(void)
{
    return cancelled;
}

unsigned fake_remote_good(void)
{
    return good;
}

unsigned fake_remote_puts(void)
{
    return count(&puts_);
}

static void end(struct list *of, enum remote_status status, int fd)
{
    struct list *node = list_pop(of);
    struct remote_request q;

    assert_non_null(node);
    q = *list_entry(node, struct remote_request, link);
    free(list_entry(node, struct remote_request, link));
    if (q.fd >= 0)
        close(q.fd);
    q.done(q.context, status, fd, "");
}

void fake_remote_answer(const void *bytes, size_t size)
{
    int fd = memfd_create("fake", MFD_ALLOW_SEALING | MFD_CLOEXEC);

    assert_int_equal(write(fd, bytes, size), size);
    assert_int_equal(remote_body_seal(fd), 0);
    end(&gets, REMOTE_HIT, fd);
}

void fake_remote_miss(void)
{
    end(&gets, REMOTE_MISS, -1);
}

void fake_remote_put_done(bool stored)
{
    end(&puts_, stored ? REMOTE_HIT : REMOTE_FAILED, -1);
}

/* ---- remote.h ---- */

struct remote *remote_new(uv_loop_t *loop, const struct remote_config *config, struct error *e)
{
    struct remote *r = calloc(1, sizeof(*r));

    servers++;
    strncpy(r->url, config->url, sizeof(r->url) - 1);
    uv_idle_init(loop, &r->later);
    r->later.data = r;
    return r;
}

bool remote_is(const struct remote *r, const struct remote_config *config)
{
    return !strcmp(r->url, config->url);
}

static void handle_closed(uv_handle_t *handle)
{
    struct remote *r = handle->data;

    r->closed(r->context);
    free(r);
}

static void drop(struct list *of)
{
    while (!list_empty(of)) {
        struct remote_request *q = list_entry(list_pop(of), struct remote_request, link);

        if (q->fd >= 0)
            close(q->fd);
        free(q);
    }
}

void remote_close(struct remote *r, void (*closed)(void *context), void *context)
{
    drop(&gets);
    drop(&puts_);
    r->closed = closed;
    r->context = context;
    uv_close((uv_handle_t *)&r->later, handle_closed);
}

static struct remote_request *ask_it(struct list *of, int fd, remote_done *done, void *context)
{
    struct remote_request *q = rests ? NULL : calloc(1, sizeof(*q));

    if (!q) {
        if (fd >= 0)
            close(fd);
        return NULL;
    }
    *q = (struct remote_request){.put = of == &puts_, .fd = fd, .done = done, .context = context};
    list_append(of, &q->link);
    return q;
}

struct remote_request *remote_get(struct remote *r, const unsigned char key[REMOTE_KEY_BYTES], remote_done *done,
                                  void *context)
{
    return ask_it(&gets, -1, done, context);
}

struct remote_request *remote_put(struct remote *r, const unsigned char key[REMOTE_KEY_BYTES], int fd,
                                  remote_done *done, void *context)
{
    return ask_it(&puts_, fd, done, context);
}

void remote_cancel(struct remote_request *q, bool too_slow)
{
    assert_false(q->put);
    *(too_slow ? &late : &cancelled) += 1;
    list_remove(&q->link);
    free(q);
}

void remote_judge(struct remote *r, bool is_good, const char *why)
{
    assert_true(is_good || *why);
    good += is_good;
}

void remote_report(const struct remote *r, struct remote_report *ret)
{
    *ret = (struct remote_report){.state = rests ? REMOTE_RESTING : REMOTE_SERVING};
}
