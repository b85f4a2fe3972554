/* Descriptors by byte range, both ways, and long messages in parts. Messages in any pieces are the fuzzer's
 * (tests/fuzz), wrong descriptors end real connections (tests/functional). */
#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "rpc/input.h"
#include "rpc/output.h"
#include "tests/support/unit.h"

/* [0, 1, "m", [{"nfds": nfds, "x": pad bytes}]] */
static size_t request(unsigned char *into, unsigned char nfds, unsigned char pad)
{
    const unsigned char head[] = {0x94, 0,   1,   0xa1, 'm',  0x91, 0x82, 0xa4, 'n',
                                  'f',  'd', 's', nfds, 0xa1, 'x',  0xc4, pad};

    memcpy(into, head, sizeof(head));
    memset(into + sizeof(head), 0, pad);
    return sizeof(head) + pad;
}

static int feed(struct rpc_input *in, const unsigned char *data, size_t n, const int *fds, unsigned n_fds,
                struct error *e)
{
    size_t room;
    unsigned char *at = rpc_input_reserve(in, &room);

    assert_true(room >= n);
    memcpy(at, data, n);
    return rpc_input_commit(in, n, fds, n_fds, e);
}

static int open_one(void)
{
    return open("/dev/null", O_RDONLY | O_CLOEXEC);
}

static void closed(int fd)
{
    assert_int_equal(fcntl(fd, F_GETFD), -1);
}

/* The end of a message and the start of the next, which has the descriptors, arrive together. */
TEST(descriptors_go_with_the_message_that_starts_there)
{
    unsigned char bytes[4096];
    size_t first = request(bytes, 1, 50), all = first + request(bytes + first, 2, 20);
    int a[] = {open_one()}, b[] = {open_one(), open_one()}, got[RPC_MAX_FDS];
    struct rpc_input in;
    struct rpc_frame frame;
    struct error e;

    rpc_input_init(&in, 4096);
    assert_int_equal(feed(&in, bytes, 10, a, 1, &e), 0);
    assert_int_equal(rpc_input_next(&in, &frame, &e), 0);
    assert_int_equal(feed(&in, bytes + 10, all - 10, b, 2, &e), 0);
    assert_int_equal(rpc_input_next(&in, &frame, &e), 1);
    assert_int_equal(frame.length, first);
    assert_int_equal(rpc_input_claim(&in, 1, got, &e), 0);
    assert_int_equal(got[0], a[0]);
    assert_int_equal(rpc_input_consume(&in, &e), 0);
    assert_int_equal(rpc_input_next(&in, &frame, &e), 1);
    assert_int_equal(frame.length, all - first);
    assert_int_equal(rpc_input_claim(&in, 2, got, &e), 0);
    assert_memory_equal(got, b, sizeof(b));
    assert_int_equal(rpc_input_consume(&in, &e), 0);
    rpc_input_free(&in);
    close(a[0]);
    close(b[0]);
    close(b[1]);
}

/* Whoever brings them in the middle of a message, or more and more of them while one message never ends. */
TEST(descriptors_that_no_message_starts_with_are_violations)
{
    unsigned char bytes[4096];
    size_t n = request(bytes, 1, 10);
    struct rpc_frame frame;
    struct rpc_input in;
    int got[RPC_MAX_FDS], fd = open_one();
    struct error e;

    rpc_input_init(&in, 4096);
    assert_int_equal(feed(&in, bytes, 5, NULL, 0, &e), 0);
    assert_int_equal(feed(&in, bytes + 5, n - 5, &fd, 1, &e), 0);
    assert_int_equal(rpc_input_next(&in, &frame, &e), 1);
    assert_int_equal(rpc_input_claim(&in, 1, got, &e), -1);
    assert_int_equal(e.code, ERROR_PROTOCOL_ERROR);
    rpc_input_free(&in);
    closed(fd);
    rpc_input_init(&in, 4096);
    for (unsigned i = 0; i <= RPC_MAX_BATCHES; i++) {
        fd = open_one();
        assert_int_equal(feed(&in, bytes + i, 1, &fd, 1, &e), i < RPC_MAX_BATCHES ? 0 : -1);
    }
    closed(fd);
    rpc_input_free(&in);
}

/* A message of many values is looked through in parts, and what was looked through is not looked at again. */
TEST(many_values_take_several_calls)
{
    enum { VALUES = 100000 };
    static unsigned char bytes[5 + VALUES] = {0xdd, VALUES >> 24, VALUES >> 16 & 0xff, VALUES >> 8 & 0xff,
                                              VALUES & 0xff};
    struct rpc_frame frame = {0};
    unsigned calls = 0;
    struct rpc_input in;
    uint64_t seen = 0;
    struct error e;

    rpc_input_init(&in, sizeof(bytes));
    for (size_t at = 0; at < sizeof(bytes); at += 10000)
        assert_int_equal(feed(&in, bytes + at, at + 10000 > sizeof(bytes) ? sizeof(bytes) - at : 10000, NULL, 0, &e),
                         0);
    while (rpc_input_next(&in, &frame, &e) == 0) {
        assert_true(in.paused);
        assert_in_range(in.scan.values - seen, 1, 20000);
        seen = in.scan.values;
        calls++;
    }
    assert_false(in.paused);
    assert_in_range(calls, 5, 10);
    assert_int_equal(frame.values, VALUES + 1);
    assert_int_equal(frame.length, sizeof(bytes));
    rpc_input_free(&in);
}

/* Three messages, the middle one with a descriptor: it must arrive with that one's first byte and nothing after it. */
TEST(output_sends_descriptors_with_their_message)
{
    int pair[2], got[RPC_MAX_FDS], fd = open_one();
    struct rpc_output out;
    struct rpc_input in;
    struct rpc_frame frame;
    unsigned char bytes[256];
    struct error e;
    bool full;

    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
    rpc_output_init(&out, 1 << 20);
    for (unsigned i = 0; i < 3; i++) {
        const uint64_t start = rpc_output_position(&out);

        buffer_append(&out.bytes, bytes, request(bytes, i == 1, 20));
        if (i == 1)
            assert_int_equal(rpc_output_attach(&out, start, fd), 0);
    }
    assert_int_equal(rpc_output_flush(&out, pair[0]), 1);
    closed(fd);
    rpc_output_free(&out);
    rpc_input_init(&in, 4096);
    for (unsigned i = 0; i < 3;) {
        assert_int_equal(rpc_socket_receive(pair[1], &in, &full, &e), RPC_RECEIVED);
        for (; rpc_input_next(&in, &frame, &e) == 1; i++) {
            assert_int_equal(rpc_input_claim(&in, i == 1, got, &e), 0);
            assert_int_equal(rpc_input_consume(&in, &e), 0);
        }
    }
    assert_true(fcntl(got[0], F_GETFD) & FD_CLOEXEC);
    close(got[0]);
    close(pair[0]);
    assert_int_equal(rpc_socket_receive(pair[1], &in, &full, &e), RPC_END);
    close(pair[1]);
    rpc_input_free(&in);
}
