/* A cache that machines share: who is asked when, who wins, what is refused, what is sent. */
#include <stdio.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "compile/signed.h"
#include "remote/remote.h"
#include "support.h"
#include "util/list.h"

/* ---- a shared cache that does nothing by itself: all of remote/remote.h ---- */

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
static struct {
    unsigned servers;         /* that were made */
    unsigned late, cancelled; /* gets cancelled: since the compiler was faster, for another reason */
    unsigned good;            /* judgements */
    bool rests;               /* takes no questions and no modules */
} fake_remote;

const char *const remote_state_names[] = {"starting", "serving", "resting", "down"};

static unsigned count(const struct list *l)
{
    unsigned n = 0;

    for (const struct list *i = l->next; i != l; i = i->next)
        n++;
    return n;
}

static void fake_remote_reset(void)
{
    assert_true(list_empty(&gets) && list_empty(&puts_));
    memset(&fake_remote, 0, sizeof(fake_remote));
}

static struct remote_request take(struct list *of)
{
    struct remote_request *q = list_entry(list_pop(of), struct remote_request, link), copy = *q;

    free(q);
    if (copy.fd >= 0)
        close(copy.fd);
    return copy;
}

/* Answers the oldest question. */
static void end(struct list *of, enum remote_status status, int fd)
{
    struct remote_request q = take(of);

    q.done(q.context, status, fd, "");
}

/* The answer to the oldest get: these bytes in a sealed memfd. */
static void answer(const struct buffer *b)
{
    int fd = memfd_create("fake", MFD_ALLOW_SEALING | MFD_CLOEXEC);

    assert_int_equal(write(fd, b->data + b->start, buffer_length(b)), buffer_length(b));
    assert_int_equal(remote_body_seal(fd), 0);
    end(&gets, REMOTE_HIT, fd);
}

struct remote *remote_new(uv_loop_t *of, const struct remote_config *config, struct error *e)
{
    struct remote *r = calloc(1, sizeof(*r));

    fake_remote.servers++;
    strncpy(r->url, config->url, sizeof(r->url) - 1);
    uv_idle_init(of, &r->later);
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

void remote_close(struct remote *r, void (*closed)(void *context), void *context)
{
    while (!list_empty(&gets))
        take(&gets);
    while (!list_empty(&puts_))
        take(&puts_);
    r->closed = closed;
    r->context = context;
    uv_close((uv_handle_t *)&r->later, handle_closed);
}

static struct remote_request *ask_it(struct list *of, int fd, remote_done *done, void *context)
{
    struct remote_request *q = fake_remote.rests ? NULL : calloc(1, sizeof(*q));

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
    *(too_slow ? &fake_remote.late : &fake_remote.cancelled) += 1;
    list_remove(&q->link);
    free(q);
}

void remote_judge(struct remote *r, bool is_good, const char *why)
{
    assert_true(is_good || *why);
    fake_remote.good += is_good;
}

void remote_report(const struct remote *r, struct remote_report *ret)
{
    *ret = (struct remote_report){.state = fake_remote.rests ? REMOTE_RESTING : REMOTE_SERVING};
}

/* ---- the tests ---- */

enum { FOREVER_MS = 1000000 };

static struct signing_key key;

static int make_keys(void **state)
{
    MUST(signing_key_make(folder_path(folder_new(), "key"), &key, &e));
    return loop_open(state);
}

static struct code_remote_config remote_of(unsigned wait_ms, bool publishes)
{
    struct code_remote_config c = {
        .server = {.url = "http://fake"}, .trust = {.n = 1}, .publishes = publishes, .key = key, .wait_ms = wait_ms};

    memcpy(c.trust.keys[0], key.public, SIGNING_PUBLIC_BYTES);
    return c;
}

static struct code_service *fresh(unsigned wait_ms, bool publishes)
{
    struct code_remote_config c = remote_of(wait_ms, publishes);
    struct code_service *s;

    fake_remote_reset();
    s = service_open(NULL);
    code_service_use_remote(s, &c);
    assert_int_equal(fake_remote.servers, 1);
    return s;
}

static struct code_remote_counters counters(const struct code_service *s)
{
    struct code_remote_counters n;
    struct remote_report report;

