/* The daemon's side of the store with helpers of the test's own: those that stop anywhere on the way are given up, and
 * whoever waited for them is told. For the code that is tested
 * time passes FASTER times as fast (CMakeLists.txt wraps its clock). */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "remote/remote.h"
#include "tests/support/unit.h"

enum {
    FASTER = 20, /* seconds of the code's are longer than a busy machine holds the test up */
    TIMEOUT_MS = 1000,
    HOUR_MS = 3600000,
    MANY = 2000
};

uint64_t __real_uv_now(const uv_loop_t *loop);
uint64_t __wrap_uv_now(const uv_loop_t *loop);
int __real_uv_timer_start(uv_timer_t *timer, uv_timer_cb call, uint64_t timeout_ms, uint64_t repeat_ms);
int __wrap_uv_timer_start(uv_timer_t *timer, uv_timer_cb call, uint64_t timeout_ms, uint64_t repeat_ms);

uint64_t __wrap_uv_now(const uv_loop_t *loop)
{
    return __real_uv_now(loop) * FASTER;
}

int __wrap_uv_timer_start(uv_timer_t *timer, uv_timer_cb call, uint64_t timeout_ms, uint64_t repeat_ms)
{
    return __real_uv_timer_start(timer, call, (timeout_ms + FASTER - 1) / FASTER, (repeat_ms + FASTER - 1) / FASTER);
}

/* A store, and the socket that its helpers are reached by, where they are not processes of this program. */
struct fixture {
    uv_loop_t loop;
    uv_timer_t tick;
    char folder[64];
    struct sockaddr_un address;
    int listener, helper; /* helper: the connection that is served; -1: none */
    struct remote *remote;
    bool closed;
};

struct answer {
    bool done;
    enum remote_status status;
    char why[REMOTE_WHY_SIZE];
};

static void on_tick(uv_timer_t *timer)
{
}

/* Turns the loop once, for at most 5 ms. */
static void turn(struct fixture *f)
{
    uv_run(&f->loop, UV_RUN_ONCE);
}

static int open_with(void **state, unsigned timeout_ms, bool processes)
{
    static struct fixture fixture;
    struct fixture *f = *state = &fixture;
    struct remote_config config = {.url = "http://nowhere", .timeout_ms = timeout_ms, .max_bytes = 1 << 20};
    struct error e;

    fixture = (struct fixture){.helper = -1, .folder = "/tmp/remote-XXXXXX"};
    assert_non_null(mkdtemp(f->folder));
    f->address.sun_family = AF_UNIX;
    snprintf(f->address.sun_path, sizeof(f->address.sun_path), "%.40s/helper.sock", f->folder);
    f->listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    assert_int_equal(bind(f->listener, (struct sockaddr *)&f->address, sizeof(f->address)), 0);
    assert_int_equal(listen(f->listener, 16), 0);
    assert_int_equal(uv_loop_init(&f->loop), 0);
    uv_timer_init(&f->loop, &f->tick);
    __real_uv_timer_start(&f->tick, on_tick, 5, 5);
    config.helper = processes ? NULL : f->address.sun_path;
    f->remote = remote_new(&f->loop, &config, &e);
    assert_non_null(f->remote);
    return 0;
}

static int open_of_processes(void **state)
{
    return open_with(state, TIMEOUT_MS, true);
}

static int fixture_open(void **state)
{
    return open_with(state, TIMEOUT_MS, false);
}

static int open_patient(void **state)
{
    return open_with(state, HOUR_MS, false);
}

static void on_closed(void *context)
{
    *(bool *)context = true;
}

static int fixture_close(void **state)
{
    struct fixture *f = *state;

    uv_close((uv_handle_t *)&f->tick, NULL);
    remote_close(f->remote, on_closed, &f->closed);
    while (uv_run(&f->loop, UV_RUN_ONCE))
        ;
    assert_true(f->closed);
    assert_int_equal(uv_loop_close(&f->loop), 0);
    if (f->helper >= 0)
        close(f->helper);
    close(f->listener);
    unlink(f->address.sun_path);
    rmdir(f->folder);
    return 0;
}

