/* The golden vectors through the daemon's receive path, each whole and one byte at a time. */
#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

#include "golden_vectors.h"
#include "rpc/input.h"
#include "rpc/message.h"
#include "rpc/output.h"
#include "tests/support/rewrite.h"
#include "tests/support/unit.h"

enum { LIMIT = 1 << 20, STDERR_DUP_MIN = 100 };

enum outcome { TAKEN, CLOSED, INCOMPLETE };

static const char *const outcome_names[] = {"a message", "a violation", "more bytes awaited"};

/* What became of one vector's first message. `echo` is empty where params is no map. */
struct result {
    enum outcome outcome;
    bool notification;
    struct rpc_output echo;
};

static void write_echo(struct result *r, const struct rpc_message *message)
{
    unsigned char *at;
    char method[64];

    /* A NUL in a method's name cannot be written again. */
    if (message->method_length && memchr(message->method, '\0', message->method_length))
        return;
    snprintf(method, sizeof(method), "%.*s", (int)message->method_length,
             message->method_length ? message->method : "");
    rpc_write_array(&r->echo, message->notification ? 3 : 4);
    rpc_write_uint(&r->echo, message->notification ? 2 : 0);
    if (!message->notification)
        rpc_write_uint(&r->echo, message->msgid);
    rpc_write_text(&r->echo, method);
    rpc_write_array(&r->echo, 1);
    at = buffer_reserve(&r->echo.bytes, message->raw_length);
    assert_non_null(at);
    rewrite(&at, message->raw);
    r->echo.bytes.end = (size_t)(at - r->echo.bytes.data);
}

static enum outcome take(struct rpc_input *in, struct result *r)
{
    struct rpc_message message;
    struct rpc_frame frame;
    int fds[RPC_MAX_FDS];
    struct error e = {0};
    int next = rpc_input_next(in, &frame, &e);

    if (next <= 0)
        return next ? CLOSED : INCOMPLETE;
    if (rpc_message_parse(&frame, &message, &e) < 0 || rpc_input_claim(in, message.nfds, fds, &e) < 0)
        return CLOSED;
    for (unsigned i = 0; i < message.nfds; i++)
        close(fds[i]);
    r->notification = message.notification;
    if (message.params)
        write_echo(r, &message);
    return rpc_input_consume(in, &e) < 0 ? CLOSED : TAKEN;
}

/* Descriptors come with the first step's bytes. */
static struct result receive(const struct golden_vector *v, size_t step)
{
    struct result r = {.outcome = INCOMPLETE};
    struct rpc_input in;
    int fds[RPC_MAX_FDS];
    struct error e = {0};
    unsigned n_fds = v->nfds;

    rpc_output_init(&r.echo, LIMIT);
    rpc_input_init(&in, LIMIT);
    for (unsigned i = 0; i < n_fds; i++)
        fds[i] = fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, STDERR_DUP_MIN);
    for (size_t at = 0; at < v->length && r.outcome == INCOMPLETE; at += step) {
        size_t room, n = v->length - at < step ? v->length - at : step;
        unsigned char *to = rpc_input_reserve(&in, &room);

        assert_true(to && room >= n);
        memcpy(to, v->bytes + at, n);
        r.outcome = rpc_input_commit(&in, n, fds, n_fds, &e) < 0 ? CLOSED : take(&in, &r);
        n_fds = 0;
    }
    rpc_input_free(&in);
    return r;
}

static enum outcome expected(const struct golden_vector *v)
{
    if (!strcmp(v->expect, "close"))
        return CLOSED;
    return strcmp(v->expect, "more") ? TAKEN : INCOMPLETE;
}

static void check_vector(const struct golden_vector *v, size_t step)
{
    struct result r = receive(v, step);

    if (r.outcome != expected(v))
        fail_msg("%s/%s in steps of %zu: %s, not %s", v->file, v->name, step, outcome_names[r.outcome],
                 outcome_names[expected(v)]);
    if (r.outcome == TAKEN && buffer_length(&r.echo.bytes)) {
        const size_t length = buffer_length(&r.echo.bytes);
        const bool shortest = length == v->shortest_length && !memcmp(r.echo.bytes.data, v->shortest, length);
        const bool alike = length == v->length && !memcmp(r.echo.bytes.data, v->bytes, length);

        if (!shortest && !alike)
            fail_msg("%s/%s: written again it differs from %s", v->file, v->name, v->text);
        assert_int_equal(r.notification, !strcmp(v->expect, "none"));
    }
    rpc_output_free(&r.echo);
}

static bool concerns_daemon(const struct golden_vector *v)
{
    return !strstr(v->file, "responses");
}

TEST(test_whole)
{
    for (unsigned i = 0; i < GOLDEN_VECTORS; i++)
        if (concerns_daemon(&golden_vectors[i]))
            check_vector(&golden_vectors[i], LIMIT);
}

TEST(test_byte_by_byte)
{
    for (unsigned i = 0; i < GOLDEN_VECTORS; i++)
        if (concerns_daemon(&golden_vectors[i]))
            check_vector(&golden_vectors[i], 1);
}

TEST(test_no_descriptor_is_left)
{
    for (int fd = STDERR_DUP_MIN; fd < STDERR_DUP_MIN + 64; fd++)
        assert_int_equal(fcntl(fd, F_GETFD), -1);
}

/* Whatever is cut off at any byte waits for more, or was refused already: never a shorter message. */
TEST(test_cut_anywhere)
{
    for (unsigned i = 0; i < GOLDEN_VECTORS; i++) {
        struct golden_vector cut = golden_vectors[i];

        if (!concerns_daemon(&cut) || !cut.text)
            continue;
        for (cut.length = 1; cut.length < golden_vectors[i].length; cut.length++) {
            struct result r = receive(&cut, LIMIT);

            if (r.outcome != INCOMPLETE)
                fail_msg("%s/%s cut at %zu: %s", cut.file, cut.name, cut.length, outcome_names[r.outcome]);
            rpc_output_free(&r.echo);
        }
    }
}
