/* The daemon's side of a connection's shared memory: requests are copied, and bells are rung where they must be. All
 * else is tested over a real connection (tests/functional/test_ring.py). */
#include <poll.h>
#include <sys/mman.h>
#include <unistd.h>

#include "rpc/channel.h"
#include "tests/support/unit.h"

enum { LIMIT = 1 << 20, OUTPUT_MAX = 1 << 22, MEMORY = RING_PAGE_BYTES + RING_REQUEST_BYTES + RING_REPLY_BYTES };

struct fixture {
    struct rpc_channel *channel;
    struct rpc_output socket;
    int fds[CHANNEL_FDS];
    unsigned char *memory;
    struct ring_producer requests;
    struct ring_consumer replies;
    struct error error;
};

static struct fixture *f;

static int set_up(void **state)
{
    f = calloc(1, sizeof(*f));
    if (!f || rpc_channel_new(LIMIT, OUTPUT_MAX, &f->channel, f->fds, &f->error) < 0)
        return -1;
    f->memory = mmap(NULL, MEMORY, PROT_READ | PROT_WRITE, MAP_SHARED, f->fds[CHANNEL_MEMORY], 0);
    ring_client_ends(f->memory, RING_REQUEST_BYTES, RING_REPLY_BYTES, &f->requests, &f->replies);
    rpc_output_init(&f->socket, OUTPUT_MAX);
    return f->memory == MAP_FAILED ? -1 : 0;
}

static int tear_down(void **state)
{
    munmap(f->memory, MEMORY);
    for (unsigned i = 0; i < CHANNEL_FDS; i++)
        close(f->fds[i]);
    rpc_channel_free(f->channel);
    rpc_output_free(&f->socket);
    free(f);
    return 0;
}

/* Something of `length` bytes in all that is no request, but a value. */
static void put_bin(uint32_t length)
{
    const unsigned char head[5] = {0xc6, (unsigned char)(length >> 24), (unsigned char)(length >> 16),
                                   (unsigned char)(length >> 8), (unsigned char)length};
    unsigned char *body = calloc(1, length);

    assert_true(ring_room(&f->requests) >= (int64_t)length + 5);
    ring_write(&f->requests, head, sizeof(head));
    ring_write(&f->requests, body, length);
    free(body);
}

#define WITH_STATE(name) TEST_WITH(name, set_up, tear_down)

WITH_STATE(requests_arrive_privately)
{
    struct rpc_frame frame;

    assert_int_equal(rpc_channel_receive(f->channel, &f->error), RPC_WOULD_BLOCK);
    put_bin(1000);
    assert_int_equal(rpc_channel_receive(f->channel, &f->error), RPC_WOULD_BLOCK);
    ring_publish(&f->requests);
    assert_int_equal(rpc_channel_receive(f->channel, &f->error), RPC_RECEIVED);
    memset(f->memory + RING_PAGE_BYTES, 0xc1, RING_REQUEST_BYTES);
    assert_int_equal(rpc_input_next(&f->channel->input, &frame, &f->error), 1);
    assert_int_equal(frame.length, 1005);
    assert_int_equal(frame.data[0], 0xc6);
    assert_int_equal(frame.data[1004], 0);
    assert_true(frame.data < f->memory || frame.data >= f->memory + MEMORY);
    assert_int_equal(rpc_input_consume(&f->channel->input, &f->error), 0);
    assert_true(ring_room(&f->requests) == RING_REQUEST_BYTES);
}

WITH_STATE(sleeping)
{
    assert_true(rpc_channel_sleep(f->channel));
    put_bin(10);
    assert_true(ring_publish(&f->requests));
    assert_false(rpc_channel_sleep(f->channel));
    put_bin(10);
    assert_false(ring_publish(&f->requests)); /* it did not sleep: no bell is owed */
    assert_int_equal(rpc_channel_receive(f->channel, &f->error), RPC_RECEIVED);
    assert_true(rpc_channel_sleep(f->channel));
    rpc_channel_wake(f->channel);
    put_bin(10);
    assert_false(ring_publish(&f->requests));
}

WITH_STATE(who_sleeps_is_woken)
{
    struct pollfd wake = {f->fds[CHANNEL_WAKE], POLLIN, 0};

    for (int sleeps = 0; sleeps < 2; sleeps++) { /* until there is a reply */
        struct rpc_output *out = rpc_channel_begin(f->channel, &f->socket);

        if (sleeps)
            ring_consumer_sleeps(&f->replies);
        rpc_write_text(out, "x");
        rpc_channel_settle(f->channel, &f->socket);
        assert_int_equal(rpc_channel_flush(f->channel, &f->error), 1);
        assert_int_equal(poll(&wake, 1, 0), sleeps);
    }
    assert_int_equal(read(wake.fd, &(uint64_t){0}, 8), 8);
    put_bin(1000);
    ring_publish(&f->requests);
    ring_producer_sleeps(&f->requests); /* until there is room */
    assert_int_equal(poll(&wake, 1, 0), 0);
    assert_int_equal(rpc_channel_receive(f->channel, &f->error), RPC_RECEIVED);
    assert_int_equal(poll(&wake, 1, 0), 1);
}

static void reply(size_t length)
{
    char *text = calloc(1, length);

    memset(text, 'x', length - 1);
    rpc_write_text(rpc_channel_begin(f->channel, &f->socket), text);
    free(text);
}

WITH_STATE(replies_longer_than_half_a_ring_go_to_the_socket)
{
    reply(RING_REPLY_BYTES / 2 + 1);
    rpc_channel_settle(f->channel, &f->socket);
    assert_int_equal(rpc_channel_flush(f->channel, &f->error), 1);
    assert_true(ring_available(&f->replies) == 0);
    assert_true(buffer_length(&f->socket.bytes) > RING_REPLY_BYTES / 2);
}

WITH_STATE(a_full_ring_waits_for_room)
{
    unsigned char bytes[10000];

    for (unsigned i = 0; i < 5; i++)
        reply(RING_REPLY_BYTES / 4);
    rpc_channel_settle(f->channel, &f->socket);
    assert_int_equal(rpc_channel_flush(f->channel, &f->error), 0);
    assert_true(ring_available(&f->replies) == RING_REPLY_BYTES);
    while (rpc_channel_pending(f->channel)) {
        ring_read(&f->replies, bytes, sizeof(bytes));
        assert_true(ring_producer_waits(&f->replies)); /* asked for at every flush that could not do all */
        assert_in_range(rpc_channel_flush(f->channel, &f->error), 0, 1);
        assert_true(ring_available(&f->replies) > 0);
    }
}
