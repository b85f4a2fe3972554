/* A daemon that ends and comes back: who waits, for how long, and what calls become. */
#include <stdio.h>

#include "scripted.h"

static kops_client *connect_with_patience(const struct fake *f, int64_t reconnect_ms)
{
    struct kops_connect_options options = {.socket = fake_path(f), .reconnect_timeout_ms = reconnect_ms};
    struct kops_error error;
    kops_client *client = NULL;

    if (kops_connect(&options, &client, &error))
        fail_msg("connect: %s", error.message);
    return client;
}

/* One run that does no harm twice, against the script. */
static void expect_run(const char *script, enum kops_code code, unsigned work, const char *said)
{
    struct scripted s = SCRIPTED(.script = script);
    struct fake *f = fake_start(scripted_serve, &s);
    kops_client *client = connect_to(f);
    struct kops_error error;
    struct tagged t;

    if (kops_run(client, tagged_run(&t, "x"), NULL, &error) != code)
        fail_msg("\"%s\": %s: %s", script, kops_code_name(error.code), error.message);
    if (!code && (error.code || error.message[0]))
        fail_msg("\"%s\": it went well, and says \"%s\"", script, error.message);
    if (said && !strstr(error.message, said))
        fail_msg("\"%s\": \"%s\" lacks \"%s\"", script, error.message, said);
    assert_int_equal(scripted_look(&s).work, work);
    /* Whatever it was, the client goes on. */
    assert_ok(kops_run(client, tagged_run(&t, "y"), NULL, &error));
    kops_close(client);
    fake_stop(f);
}

static void repeated_once(void **state)
{
    (void)state;
    expect_run("x", KOPS_OK, 2, NULL);
    expect_run("k", KOPS_OK, 2, NULL);
    expect_run("xx", KOPS_ERR_CONNECTION_LOST, 2, "repeated once");
    expect_run("p", KOPS_ERR_PROTOCOL_ERROR, 1, "as it");
}

static void device_lost_is_repeated_once(void **state)
{
    (void)state;
    expect_run("d", KOPS_OK, 2, NULL);
    expect_run("D", KOPS_OK, 2, NULL); /* a daemon that says so and stays is left */
    expect_run("n", KOPS_OK, 2, NULL);
    expect_run("dd", KOPS_ERR_DEVICE_LOST, 2, "illegal address");
    expect_run("dd", KOPS_ERR_DEVICE_LOST, 2, "repeated once");
    expect_run("dx", KOPS_ERR_CONNECTION_LOST, 2, "repeated once");
}

/* The daemon has another process for the device: the error is the call's own, and the connection goes on. */
static void a_daemon_that_goes_on(void **state)
{
    struct scripted s = SCRIPTED(.script = "gt");
    struct fake *f = fake_start(scripted_serve, &s);
    kops_client *client = connect_to(f);
    struct kops_error error;
    struct tagged t;

    (void)state;
    assert_int_equal(kops_run(client, tagged_run(&t, "x"), NULL, &error), KOPS_ERR_DEVICE_LOST);
    assert_string_equal(error.message, "device_lost");
    assert_string_equal(kops_error_text(&error, "daemon"), "goes_on");
    assert_int_equal(kops_run(client, tagged_run(&t, "x"), NULL, &error), KOPS_ERR_JOB_TIMEOUT);
    assert_ok(kops_run(client, tagged_run(&t, "y"), NULL, &error));
    assert_int_equal(scripted_look(&s).work, 3);
    assert_int_equal(scripted_look(&s).connections, 1);
    kops_close(client);
    fake_stop(f);
}

/* What was refused never ran: any number of times. */
static void shutting_down_is_repeated(void **state)
{
    (void)state;
    expect_run("sss", KOPS_OK, 4, NULL);
    expect_run("SSS", KOPS_OK, 4, NULL);
    expect_run("sSx", KOPS_OK, 4, NULL);
    expect_run("Sxx", KOPS_ERR_CONNECTION_LOST, 3, NULL);
}

