/* The daemon's side of a connection's shared memory, where the input owns the client's: every byte and word of it, at
 * any time between two of the daemon's steps.
 *
 * An input is a list of steps, one byte each with what it takes behind it; see enum step. Every message is answered
 * with what came, so that the reply ring fills.
 *
 * Beyond memory errors it checks: no message is longer than the limit, a violation is an error with a text, the daemon
 * never has more in the reply ring than fits, and the memory around the rings is never asked for. */
#include <string.h>
#include <unistd.h>

#include "rpc/channel.h"
#include "rpc/input.h"
#include "tests/fuzz/fuzz.h"

enum { LIMIT = 4096, OUTPUT_BYTES = 1 << 20, PAUSE = 64 * 1024 };

enum step {
    PUT,      /* n, then n bytes: into the request ring, and shown */
    REPEAT,   /* n: the last PUT once more, n times */
    SET_WORD, /* which of the 16 half lines, 8 bytes: its new value */
    ADD_WORD, /* which, 2 bytes: what is added to it, signed */
    SCRIBBLE, /* 3 bytes: offset; n: bytes of 0xff there */
    RECEIVE,
    FLUSH,
    TAKE, /* reads all replies, as a client should */
    SLEEP,
    STEPS
};

struct state {
    struct rpc_channel *channel;
    struct rpc_output socket;
    uint64_t head; /* the client's */
    const uint8_t *put;
    size_t put_length;
};

static _Atomic uint64_t *word(const struct state *s, unsigned which)
{
    return (_Atomic uint64_t *)(void *)(s->channel->memory + RING_LINE_BYTES / 2 * (which % 16));
}

static void put(struct state *s)
{
    unsigned char *ring = s->channel->memory + RING_PAGE_BYTES;

    for (size_t i = 0; i < s->put_length; i++)
        ring[(s->head + i) % RING_REQUEST_BYTES] = s->put[i];
    s->head += s->put_length;
    atomic_store(&((struct ring_page *)(void *)s->channel->memory)->request.head, s->head);
}

static int violated(const struct error *e)
{
    FUZZ_CHECK(e->code != ERROR_NONE && e->message[0]);
    return -1;
}

static void answer(struct state *s, const struct rpc_message *message)
{
    struct rpc_output *out = rpc_channel_begin(s->channel, &s->socket);

    rpc_write_result(out, message->msgid);
    if (message->params)
        rpc_write_raw(out, message->raw, message->raw_length);
    else
        rpc_write_nil(out);
    rpc_channel_settle(s->channel, &s->socket);
    FUZZ_CHECK(!out->bytes.failed);
}

static int take_messages(struct state *s)
{
    struct error e = {0};
    struct rpc_frame frame;
    int fds[RPC_MAX_FDS], r;

    while (rpc_channel_pending(s->channel) < PAUSE && (r = rpc_input_next(&s->channel->input, &frame, &e)) != 0) {
        struct rpc_message message;

        if (r < 0)
            return violated(&e);
        FUZZ_CHECK(frame.length > 0 && frame.length <= LIMIT);
        if (rpc_message_parse(&frame, &message, &e) < 0)
            return violated(&e);
        if (rpc_input_claim(&s->channel->input, message.nfds, fds, &e) < 0)
            return violated(&e);
        FUZZ_CHECK(!message.nfds); /* none ever come through a ring */
        if (!message.notification)
            answer(s, &message);
        if (rpc_input_consume(&s->channel->input, &e) < 0)
            return violated(&e);
    }
    return 0;
}

static int receive(struct state *s)
{
    struct error e = {0};

    if (take_messages(s) < 0)
        return -1;
    if (rpc_channel_pending(s->channel) >= PAUSE)
        return 0;
    switch (rpc_channel_receive(s->channel, &e)) {
    case RPC_VIOLATION:
        return violated(&e);
    case RPC_RECEIVED:
        return take_messages(s);
    case RPC_WOULD_BLOCK:
        return 0;
    case RPC_END:
        break;
    }
    FUZZ_CHECK(!"the end of a ring");
    return -1;
}

static int flush(struct state *s)
{
    const struct ring_producer *p = &s->channel->replies;
    struct error e = {0};
    int r = rpc_channel_flush(s->channel, &e);

    FUZZ_CHECK(p->head - p->tail <= p->size);
    FUZZ_CHECK(r == (rpc_channel_pending(s->channel) ? 0 : 1) || r < 0);
    return r < 0 ? violated(&e) : 0;
}

static void take_replies(struct state *s)
{
    struct ring_page *page = (void *)s->channel->memory;
    char bells[64];

    atomic_store(&page->reply.tail, atomic_load(&page->reply.head));
    (void)!read(s->channel->doorbell, bells, sizeof(bells));
}

static uint64_t number(const uint8_t *bytes, unsigned n)
{
    uint64_t value = 0;

    while (n)
        value = value << 8 | bytes[--n];
    return value;
}

/* One step; returns how many bytes it took, 0 at the end or after a violation. */
static size_t step(struct state *s, const uint8_t *data, size_t size)
{
    static const size_t arguments[STEPS] = {[PUT] = 1, [REPEAT] = 1, [SET_WORD] = 9, [ADD_WORD] = 3, [SCRIBBLE] = 4};
    enum step what = data[0] % STEPS;
    size_t taken = 1 + arguments[what], at;
    int r = 0;

    if (size < taken)
        return 0;
    switch (what) {
    case PUT:
        if (size - taken < data[1])
            return 0;
        s->put = data + taken;
        s->put_length = data[1];
        taken += data[1];
        put(s);
        break;
    case REPEAT:
        for (unsigned i = 0; i < data[1]; i++)
            put(s);
        break;
    case SET_WORD:
        atomic_store(word(s, data[1]), number(data + 2, 8));
        break;
    case ADD_WORD:
        atomic_fetch_add(word(s, data[1]), (uint64_t)(int64_t)(int16_t)number(data + 2, 2));
        break;
    case SCRIBBLE:
        at = number(data + 1, 3) % (RING_PAGE_BYTES + RING_REQUEST_BYTES + RING_REPLY_BYTES - 255);
        memset(s->channel->memory + at, 0xff, data[4]);
        break;
    case RECEIVE:
        r = receive(s);
        break;
    case FLUSH:
        r = flush(s);
        break;
    case TAKE:
        take_replies(s);
        break;
    case SLEEP:
        if (rpc_channel_sleep(s->channel))
            rpc_channel_wake(s->channel);
        break;
    case STEPS:
        break;
    }
    return r < 0 ? 0 : taken;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct state s = {0};
    int fds[CHANNEL_FDS];
    struct error e;
    size_t n;

    FUZZ_CHECK(rpc_channel_new(LIMIT, OUTPUT_BYTES, &s.channel, fds, &e) == 0);
    rpc_output_init(&s.socket, OUTPUT_BYTES);
    while (size && (n = step(&s, data, size)) > 0) {
        data += n;
        size -= n;
    }
    rpc_output_free(&s.socket);
    rpc_channel_free(s.channel);
    for (unsigned i = 0; i < CHANNEL_FDS; i++)
        close(fds[i]);
    return 0;
}