#define REMOTE_TEST(name) TEST_OF(struct fixture *f, name, fixture_open, fixture_close)

/* A helper begins, in the place of an earlier one. */
static void helper_accept(struct fixture *f)
{
    const int last = f->helper;
    struct remote_setup setup;
    int fd;

    while ((f->helper = accept4(f->listener, NULL, NULL, SOCK_CLOEXEC)) < 0)
        turn(f);
    if (last >= 0)
        close(last); /* it is the daemon that gives it up */
    assert_int_equal(remote_receive(f->helper, &setup, sizeof(setup), 0, &fd), sizeof(setup));
    assert_string_equal(setup.url, "http://nowhere");
}

static void helper_say(struct fixture *f, enum remote_event_kind kind, enum remote_answer answer, uint64_t id)
{
    const struct remote_event event = {.kind = kind, .answer = answer, .id = id};

    assert_int_equal(remote_send(f->helper, &event, sizeof(event), MSG_DONTWAIT, -1), 0);
}

static void helper_begin(struct fixture *f)
{
    struct remote_report report;

    helper_accept(f);
    helper_say(f, REMOTE_EVENT_READY, REMOTE_ANSWER_OK, 0);
    do {
        turn(f);
        remote_report(f->remote, &report);
    } while (report.state != REMOTE_SERVING);
}

/* Whether the helper finds an order of that kind in its socket; others are passed over. */
static bool helper_finds(struct fixture *f, enum remote_order_kind kind, uint64_t *ret_id)
{
    struct remote_order order;
    int fd;

    while (remote_receive(f->helper, &order, sizeof(order), MSG_DONTWAIT, &fd) > 0) {
        if (fd >= 0)
            close(fd);
        *ret_id = order.id;
        if (order.kind == kind)
            return true;
    }
    return false;
}

static uint64_t helper_order(struct fixture *f, enum remote_order_kind kind)
{
    uint64_t id;

    while (!helper_finds(f, kind, &id))
        turn(f);
    return id;
}

static void on_answer(void *context, enum remote_status status, int fd, const char *why)
{
    struct answer *a = context;

    assert_false(a->done);
    assert_int_equal(fd, -1);
    a->done = true;
    a->status = status;
    snprintf(a->why, sizeof(a->why), "%s", why ? why : "");
}

static struct remote_request *get(struct fixture *f, struct answer *a)
{
    static const unsigned char key[REMOTE_KEY_BYTES] = {1};

    *a = (struct answer){0};
    return remote_get(f->remote, key, on_answer, a);
}

static struct remote_request *put(struct fixture *f, struct answer *a)
{
    static const unsigned char key[REMOTE_KEY_BYTES] = {2};
    int fd = memfd_create("body", MFD_CLOEXEC | MFD_ALLOW_SEALING);

    assert_int_equal(remote_body_seal(fd), 0);
    *a = (struct answer){0};
    return remote_put(f->remote, key, fd, on_answer, a);
}

static void until_answered(struct fixture *f, const struct answer *a)
{
    while (!a->done)
        turn(f);
}

static void assert_given_up(struct fixture *f, struct answer *a, const char *why)
{
    until_answered(f, a);
    assert_int_equal(a->status, REMOTE_FAILED);
    assert_string_equal(a->why, why);
}

/* The next helper is asked, and heard. */
static void assert_next_serves(struct fixture *f)
{
    struct answer a;

    helper_begin(f);
    assert_non_null(get(f, &a));
    helper_say(f, REMOTE_EVENT_ANSWER, REMOTE_ANSWER_MISSING, helper_order(f, REMOTE_ORDER_GET));
    until_answered(f, &a);
    assert_int_equal(a.status, REMOTE_MISS);
}

