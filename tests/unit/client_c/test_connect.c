/* Finding the daemon, hello, and what happens when the connection ends. */
#include <poll.h>
#include <stdio.h>
#include <unistd.h>

#include "scene.h"
#include "session/client.h"

/* What kopsctl shows of it is tests/ctl's. */
SCENE(info_is_read)
{
    const struct kops_info *info = kops_info(s->client);
    const struct kops_op *op = kops_info_op(s->client, "gemm");

    assert_texts(info->socket, fake_path(s->fake), kops_info_device(s->client, NULL)->uuid, "host",
                 kops_info_device(s->client, "0")->arch, "avx2", op->attrs[1]->choices[1], "high");
    assert_ptr_equal(kops_info_device(s->client, "host"), info->devices[0]);
    assert_true(!info->devices[1] && !kops_info_device(s->client, "1") && !kops_info_op(s->client, "no_such_op"));
    assert_true(kops_info_feature(s->client, "memfd") && !kops_info_feature(s->client, "cuda_ipc"));
    assert_true(op->attrs[0]->fallback.type == KOPS_ATTR_FLOAT && op->attrs[0]->fallback.value.real == 1.0);
    assert_true(!op->inputs[2] && !op->attrs[0]->choices && !op->attrs[2]);
}

TEST(isolation_is_asked_for_and_told)
{
    const char *const asked[] = {"connection", NULL}, *const told[] = {"connection", "user" /* the fake's default */};

    for (int i = 0; i < 2; i++) {
        struct scene *s = scene_start(&(struct kops_connect_options){.isolate = asked[i]});

        assert_string_equal(kops_info(s->client)->isolation, told[i]);
        scene_stop(s);
    }
}

/* As in Python: a call waits as long as it takes, unless somebody says otherwise. */
SCENE(without_a_timeout_there_is_no_limit)
{
    struct scene *with_timeout = scene_start(&(struct kops_connect_options){.timeout_ms = 1234});

    assert_true(client_deadline(s->client, 0) == DEADLINE_NEVER);
    assert_true(client_deadline(s->client, 10000) != DEADLINE_NEVER);
    assert_true(client_deadline(with_timeout->client, 0) != DEADLINE_NEVER);
    assert_true(client_deadline(with_timeout->client, KOPS_FOREVER) == DEADLINE_NEVER);
    scene_stop(with_timeout);
}

/* A socket that was named is the only one tried; without one, the runtime folder comes first. */
SCENE(search_order)
{
    kops_client *client = NULL;
    char folder[128], own[64];

    snprintf(folder, sizeof(folder), "%s", fake_path(s->fake));
    *strrchr(folder, '/') = 0;
    setenv("KOPS_AUTOSTART", "0", 1);
    setenv("XDG_RUNTIME_DIR", folder, 1);
    setenv("KOPS_SOCKET", "/nonexistent/kopsd.sock", 1);
    assert_int_equal(kops_connect(NULL, &client, &s->error), KOPS_ERR_CONNECT_FAILED);
    assert_null(strstr(s->error.message, folder));
    unsetenv("KOPS_SOCKET");
    assert_ok(kops_connect(NULL, &client, &s->error));
    assert_string_equal(kops_info(client)->socket, fake_path(s->fake));
    kops_close(client);
    setenv("XDG_RUNTIME_DIR", "/nonexistent", 1);
    snprintf(own, sizeof(own), "/tmp/.kopsd-%u/kopsd.sock", (unsigned)getuid());
    if (access("/run/kopsd/kopsd.sock", F_OK) && access(own, F_OK)) { /* no daemon of this machine's is there */
        assert_int_equal(kops_connect(NULL, &client, &s->error), KOPS_ERR_CONNECT_FAILED);
        assert_non_null(strstr(s->error.message, "/nonexistent/kopsd.sock"));
        assert_non_null(strstr(s->error.message, "/run/kopsd/kopsd.sock"));
    }
}

TEST(who_gets_no_connection_is_told_why)
{
    static const struct {
        const char *script; /* of hello */
        struct kops_connect_options options;
        enum kops_code code;
        const char *said;
    } cases[] = {
        {"", {.socket = "/nonexistent/kopsd.sock"}, KOPS_ERR_CONNECT_FAILED, "/nonexistent/kopsd.sock"},
        {"", {.reserved = {0, 1}}, KOPS_ERR_BAD_ARGUMENT, ""},
        {"_*", {.connect_timeout_ms = 100}, KOPS_ERR_TIMEOUT, "does not answer"},
        {"r", {.socket = NULL}, KOPS_ERR_PROTOCOL_MISMATCH, "not this one"},
        /* No endless chase after a daemon that accepts and hangs up. */
        {"x*", {.reconnect_timeout_ms = 100}, KOPS_ERR_CONNECTION_LOST, ""},
        {"x*", {.reconnect_timeout_ms = KOPS_NO_RECONNECT}, KOPS_ERR_CONNECTION_LOST, ""},
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct scripted d = {.lock = PTHREAD_MUTEX_INITIALIZER,
                             .script = cases[i].script,
                             .methods = "hello",
                             .refusal = "protocol_mismatch"};
        struct fake *f = fake_start(scripted_serve, &d);
        struct kops_connect_options options = cases[i].options;
        struct kops_error error;
        kops_client *client = NULL;

        if (!options.socket)
            options.socket = fake_path(f);
        if (kops_connect(&options, &client, &error) != cases[i].code || error.code != cases[i].code || client ||
            !strstr(error.message, cases[i].said))
            fail_msg("case %zu: %s: %s", i, kops_code_name(error.code), error.message);
        if (cases[i].code == KOPS_ERR_TIMEOUT)
            assert_non_null(strstr(error.message, options.socket));
        fake_stop(f);
    }
}

/* ---- the end of a connection ---- */

/* A request that finds the daemon gone before a byte was sent is sent to the new one: the caller notices nothing. */
SCENE(idle_connection_lost_unnoticed)
{
    struct pollfd gone = {.fd = s->client->t.fd, .events = POLLRDHUP};

    scene_script(s, "b", "ping");
    assert_ok(kops_ping(s->client, 0, &s->error));
    assert_int_equal(poll(&gone, 1, -1), 1);
    assert_ok(kops_ping(s->client, 0, &s->error));
    assert_int_equal(scene_seen(s).connections, 2);
}
