/* Finding the daemon, hello, and what happens when the connection ends. */
#include <pthread.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include "session/client.h"
#include "test.h"

static void info_is_read(void **state)
{
    struct fake *f = fake_start(fake_serve_well, NULL);
    kops_client *client = connect_to(f);
    const struct kops_info *info = kops_info(client);
    const struct kops_op *op = kops_info_op(client, "gemm");

    (void)state;
    assert_string_equal(info->server, "kopsd 9.8.7");
    assert_string_equal(info->socket, fake_path(f));
    assert_int_equal(info->pid, 4711);
    assert_int_equal(info->limits.message_bytes, 100000);
    assert_int_equal(info->limits.inflight, 64);
    assert_string_equal(kops_info_device(client, NULL)->uuid, "host");
    assert_string_equal(kops_info_device(client, "0")->arch, "avx2");
    assert_ptr_equal(kops_info_device(client, "host"), info->devices[0]);
    assert_null(info->devices[1]);
    assert_null(kops_info_device(client, "1"));
    assert_true(kops_info_feature(client, "memfd"));
    assert_false(kops_info_feature(client, "cuda_ipc"));
    assert_non_null(op);
    assert_null(kops_info_op(client, "no_such_op"));
    assert_string_equal(op->inputs[1], "b");
    assert_null(op->inputs[2]);
    assert_string_equal(op->dtypes[1], "f64");
    assert_int_equal(op->attrs[0]->fallback.type, KOPS_ATTR_FLOAT);
    assert_true(op->attrs[0]->fallback.value.real == 1.0);
    assert_null(op->attrs[0]->choices);
    assert_string_equal(op->attrs[1]->fallback.value.text, "highest");
    assert_string_equal(op->attrs[1]->choices[1], "high");
    assert_null(op->attrs[2]);
    assert_string_equal(op->variants[0]->device, "host");
    assert_string_equal(op->variants[0]->names[1], "blocked");
    kops_close(client);
    fake_stop(f);
}

static void isolation_is_asked_for_and_told(void **state)
{
    struct fake *f = fake_start(fake_serve_well, NULL);
    char asked[] = "connection";
    struct kops_connect_options options = {.socket = fake_path(f), .isolate = asked};
    kops_client *client;

    (void)state;
    assert_ok(kops_connect(&options, &client, NULL));
    assert_string_equal(kops_info(client)->isolation, "connection");
    kops_close(client);
    client = connect_to(f);
    assert_string_equal(kops_info(client)->isolation, "user"); /* as the fake daemon is configured */
    kops_close(client);
    fake_stop(f);
}

/* As in Python: a call waits as long as it takes, unless somebody says otherwise. */
static void without_a_timeout_there_is_no_limit(void **state)
{
    struct fake *f = fake_start(fake_serve_well, NULL);
    struct kops_connect_options options = {.socket = fake_path(f), .timeout_ms = 1234};
    kops_client *client = connect_to(f);

    (void)state;
    assert_true(client_deadline(client, 0) == DEADLINE_NEVER);
    assert_true(client_deadline(client, 10000) != DEADLINE_NEVER);
    kops_close(client);
    assert_ok(kops_connect(&options, &client, NULL));
    assert_true(client_deadline(client, 0) != DEADLINE_NEVER);
    assert_true(client_deadline(client, KOPS_FOREVER) == DEADLINE_NEVER);
    kops_close(client);
    fake_stop(f);
}

static void nothing_answers(void **state)
{
    struct kops_connect_options options = {.socket = "/nonexistent/kopsd.sock"};
    struct kops_error error;
    kops_client *client = NULL;

    (void)state;
    assert_int_equal(kops_connect(&options, &client, &error), KOPS_ERR_CONNECT_FAILED);
    assert_null(client);
    assert_int_equal(error.code, KOPS_ERR_CONNECT_FAILED);
    assert_non_null(strstr(error.message, "/nonexistent/kopsd.sock"));
}

static void serve_nothing(struct fake_connection *c, void *context)
{
    struct fake_request r;

    (void)context;
    while (fake_next(c, &r))
        ;
}