    assert_true(code_service_remote(s, &n, &report));
    return n;
}

static void until_asked(unsigned n)
{
    while (count(&gets) < n)
        uv_run(&loop, UV_RUN_ONCE);
}

static void compile_here(struct asker *a)
{
    until_compiling(1);
    fake_succeed(module_new(3, 1000), false);
    until_answered(a);
    assert_int_equal(a->origin, CODE_COMPILED);
}

/* The key of a source is what the service made of it: a first asker without a shared cache learns it. */
static void key_of(const char *source, unsigned char ret_key[KEY_BYTES])
{
    struct code_service *s = service_open(NULL);
    struct asker a = {0};

    ask(&a, s, source);
    compile_here(&a);
    memcpy(ret_key, a.compiled->key, KEY_BYTES);
    close_now(s);
}

/* A module for that source, as another machine has signed it; its bytes go with the test. */
static struct buffer sign(const char *source)
{
    struct compiled *c = module_new(7, 1000);
    struct buffer body;

    key_of(source, c->key);
    buffer_init(&body, SIGNED_MAX);
    assert_int_equal(signed_make(c, &key, (uint64_t)time(NULL), &body), 0);
    compiled_unref(c);
    opened(body.data, free);
    return body;
}

/* The compiler is done while the answer is being looked at. */
OPENING_TEST(a_race_to_the_end)
{
    const struct buffer body = sign("a");
    struct code_service *s = fresh(0, false);
    struct asker a = {0};

    ask(&a, s, "a");
    until_compiling(1);
    answer(&body);                            /* to the pool */
    fake_succeed(module_new(3, 1000), false); /* before its result is seen */
    assert_int_equal(a.answers, 1);
    assert_int_equal(a.origin, CODE_COMPILED);
    until_idle();
    assert_int_equal(a.answers, 1);
    assert_int_equal(fake_remote.good, 1); /* it was right, and counts as that */
}

OPENING_TEST(a_source_that_is_wrong_ends_the_question)
{
    struct code_service *s = fresh(0, true);
    struct asker a = {0};

    ask(&a, s, "a");
    until_compiling(1);
    fake_fail("source", "k.cu(1): error");
    until_answered(&a);
    assert_null(a.compiled);
    assert_int_equal(count(&gets), 0);
    assert_int_equal(fake_remote.late, 0); /* that is nothing against it */
    assert_int_equal(fake_remote.cancelled, 1);
    until_idle();
    assert_int_equal(count(&puts_), 0);
}

/* The askers leave, the settings change, or all ends, while the question is asked or its answer looked at. */
OPENING_TEST(it_goes_at_any_time)
{
    enum { THEY_LEAVE, TO_NONE, TO_ANOTHER, THE_END, KINDS };
    const struct buffer body = sign("a");

    for (unsigned i = 0; i < 2 * KINDS; i++) {
        const unsigned kind = i / 2;
        struct code_service *s = fresh(FOREVER_MS, true);
        struct code_remote_config none = {0}, another = remote_of(FOREVER_MS, true);
        struct asker a = {0}, b = {0};

        another.server.url = "http://another";
        ask(&a, s, "a");
        ask(&b, s, "a");
        until_asked(1);
        code_request_cancel(b.request);
        if (i % 2)
            answer(&body);
        else
            assert_int_equal(count(&gets), 1);
        if (kind == THEY_LEAVE) {
            code_request_cancel(a.request);
            until_idle();
            assert_int_equal(fake_remote.cancelled, i == 0);
            assert_int_equal(fake_compiler.begun, 0);
        } else if (kind != THE_END) {
            code_service_use_remote(s, kind == TO_NONE ? &none : &another);
            assert_int_equal(fake_remote.servers, kind == TO_NONE ? 1 : 2);
            compile_here(&a);
        }
        close_now(s);
        assert_int_equal(a.answers, kind == TO_NONE || kind == TO_ANOTHER);
        assert_int_equal(b.answers, 0);
    }
}

OPENING_TEST(uploads_are_bounded)
{
    enum { MANY = 70, BOUND = 64 };
    struct code_service *s = fresh(FOREVER_MS, true);
    struct asker last = {0};

    for (unsigned i = 0; i < MANY; i++) {
        struct asker a = {0};
        char source[16];

        snprintf(source, sizeof(source), "source %u", i);
        ask(&a, s, source);
        until_asked(1);
        end(&gets, REMOTE_MISS, -1);
        compile_here(&a);
    }
    until_idle();
    assert_int_equal(count(&puts_), BOUND);
    assert_int_equal(counters(s).upload_drops, MANY - BOUND);
    for (unsigned i = 0; i < 10; i++)
        end(&puts_, REMOTE_HIT, -1);
    assert_int_equal(counters(s).uploads, 10);
    fake_remote.rests = true; /* then a compile begins at once */
    ask(&last, s, "last");
    compile_here(&last);
    until_idle();
    assert_int_equal(counters(s).upload_drops, MANY - BOUND + 1);
    close_now(s); /* with those that are on their way */
}

ALL_TESTS_WITH(make_keys, loop_close)
