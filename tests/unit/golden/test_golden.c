/* The golden vectors through the daemon's receive path, each whole, one byte at a time and cut off. What the
 * codec makes of them is for tests/fuzz/codec.c, which replays them beside msgpack-c. */
#include <fcntl.h>
#include <unistd.h>

#include "golden_vectors.h"
#include "rpc/input.h"
#include "rpc/message.h"
#include "tests/support/unit.h"

enum { LIMIT = 1 << 20, STDERR_DUP_MIN = 100 };

enum outcome { TAKEN, CLOSED, INCOMPLETE };

static const char *const outcome_names[] = {"a message", "a violation", "more bytes awaited"};

/* The first message, which must be a notification where the vector awaits no answer. */
static enum outcome take(struct rpc_input *in, const struct golden_vector *v)
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
    if (message.params)
        assert_int_equal(message.notification, !strcmp(v->expect, "none"));
    return rpc_input_consume(in, &e) < 0 ? CLOSED : TAKEN;
}

/* Descriptors come with the first step's bytes. */
static enum outcome receive(const struct golden_vector *v, size_t step)
{
    enum outcome r = INCOMPLETE;
    struct rpc_input in;
    int fds[RPC_MAX_FDS];
    struct error e = {0};
    unsigned n_fds = v->nfds;

    rpc_input_init(&in, LIMIT);
    for (unsigned i = 0; i < n_fds; i++)
        fds[i] = fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, STDERR_DUP_MIN);
    for (size_t at = 0; at < v->length && r == INCOMPLETE; at += step) {
        size_t room, n = v->length - at < step ? v->length - at : step;
        unsigned char *to = rpc_input_reserve(&in, &room);

        assert_true(to && room >= n);
        memcpy(to, v->bytes + at, n);
        r = rpc_input_commit(&in, n, fds, n_fds, &e) < 0 ? CLOSED : take(&in, v);
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
    const enum outcome r = receive(v, step);

    if (r != expected(v))
        fail_msg("%s/%s in steps of %zu: %s, not %s", v->file, v->name, step, outcome_names[r],
                 outcome_names[expected(v)]);
}

static bool concerns_daemon(const struct golden_vector *v)
{
    return !strstr(v->file, "responses");
}

TEST(test_whole_and_byte_by_byte)
{
    for (unsigned i = 0; i < GOLDEN_VECTORS; i++)
        if (concerns_daemon(&golden_vectors[i])) {
            check_vector(&golden_vectors[i], LIMIT);
            check_vector(&golden_vectors[i], 1);
        }
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
            const enum outcome r = receive(&cut, LIMIT);

            if (r != INCOMPLETE)
                fail_msg("%s/%s cut at %zu: %s", cut.file, cut.name, cut.length, outcome_names[r]);
        }
    }
}