/* No more than the client has patience for. */
static void shutting_down_for_good(void **state)
{
    struct scripted s = SCRIPTED(.script = "ssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssss");
    struct fake *f = fake_start(scripted_serve, &s);
    kops_client *client = connect_with_patience(f, 40);
    struct kops_error error;
    struct tagged t;

    (void)state;
    assert_int_equal(kops_run(client, tagged_run(&t, "x"), NULL, &error), KOPS_ERR_SHUTTING_DOWN);
    assert_string_equal(error.message, "the daemon is ending");
    assert_true(scripted_look(&s).work > 1);
    kops_close(client);
    fake_stop(f);
}

static void no_reconnect(void **state)
{
    struct scripted s = SCRIPTED(.script = "sxd");
    struct fake *f = fake_start(scripted_serve, &s);
    struct kops_error error;
    kops_client *client;
    struct tagged t;

    (void)state;
    setenv("KOPS_RECONNECT_TIMEOUT", "0", 1);
    client = connect_to(f);
    unsetenv("KOPS_RECONNECT_TIMEOUT");
    assert_int_equal(kops_run(client, tagged_run(&t, "x"), NULL, &error), KOPS_ERR_SHUTTING_DOWN);
    assert_int_equal(kops_run(client, tagged_run(&t, "x"), NULL, &error), KOPS_ERR_CONNECTION_LOST);
    assert_int_equal(kops_run(client, tagged_run(&t, "x"), NULL, &error), KOPS_ERR_DEVICE_LOST);
    assert_ok(kops_run(client, tagged_run(&t, "x"), NULL, &error));
    assert_int_equal(scripted_look(&s).work, 4);
    kops_close(client);
    fake_stop(f);
}

/* Pipelined runs are the caller's to repeat. */
static void tickets_are_not_repeated(void **state)
{
    struct scripted s = SCRIPTED(.script = "x");
    struct fake *f = fake_start(scripted_serve, &s);
    kops_client *client = connect_to(f);
    struct kops_error error;
    kops_ticket ticket;
    struct tagged t;

    (void)state;
    assert_ok(kops_submit(client, tagged_run(&t, "x"), &ticket, &error));
    assert_int_equal(kops_wait(client, ticket, 0, NULL, &error), KOPS_ERR_CONNECTION_LOST);
    assert_non_null(strstr(error.message, "may or may not have run"));
    assert_ok(kops_submit(client, tagged_run(&t, "x"), &ticket, &error));
    assert_ok(kops_wait(client, ticket, 0, NULL, &error));
    assert_int_equal(scripted_look(&s).work, 2);
    kops_close(client);
    fake_stop(f);
}

/* Everything but work is harmless twice. */
static void definitions_are_repeated(void **state)
{
    static const char *const methods[] = {"ping", "register", "alloc", "compile", "kernel"};
    const struct kops_source source = {.text = "kernel"};
    const struct kops_signature signature = {.entry = "entry"};

    (void)state;
    fake_set_device("GPU-0"); /* whose memory the daemon makes */
    for (size_t i = 0; i < sizeof(methods) / sizeof(methods[0]); i++) {
        struct scripted s = SCRIPTED(.script = i % 2 ? "x" : "dS", .method = methods[i]);
        struct fake *f = fake_start(scripted_serve, &s);
        kops_client *client = connect_to(f);
        struct kops_error error;
        kops_module *module;
        kops_kernel *kernel;
        kops_buffer *buffer;

        assert_ok(kops_ping(client, 0, &error));
        assert_ok(kops_buffer_alloc_shared(client, 4096, &buffer, &error));
        kops_buffer_release(buffer);
        assert_ok(kops_buffer_alloc(client, 4096, NULL, &buffer, &error));
        kops_buffer_release(buffer);
        assert_ok(kops_compile(client, &source, &module, NULL, &error));
        assert_ok(kops_kernel_define(module, &signature, &kernel, &error));
        kops_kernel_free(kernel);
        kops_module_free(module);
        assert_true(scripted_look(&s).connections > 1);
        kops_close(client);
        fake_stop(f);
    }
    fake_set_device(NULL);
}

/* ---- where there is no daemon for a while ---- */

