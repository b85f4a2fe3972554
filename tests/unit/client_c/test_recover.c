/* A daemon that ends and comes back: who waits, for how long, and what calls become. */
#include <stdio.h>

#include "scene.h"

TEST(a_run_is_repeated_as_often_as_it_may_be)
{
    static const struct {
        const char *script;
        enum kops_code code;
        unsigned work;
        const char *said;
    } cases[] = {
        {"x", KOPS_OK, 2, ""},
        {"k", KOPS_OK, 2, ""},
        {"xx", KOPS_ERR_CONNECTION_LOST, 2, "repeated once"},
        {"p", KOPS_ERR_PROTOCOL_ERROR, 1, "as it"},
        {"d", KOPS_OK, 2, ""},
        {"D", KOPS_OK, 2, ""}, /* a daemon that says so and stays is left */
        {"n", KOPS_OK, 2, ""},
        {"dd", KOPS_ERR_DEVICE_LOST, 2, "illegal address"},
        {"dd", KOPS_ERR_DEVICE_LOST, 2, "repeated once"},
        {"dx", KOPS_ERR_CONNECTION_LOST, 2, "repeated once"},
        /* What was refused never ran: any number of times. */
        {"sss", KOPS_OK, 4, ""},
        {"SSS", KOPS_OK, 4, ""},
        {"sSx", KOPS_OK, 4, ""},
        {"Sxx", KOPS_ERR_CONNECTION_LOST, 3, ""},
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct scene *s = scene_start(NULL);

        scene_script(s, cases[i].script, NULL);
        if (scene_run(s) != cases[i].code || s->error.code != cases[i].code || !strstr(s->error.message, cases[i].said))
            fail_msg("\"%s\": %s: %s", cases[i].script, kops_code_name(s->error.code), s->error.message);
        if (!s->error.code && s->error.message[0])
            fail_msg("\"%s\": it went well, and says \"%s\"", cases[i].script, s->error.message);
        if (scene_seen(s).work != cases[i].work)
            fail_msg("\"%s\": it ran %u times", cases[i].script, scene_seen(s).work);
        /* Whatever it was, the client goes on. */
        assert_ok(scene_run(s));
        scene_stop(s);
    }
}

/* The daemon has another process for the device: the error is the call's own, and the connection goes on. */
SCENE(a_daemon_that_goes_on)
{
    scene_script(s, "gt", NULL);
    assert_int_equal(scene_run(s), KOPS_ERR_DEVICE_LOST);
    assert_string_equal(s->error.message, "it was lost");
    assert_string_equal(kops_error_text(&s->error, "daemon"), "goes_on");
    assert_int_equal(scene_run(s), KOPS_ERR_JOB_TIMEOUT);
    assert_ok(scene_run(s));
    assert_int_equal(scene_seen(s).work, 3);
    assert_int_equal(scene_seen(s).connections, 1);
}

/* No longer than the client has patience for, nor than the call may take. */
TEST(shutting_down_for_good)
{
    static const struct kops_connect_options patience[] = {{.reconnect_timeout_ms = 40}, {.connect_timeout_ms = 0}};

    for (int by_call = 0; by_call < 2; by_call++) {
        struct scene *s = scene_start(&patience[by_call]);

        scene_script(s, "s*", NULL);
        tagged_run(&s->t, "x");
        s->t.request.options.timeout_ms = by_call ? 100 : 0;
        assert_int_equal(kops_run(s->client, &s->t.request, NULL, &s->error), KOPS_ERR_SHUTTING_DOWN);
        assert_string_equal(s->error.message, "the daemon is ending");
        assert_true(scene_seen(s).work > 1);
        scene_stop(s);
    }
}

/* The environment's patience, for a client that says nothing of it. */
static struct scene *start_with_patience(const char *seconds)
{
    struct scene *s;

    setenv("KOPS_RECONNECT_TIMEOUT", seconds, 1);
    s = scene_start(NULL);
    unsetenv("KOPS_RECONNECT_TIMEOUT");
    return s;
}

TEST(no_reconnect)
{
    struct scene *s = start_with_patience("0");

    scene_script(s, "sxd.x", NULL);
    assert_int_equal(scene_run(s), KOPS_ERR_SHUTTING_DOWN);
    assert_int_equal(scene_run(s), KOPS_ERR_CONNECTION_LOST);
    assert_int_equal(scene_run(s), KOPS_ERR_DEVICE_LOST);
    assert_ok(scene_run(s));
    fake_vanish(s->fake);
    assert_int_equal(scene_run(s), KOPS_ERR_CONNECTION_LOST);
    assert_int_equal(scene_seen(s).work, 5);
    assert_int_equal(kops_ping(s->client, 0, &s->error), KOPS_ERR_CONNECT_FAILED);
    scene_stop(s);
}