static void a_server_that_says_nothing(void **state)
{
    struct fake *f = fake_start(serve_nothing, NULL);
    struct kops_connect_options options = {.socket = fake_path(f), .connect_timeout_ms = 100};
    struct kops_error error;
    kops_client *client;

    (void)state;
    assert_int_equal(kops_connect(&options, &client, &error), KOPS_ERR_TIMEOUT);
    assert_non_null(strstr(error.message, fake_path(f)));
    assert_non_null(strstr(error.message, "does not answer"));
    fake_stop(f);
}

/* A socket that was named is the only one tried; without one, the runtime folder comes first. */
static void search_order(void **state)
{
    struct fake *f = fake_start(fake_serve_well, NULL);
    struct kops_error error;
    kops_client *client = NULL;
    char folder[128];

    (void)state;
    snprintf(folder, sizeof(folder), "%s", fake_path(f));
    *strrchr(folder, '/') = 0;
    setenv("KOPS_AUTOSTART", "0", 1);
    setenv("XDG_RUNTIME_DIR", folder, 1);
    setenv("KOPS_SOCKET", "/nonexistent/kopsd.sock", 1);
    assert_int_equal(kops_connect(NULL, &client, &error), KOPS_ERR_CONNECT_FAILED);
    assert_null(strstr(error.message, folder));
    unsetenv("KOPS_SOCKET");
    assert_ok(kops_connect(NULL, &client, &error));
    assert_string_equal(kops_info(client)->socket, fake_path(f));
    kops_close(client);
    setenv("XDG_RUNTIME_DIR", "/nonexistent", 1);
    if (access("/run/kopsd/kopsd.sock", F_OK)) {
        assert_int_equal(kops_connect(NULL, &client, &error), KOPS_ERR_CONNECT_FAILED);
        assert_non_null(strstr(error.message, "/nonexistent/kopsd.sock"));
        assert_non_null(strstr(error.message, "/run/kopsd/kopsd.sock"));
    }
    fake_stop(f);
}

static void serve_mismatch(struct fake_connection *c, void *context)
{
    struct fake_request r;

    (void)context;
    while (fake_next(c, &r))
        fake_reply_error(c, r.msgid, "protocol_mismatch", "this daemon speaks 2 to 3");
}

static void protocol_mismatch(void **state)
{
    struct fake *f = fake_start(serve_mismatch, NULL);
    struct kops_connect_options options = {.socket = fake_path(f)};
    struct kops_error error;
    kops_client *client = NULL;

    (void)state;
    assert_int_equal(kops_connect(&options, &client, &error), KOPS_ERR_PROTOCOL_MISMATCH);
    assert_string_equal(error.message, "this daemon speaks 2 to 3");
    fake_stop(f);
}

static void reserved_must_be_zero(void **state)
{
    struct kops_connect_options options = {.socket = "/nonexistent", .reserved = {0, 1}};
    kops_client *client;

    (void)state;
    assert_int_equal(kops_connect(&options, &client, NULL), KOPS_ERR_BAD_ARGUMENT);
}

/* ---- the end of a connection ---- */

static void serve_one_then_hang_up(struct fake_connection *c, void *context)
{
    struct fake_request r;

    (void)context;
    while (fake_next(c, &r)) {
        if (!strcmp(r.method, "run") && c->number == 1)
            return;
        fake_answer(c, &r);
    }
}

static void lost_then_connects_anew(void **state)
{
    struct fake *f = fake_start(serve_one_then_hang_up, NULL);
    kops_client *client = connect_to(f);
    struct kops_error error;
    kops_buffer *buffer;
    struct kops_tensor t;

    (void)state;
    assert_ok(kops_buffer_alloc_shared(client, 4096, &buffer, &error));
    t = kops_vector(buffer, KOPS_F32, 1024);
    assert_int_equal(kops_square(client, &t, &t, NULL, NULL, &error), KOPS_ERR_CONNECTION_LOST);
    assert_int_equal(error.code, KOPS_ERR_CONNECTION_LOST);
    /* A new connection, on which the buffer is registered again. */
    assert_ok(kops_square(client, &t, &t, NULL, NULL, &error));
    assert_ok(kops_ping(client, 0, &error));
    kops_buffer_release(buffer);
    kops_close(client);
    fake_stop(f);
}

/* Signalled by the handler when it has closed its end. */
struct hang_up {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool closed;
};