static void socket_absent_for_a_while(void **state)
{
    struct scripted s = SCRIPTED(.script = "x");
    struct fake *f = fake_start(scripted_serve, &s);
    kops_client *client = connect_to(f);
    struct kops_error error;
    kops_buffer *buffer;
    struct tagged t;

    (void)state;
    assert_ok(kops_buffer_alloc_shared(client, 4096, &buffer, &error));
    fake_vanish(f);
    tagged_run(&t, "x");
    t.request.options.timeout_ms = 60;
    /* It waits: its time is over, not the client's patience. */
    assert_int_equal(kops_run(client, &t.request, NULL, &error), KOPS_ERR_TIMEOUT);
    assert_non_null(strstr(error.message, fake_path(f)));
    fake_reappear(f);
    t.request.options.timeout_ms = 0;
    assert_ok(kops_run(client, &t.request, NULL, &error));
    assert_int_equal(error.code, KOPS_OK);
    kops_buffer_release(buffer);
    kops_close(client);
    fake_stop(f);
}

enum { THREADS = 6, RUNS = 200 };

struct worker {
    pthread_t thread;
    kops_client *client;
    unsigned runs;
    enum kops_code code; /* of the first failure */
    char message[512];
};

static void *run_often(void *argument)
{
    struct worker *w = argument;
    struct kops_error error;
    struct tagged t;

    for (unsigned i = 0; i < w->runs && !w->code; i++)
        w->code = kops_run(w->client, tagged_run(&t, "x"), NULL, &error);
    if (w->code)
        memcpy(w->message, error.message, sizeof(w->message));
    return NULL;
}

static void run_threads(struct worker *workers, kops_client *client, unsigned runs)
{
    for (unsigned i = 0; i < THREADS; i++) {
        workers[i] = (struct worker){.client = client, .runs = runs};
        assert_int_equal(pthread_create(&workers[i].thread, NULL, run_often, &workers[i]), 0);
    }
    for (unsigned i = 0; i < THREADS; i++)
        pthread_join(workers[i].thread, NULL);
}

/* Whoever waits for the daemon hears of the same failure, at about the same time. */
static void patience_is_over(void **state)
{
    struct scripted s = SCRIPTED(.script = "x");
    struct fake *f = fake_start(scripted_serve, &s);
    struct worker workers[THREADS];
    kops_client *client;

    (void)state;
    setenv("KOPS_RECONNECT_TIMEOUT", "0.04", 1);
    client = connect_to(f);
    unsetenv("KOPS_RECONNECT_TIMEOUT");
    fake_vanish(f);
    run_threads(workers, client, RUNS);
    for (unsigned i = 0; i < THREADS; i++) {
        assert_int_equal(workers[i].code, KOPS_ERR_CONNECT_FAILED);
        assert_non_null(strstr(workers[i].message, "for 40 ms"));
        assert_non_null(strstr(workers[i].message, fake_path(f)));
    }
    kops_close(client);
    fake_stop(f);
}

/* One dies under several threads, again and again: none of them notices. */
static void threads_go_on(void **state)
{
    static const char *const ends[] = {"x", "d", "sS", "n"};
    struct scripted s = SCRIPTED(.script = "");
    struct fake *f = fake_start(scripted_serve, &s);
    kops_client *client = connect_to(f);
    struct worker workers[THREADS];
    char script[RUNS + 8] = {0};

    (void)state;
    for (unsigned round = 0; round < sizeof(ends) / sizeof(ends[0]); round++) {
        pthread_mutex_lock(&s.lock);
        memset(script, '.', RUNS);
        snprintf(script + RUNS, sizeof(script) - RUNS, "%s", ends[round]);
        s.script = script;
        pthread_mutex_unlock(&s.lock);
        run_threads(workers, client, RUNS);
        for (unsigned i = 0; i < THREADS; i++)
            if (workers[i].code)
                fail_msg("\"%s\": thread %u: %s", ends[round], i, workers[i].message);
        assert_int_equal(scripted_look(&s).connections, round + 2);
    }
    kops_close(client);
    fake_stop(f);
}

/* ---- buffers ---- */