REMOTE_TEST(test_it_does_not_get_ready)
{
    struct answer a, b;
    int deaf;

    helper_accept(f);
    assert_non_null(get(f, &a));
    assert_non_null(put(f, &b));
    assert_given_up(f, &a, "the helper does not get ready");
    assert_given_up(f, &b, "the helper does not get ready");
    assert_non_null(get(f, &a)); /* the next one does not even accept */
    assert_given_up(f, &a, "the helper does not get ready");
    deaf = accept4(f->listener, NULL, NULL, SOCK_CLOEXEC);
    assert_true(deaf >= 0); /* the connection that was given up */
    close(deaf);
    assert_next_serves(f);
}

/* It hangs after one answer; the next one at an upload. */
REMOTE_TEST(test_it_does_not_answer)
{
    struct answer all[5];

    helper_begin(f);
    for (unsigned i = 0; i < 5; i++)
        assert_non_null(i < 3 ? get(f, &all[i]) : put(f, &all[i]));
    helper_say(f, REMOTE_EVENT_ANSWER, REMOTE_ANSWER_MISSING, helper_order(f, REMOTE_ORDER_GET));
    until_answered(f, &all[0]);
    assert_int_equal(all[0].status, REMOTE_MISS);
    for (unsigned i = 1; i < 5; i++)
        assert_given_up(f, &all[i], "the helper does not answer");
    helper_begin(f);
    assert_non_null(put(f, &all[0]));
    helper_order(f, REMOTE_ORDER_PUT);
    assert_given_up(f, &all[0], "the helper does not answer");
    assert_next_serves(f);
}

/* The compiler was faster each time, so that nobody waits for an answer: it is seen all the same. */
REMOTE_TEST(test_nobody_waits_for_it)
{
    struct answer a;

    helper_begin(f);
    remote_cancel(get(f, &a), true);
    assert_next_serves(f);
    assert_false(a.done);
}

/* Questions that are taken back leave nothing to be waited for, and fill the socket. Returns one that does not fit. */
static struct remote_request *fill_socket(struct fixture *f, struct answer *a)
{
    for (unsigned i = 0; i < MANY; i++) {
        struct remote_request *q = get(f, a);

        assert_non_null(q);
        remote_cancel(q, false);
    }
    return get(f, a);
}

REMOTE_TEST(test_it_does_not_read)
{
    struct answer a;

    helper_begin(f);
    assert_non_null(fill_socket(f, &a));
    assert_given_up(f, &a, "the helper does not read");
    assert_next_serves(f);
}

TEST_OF(struct fixture *f, test_it_reads_late, open_patient, fixture_close)
{
    struct answer a;
    uint64_t id;

    helper_begin(f);
    assert_non_null(fill_socket(f, &a));
    for (; !a.done; turn(f))
        if (helper_finds(f, REMOTE_ORDER_GET, &id))
            helper_say(f, REMOTE_EVENT_ANSWER, REMOTE_ANSWER_MISSING, id);
    assert_int_equal(a.status, REMOTE_MISS);
}

/* ---- a process of the daemon's own: this program, which stops at once ---- */

static int close_without_zombies(void **state)
{
    fixture_close(state); /* also of the next one, which is stopped, too */
    assert_int_equal(waitpid(-1, NULL, WNOHANG), -1);
    assert_int_equal(errno, ECHILD);
    return 0;
}

TEST_OF(struct fixture *f, test_a_stopped_process_is_killed, open_of_processes, close_without_zombies)
{
    struct remote_report report;
    struct answer a;

    assert_non_null(get(f, &a));
    assert_given_up(f, &a, "the helper does not get ready");
    do {
        turn(f);
        remote_report(f->remote, &report);
    } while (!*report.why);
}

static int be_a_helper(int argc, char **argv)
{
    if (!remote_helper_wanted(argc, argv))
        return -1;
    prctl(PR_SET_PDEATHSIG, SIGKILL); /* where the test fails */
    return raise(SIGSTOP);
}

FIRST(be_a_helper)