static void serve_hello_then_close(struct fake_connection *c, void *context)
{
    struct hang_up *h = context;
    struct fake_request r;

    if (c->number > 1) {
        fake_serve_well(c, NULL);
        return;
    }
    fake_next(c, &r);
    fake_answer(c, &r);
    close(c->fd);
    pthread_mutex_lock(&h->lock);
    c->fd = -1;
    h->closed = true;
    pthread_cond_signal(&h->changed);
    pthread_mutex_unlock(&h->lock);
}

/* A request that finds the daemon gone before a byte was sent is sent to the new one: the caller notices nothing. */
static void idle_connection_lost_unnoticed(void **state)
{
    struct hang_up h = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};
    struct fake *f = fake_start(serve_hello_then_close, &h);
    kops_client *client = connect_to(f);
    struct kops_error error;

    (void)state;
    pthread_mutex_lock(&h.lock);
    while (!h.closed)
        pthread_cond_wait(&h.changed, &h.lock);
    pthread_mutex_unlock(&h.lock);
    assert_ok(kops_ping(client, 0, &error));
    kops_close(client);
    fake_stop(f);
}

static void serve_close_at_once(struct fake_connection *c, void *context)
{
    (void)c;
    (void)context;
}

/* No endless chase after a daemon that accepts and hangs up. */
static void hangs_up_always(void **state)
{
    struct fake *f = fake_start(serve_close_at_once, NULL);
    struct kops_connect_options options = {.socket = fake_path(f), .reconnect_timeout_ms = 100};
    struct kops_error error;
    kops_client *client;

    (void)state;
    assert_int_equal(kops_connect(&options, &client, &error), KOPS_ERR_CONNECTION_LOST);
    options.reconnect_timeout_ms = KOPS_NO_RECONNECT;
    assert_int_equal(kops_connect(&options, &client, &error), KOPS_ERR_CONNECTION_LOST);
    fake_stop(f);
}

static void serve_complaint(struct fake_connection *c, void *context)
{
    static const unsigned char complaint[] = "\x93\x02\xa5"
                                             "error\x91\x83\xa4"
                                             "code\xae"
                                             "protocol_error\xa7"
                                             "message\xab"
                                             "depth is 17\xa6"
                                             "detail\x80";
    struct fake_request r;

    (void)context;
    while (fake_next(c, &r)) {
        if (!strcmp(r.method, "ping")) {
            fake_send(c, complaint, sizeof(complaint) - 1, NULL, 0);
            return;
        }
        fake_answer(c, &r);
    }
}

static void daemon_says_why(void **state)
{
    struct fake *f = fake_start(serve_complaint, NULL);
    kops_client *client = connect_to(f);
    struct kops_error error;

    (void)state;
    assert_int_equal(kops_ping(client, 0, &error), KOPS_ERR_PROTOCOL_ERROR);
    assert_string_equal(error.message, "depth is 17");
    kops_close(client);
    fake_stop(f);
}

static void gone_for_good(void **state)
{
    struct fake *f = fake_start(serve_one_then_hang_up, NULL);
    struct kops_connect_options options = {.socket = fake_path(f), .reconnect_timeout_ms = KOPS_NO_RECONNECT};
    struct kops_error error;
    kops_client *client = NULL;
    struct tagged t;

    (void)state;
    assert_ok(kops_connect(&options, &client, &error));
    fake_vanish(f);
    assert_int_equal(kops_run(client, tagged_run(&t, "x"), NULL, &error), KOPS_ERR_CONNECTION_LOST);
    assert_int_equal(kops_ping(client, 0, &error), KOPS_ERR_CONNECT_FAILED);
    kops_close(client);
    fake_stop(f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(info_is_read),
        cmocka_unit_test(isolation_is_asked_for_and_told),
        cmocka_unit_test(without_a_timeout_there_is_no_limit),
        cmocka_unit_test(nothing_answers),
        cmocka_unit_test(a_server_that_says_nothing),
        cmocka_unit_test(search_order),
        cmocka_unit_test(protocol_mismatch),
        cmocka_unit_test(reserved_must_be_zero),
        cmocka_unit_test(lost_then_connects_anew),
        cmocka_unit_test(idle_connection_lost_unnoticed),
        cmocka_unit_test(hangs_up_always),
        cmocka_unit_test(daemon_says_why),
        cmocka_unit_test(gone_for_good),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