static void buffers_are_registered_anew(void **state)
{
    struct scripted s = SCRIPTED(.script = "x");
    struct fake *f = fake_start(scripted_serve, &s);
    kops_client *client = connect_to(f);
    struct kops_error error;
    struct kops_tensor a, b;
    kops_buffer *shared, *made;

    (void)state;
    assert_ok(kops_buffer_alloc_shared(client, 4096, &shared, &error));
    assert_ok(kops_buffer_alloc(client, 4096, NULL, &made, &error));
    memset(kops_buffer_data(made), 7, 4096);
    a = kops_vector(shared, KOPS_F32, 1024);
    b = kops_vector(made, KOPS_F32, 1024);
    assert_ok(kops_square(client, &a, &b, NULL, NULL, &error));
    assert_int_equal(scripted_look(&s).work, 2);
    assert_int_equal(scripted_look(&s).registered, 4); /* both, and both again: the daemon makes no host memory */
    assert_int_equal(((unsigned char *)kops_buffer_data(made))[4095], 7);
    kops_buffer_release(shared);
    kops_buffer_release(made);
    kops_close(client);
    fake_stop(f);
}

static void buffer_lost(void **state)
{
    struct scripted s = SCRIPTED(.script = "x", .refusal = "invalid_handle");
    struct fake *f = fake_start(scripted_serve, &s);
    kops_client *client = connect_to(f);
    struct kops_error error;
    struct kops_tensor a, b;
    kops_buffer *buffer;
    struct tagged t;

    (void)state;
    assert_ok(kops_buffer_alloc_shared(client, 8192, &buffer, &error));
    a = b = kops_vector(buffer, KOPS_F32, 1024);
    b.offset = 4096;
    assert_int_equal(kops_square(client, &a, &b, NULL, NULL, &error), KOPS_ERR_BUFFER_LOST);
    assert_non_null(strstr(error.message, "invalid_handle: not this one"));
    assert_int_equal(scripted_look(&s).registered, 2);
    /* It stays lost, without asking. */
    assert_int_equal(kops_square(client, &a, &b, NULL, NULL, &error), KOPS_ERR_BUFFER_LOST);
    assert_int_equal(scripted_look(&s).registered, 2);
    assert_ok(kops_run(client, tagged_run(&t, "x"), NULL, &error));
    kops_buffer_release(buffer);
    kops_close(client);
    fake_stop(f);
}

/* A daemon that has no room now may have some later. */
static void buffer_refused_for_now(void **state)
{
    struct scripted s = SCRIPTED(.script = "x", .refusal = "quota_exceeded");
    struct fake *f = fake_start(scripted_serve, &s);
    kops_client *client = connect_to(f);
    struct kops_error error;
    struct kops_tensor a, b;
    kops_buffer *buffer;

    (void)state;
    assert_ok(kops_buffer_alloc_shared(client, 8192, &buffer, &error));
    a = b = kops_vector(buffer, KOPS_F32, 1024);
    b.offset = 4096;
    assert_int_equal(kops_square(client, &a, &b, NULL, NULL, &error), KOPS_ERR_QUOTA_EXCEEDED);
    pthread_mutex_lock(&s.lock);
    s.refusal = NULL;
    pthread_mutex_unlock(&s.lock);
    assert_ok(kops_square(client, &a, &b, NULL, NULL, &error));
    kops_buffer_release(buffer);
    kops_close(client);
    fake_stop(f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(repeated_once),
        cmocka_unit_test(device_lost_is_repeated_once),
        cmocka_unit_test(a_daemon_that_goes_on),
        cmocka_unit_test(shutting_down_is_repeated),
        cmocka_unit_test(shutting_down_for_good),
        cmocka_unit_test(no_reconnect),
        cmocka_unit_test(tickets_are_not_repeated),
        cmocka_unit_test(definitions_are_repeated),
        cmocka_unit_test(socket_absent_for_a_while),
        cmocka_unit_test(patience_is_over),
        cmocka_unit_test(threads_go_on),
        cmocka_unit_test(buffers_are_registered_anew),
        cmocka_unit_test(buffer_lost),
        cmocka_unit_test(buffer_refused_for_now),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
