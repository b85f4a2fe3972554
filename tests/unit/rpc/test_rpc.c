/* Descriptors by byte range, long messages in parts, output with descriptors over a real socket pair. Messages in any
 * pieces, and those that are refused early, are golden vectors: tests/unit/golden. */
#include <fcntl.h>
#include <msgpack.h>
#include <sys/socket.h>
#include <unistd.h>

#include "rpc/input.h"
#include "rpc/message.h"
#include "rpc/output.h"
#include "rpc/socket.h"
#include "tests/support/unit.h"

/* [0, msgid, "m", [{"nfds": nfds, "x": pad bytes}]] */
static size_t request(unsigned char *into, unsigned msgid, unsigned nfds, size_t pad)
{
    msgpack_sbuffer buffer;
    msgpack_packer p;
    char *zeros = calloc(1, pad + 1);
    size_t n;

    msgpack_sbuffer_init(&buffer);
    msgpack_packer_init(&p, &buffer, msgpack_sbuffer_write);
    msgpack_pack_array(&p, 4);
    msgpack_pack_int(&p, 0);
    msgpack_pack_unsigned_int(&p, msgid);
    msgpack_pack_str(&p, 1);
    msgpack_pack_str_body(&p, "m", 1);
    msgpack_pack_array(&p, 1);
    msgpack_pack_map(&p, 2);
    msgpack_pack_str(&p, 4);
    msgpack_pack_str_body(&p, "nfds", 4);
    msgpack_pack_unsigned_int(&p, nfds);
    msgpack_pack_str(&p, 1);
    msgpack_pack_str_body(&p, "x", 1);
    msgpack_pack_bin(&p, pad);
    msgpack_pack_bin_body(&p, zeros, pad);
    n = buffer.size;
    memcpy(into, buffer.data, n);
    msgpack_sbuffer_destroy(&buffer);
    free(zeros);
    return n;
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
    size_t first = request(bytes, 1, 1, 50), all = first + request(bytes + first, 2, 2, 20);
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

TEST(wrong_claims_are_violations)
{
    static const struct {
        const char *what;
        unsigned given, claimed; /* 0 claimed: the message is passed */
        size_t before;           /* bytes that come before the descriptors */
    } cases[] = {{"a claim without descriptors", 0, 1, 0},
                 {"another number", 1, 2, 0},
                 {"descriptors that nobody claims", 1, 0, 0},
                 {"descriptors in the middle of a message", 1, 1, 5}};
    unsigned char bytes[4096];
    size_t n = request(bytes, 1, 1, 10);
    struct rpc_input in;
    struct error e;
    int fd;

    for (unsigned i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct rpc_frame frame;
        int got[RPC_MAX_FDS], r;

        fd = open_one();
        rpc_input_init(&in, 4096);
        if (cases[i].before)
            feed(&in, bytes, cases[i].before, NULL, 0, &e);
        feed(&in, bytes + cases[i].before, n - cases[i].before, &fd, cases[i].given, &e);
        assert_int_equal(rpc_input_next(&in, &frame, &e), 1);
        r = cases[i].claimed ? rpc_input_claim(&in, cases[i].claimed, got, &e) : rpc_input_consume(&in, &e);
        if (r != -1 || e.code != ERROR_PROTOCOL_ERROR)
            fail_msg("%s: %d", cases[i].what, r);
        rpc_input_free(&in);
        if (!cases[i].given)
            close(fd);
        closed(fd);
    }
    /* More and more of them, while one message never ends. */
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
    struct rpc_output out;
    struct rpc_input in;
    struct rpc_frame frame;
    int pair[2], got[RPC_MAX_FDS], fd = open_one();
    unsigned char bytes[256];
    size_t lengths[3];
    bool full;
    struct error e;

    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
    rpc_output_init(&out, 1 << 20);
    for (unsigned i = 0; i < 3; i++) {
        uint64_t start = rpc_output_position(&out);

        lengths[i] = request(bytes, i, i == 1, 20);
        buffer_append(&out.bytes, bytes, lengths[i]);
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
            struct rpc_message m;

            assert_int_equal(rpc_message_parse(&frame, &m, &e), 0);
            assert_int_equal(rpc_input_claim(&in, m.nfds, got, &e), 0);
            if (m.nfds)
                assert_true(fcntl(got[0], F_GETFD) & FD_CLOEXEC);
            assert_int_equal(rpc_input_consume(&in, &e), 0);
        }
    }
    close(got[0]);
    close(pair[0]);
    assert_int_equal(rpc_socket_receive(pair[1], &in, &full, &e), RPC_END);
    close(pair[1]);
    rpc_input_free(&in);
}

TEST(too_many_descriptors_are_refused)
{
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE((RPC_MAX_FDS + 1) * sizeof(int))];
    } control = {0};
    unsigned char bytes[64];
    struct iovec iov = {bytes, request(bytes, 1, 16, 0)};
    struct msghdr message = {
        .msg_iov = &iov, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof(control.bytes)};
    struct cmsghdr *c = CMSG_FIRSTHDR(&message);
    int pair[2], fd = open_one(), probe;
    struct rpc_input in;
    struct error e;
    bool full;

    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN((RPC_MAX_FDS + 1) * sizeof(int));
    for (unsigned i = 0; i <= RPC_MAX_FDS; i++)
        memcpy(CMSG_DATA(c) + i * sizeof(int), &fd, sizeof(int));
    assert_true(sendmsg(pair[0], &message, 0) > 0);
    probe = open_one();
    close(probe);
    rpc_input_init(&in, 4096);
    assert_int_equal(rpc_socket_receive(pair[1], &in, &full, &e), RPC_VIOLATION);
    rpc_input_free(&in);
    assert_int_equal(open_one(), probe); /* none was kept */
    close(probe);
    close(fd);
    close(pair[0]);
    close(pair[1]);
}