/* Everything but work is harmless twice. */
TEST(definitions_are_repeated)
{
    static const char *const methods[] = {"ping", "register", "alloc", "compile", "kernel"};
    const struct kops_source source = {.text = "kernel"};
    const struct kops_signature signature = {.entry = "entry"};

    for (size_t i = 0; i < sizeof(methods) / sizeof(methods[0]); i++) {
        kops_module *module;
        kops_kernel *kernel;
        kops_buffer *buffer;
        struct scene *s;

        print_message("%s\n", methods[i]);
        fake_device = "GPU-0"; /* whose memory the daemon makes */
        s = scene_start(NULL);
        scene_script(s, i % 2 ? "x" : "dS", methods[i]);
        assert_ok(kops_ping(s->client, 0, &s->error));
        scene_memory(s, 4096);
        assert_ok(kops_buffer_alloc(s->client, 4096, NULL, &buffer, &s->error));
        kops_buffer_release(buffer);
        assert_ok(kops_compile(s->client, &source, &module, NULL, &s->error));
        assert_ok(kops_kernel_define(module, &signature, &kernel, &s->error));
        kops_kernel_free(kernel);
        kops_module_free(module);
        assert_true(scene_seen(s).connections > 1);
        scene_stop(s);
    }
}

/* ---- where there is no daemon for a while ---- */

SCENE(socket_absent_for_a_while)
{
    scene_script(s, "x", NULL);
    scene_memory(s, 4096);
    fake_vanish(s->fake);
    tagged_run(&s->t, "x");
    s->t.request.options.timeout_ms = 60;
    /* It waits: its time is over, not the client's patience. */
    assert_int_equal(kops_run(s->client, &s->t.request, NULL, &s->error), KOPS_ERR_TIMEOUT);
    assert_non_null(strstr(s->error.message, fake_path(s->fake)));
    fake_reappear(s->fake);
    assert_ok(scene_run(s));
    assert_int_equal(s->error.code, KOPS_OK);
}

enum { THREADS = 6, RUNS = 200 };

static void *run_in_vain(void *scene)
{
    const struct scene *s = scene;
    struct kops_error error;
    struct tagged t;
    const bool told = kops_run(s->client, tagged_run(&t, "x"), NULL, &error) == KOPS_ERR_CONNECT_FAILED &&
                      strstr(error.message, "within 0.04 s") && strstr(error.message, fake_path(s->fake));

    return told ? NULL : "it was told something else";
}

/* Whoever waits for the daemon hears of the same failure. */
TEST(patience_is_over)
{
    struct scene *s = start_with_patience("0.04");

    scene_script(s, "x", NULL);
    fake_vanish(s->fake);
    in_threads(THREADS, run_in_vain, s, 0);
    scene_stop(s);
}

static void *run_often(void *client)
{
    struct tagged t;

    for (unsigned i = 0; i < RUNS; i++)
        if (kops_run(client, tagged_run(&t, "x"), NULL, NULL))
            return "a run failed";
    return NULL;
}

/* One dies under several threads, again and again: none of them notices. */
SCENE(threads_go_on)
{
    static const char *const ends[] = {"x", "d", "sS", "n"};
    char script[RUNS + 8] = {0};

    for (unsigned round = 0; round < sizeof(ends) / sizeof(ends[0]); round++) {
        print_message("\"%s\"\n", ends[round]);
        memset(script, '.', RUNS);
        snprintf(script + RUNS, sizeof(script) - RUNS, "%s", ends[round]);
        scene_script(s, script, NULL);
        in_threads(THREADS, run_often, s->client, 0);
        assert_int_equal(scene_seen(s).connections, round + 2);
    }
}

/* ---- buffers ---- */

SCENE(buffers_are_registered_anew)
{
    struct kops_tensor a = kops_vector(scene_memory(s, 4096), KOPS_F32, 1024), b;
    kops_buffer *made;

    scene_script(s, "x", NULL);
    assert_ok(kops_buffer_alloc(s->client, 4096, NULL, &made, &s->error));
    memset(kops_buffer_data(made), 7, 4096);
    b = kops_vector(made, KOPS_F32, 1024);
    assert_ok(kops_square(s->client, &a, &b, NULL, NULL, &s->error));
    assert_int_equal(scene_seen(s).work, 2);
    assert_int_equal(scene_seen(s).registered, 4); /* both, and both again: the daemon makes no host memory */
    assert_int_equal(((unsigned char *)kops_buffer_data(made))[4095], 7);
    kops_buffer_release(made);
}

/* The next daemon does not take a buffer: for good, or since it has no room now and may have some later. */
TEST(a_buffer_is_refused)
{
    for (int for_now = 0; for_now < 2; for_now++) {
        struct scene *s = scene_start(NULL);
        struct kops_tensor t[2];

        scene_script(s, "x", NULL);
        s->d.refusal = for_now ? "quota_exceeded" : "invalid_handle";
        vectors_in(scene_memory(s, 8192), 1024, 2, t);
        assert_int_equal(kops_square(s->client, &t[0], &t[1], NULL, NULL, &s->error),
                         for_now ? KOPS_ERR_QUOTA_EXCEEDED : KOPS_ERR_BUFFER_LOST);
        assert_int_equal(scene_seen(s).registered, 2);
        if (for_now) {
            pthread_mutex_lock(&s->d.lock);
            s->d.refusal = NULL;
            pthread_mutex_unlock(&s->d.lock);
            assert_ok(kops_square(s->client, &t[0], &t[1], NULL, NULL, &s->error));
        } else {
            assert_non_null(strstr(s->error.message, "invalid_handle: not this one"));
            /* It stays lost, without asking. */
            assert_int_equal(kops_square(s->client, &t[0], &t[1], NULL, NULL, &s->error), KOPS_ERR_BUFFER_LOST);
            assert_int_equal(scene_seen(s).registered, 2);
            assert_ok(scene_run(s));
        }
        scene_stop(s);
    }
}
