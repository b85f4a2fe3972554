/* The receive path on hostile bytes: framing, claiming descriptors, decoding messages and matching declared keys.
 *
 * An input is a script and a stream: one byte n, then n times {length of the chunk (2 bytes, big endian), descriptors
 * that come with it}, then the stream's bytes. What the script does not cover arrives in one last chunk.
 *
 * Beyond memory errors it checks: no descriptor is left open or closed twice, and a message is never longer than the
 * limit. What a message means is codec.c's to check. */
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "proto/generated/methods.h"
#include "rpc/input.h"
#include "rpc/message.h"
#include "rpc/output.h"
#include "rpc/value.h"
#include "tests/fuzz/fuzz.h"

enum { LIMIT = 4096, MAX_FDS = 256 };

struct state {
    struct rpc_input in;
    int fds[MAX_FDS]; /* every descriptor that went in; -1 where we closed it */
    unsigned n_fds;
};

static const struct rpc_field hello[] = {KOPS_PARAMS_HELLO(RPC_FIELD)};
static const struct rpc_field reg[] = {KOPS_PARAMS_REGISTER(RPC_FIELD)};
static const struct rpc_field run[] = {KOPS_PARAMS_RUN(RPC_FIELD)};
static const struct rpc_field stats[] = {KOPS_PARAMS_STATS(RPC_FIELD)};
static const struct rpc_field tensor[] = {KOPS_PARAMS_TENSOR(RPC_FIELD)};

#define COUNT(a) (sizeof(a) / sizeof((a)[0]))

static void check_error(const struct error *e)
{
    FUZZ_CHECK(e->code != ERROR_NONE && e->message[0]);
}

static void decode_tensors(const struct rpc_arg *list)
{
    const struct rpc_value *item = NULL;
    struct rpc_arg args[COUNT(tensor)];
    struct error e = {0};

    for (uint32_t i = 0; i < list->length; i++) {
        item = rpc_list_next(list, item);
        if (rpc_decode_map(item, tensor, COUNT(tensor), "in[0].", args, &e) < 0)
            check_error(&e);
    }
}

static void decode_params(const struct rpc_value *params)
{
    struct rpc_arg args[16];
    struct error e = {0};

    if (rpc_decode_map(params, hello, COUNT(hello), "", args, &e) < 0)
        check_error(&e);
    if (rpc_decode_map(params, reg, COUNT(reg), "", args, &e) < 0)
        check_error(&e);
    if (rpc_decode_map(params, stats, COUNT(stats), "", args, &e) < 0)
        check_error(&e);
    if (rpc_decode_map(params, run, COUNT(run), "", args, &e) < 0)
        check_error(&e);
    else
        for (unsigned i = 0; i < COUNT(run); i++)
            if (args[i].present && run[i].type == RPC_LIST)
                decode_tensors(&args[i]);
}

static void close_ours(struct state *s, int fd)
{
    for (unsigned i = 0; i < s->n_fds; i++) {
        if (s->fds[i] == fd) {
            FUZZ_CHECK(close(fd) == 0);
            s->fds[i] = -1;
            return;
        }
    }
    FUZZ_CHECK(!"a descriptor that nobody sent");
}

/* Takes every whole message. -1: a violation, as a connection would close on. */
static int take_messages(struct state *s)
{
    struct rpc_frame frame;
    struct error e = {0};
    int r;

    while ((r = rpc_input_next(&s->in, &frame, &e)) == 1) {
        struct rpc_message message;
        int fds[RPC_MAX_FDS];

        FUZZ_CHECK(frame.length > 0 && frame.length <= LIMIT);
        if (rpc_message_parse(&frame, &message, &e) < 0) {
            check_error(&e);
            return -1;
        }
        FUZZ_CHECK(message.nfds <= RPC_MAX_FDS);
        if (rpc_input_claim(&s->in, message.nfds, fds, &e) < 0) {
            check_error(&e);
            return -1;
        }
        for (unsigned i = 0; i < message.nfds; i++)
            close_ours(s, fds[i]);
        if (message.params)
            decode_params(message.params);
        if (rpc_input_consume(&s->in, &e) < 0) {
            check_error(&e);
            return -1;
        }
    }
    if (r < 0)
        check_error(&e);
    return r;
}

static int feed(struct state *s, const uint8_t *data, size_t size, unsigned n_fds)
{
    int fds[RPC_MAX_FDS];
    struct error e = {0};
    size_t room;

    if (n_fds > RPC_MAX_FDS || s->n_fds + n_fds > MAX_FDS)
        n_fds = 0;
    for (unsigned i = 0; i < n_fds; i++) {
        fds[i] = fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 100);
        FUZZ_CHECK(fds[i] >= 0);
        s->fds[s->n_fds++] = fds[i];
    }
    while (size) {
        unsigned char *at = rpc_input_reserve(&s->in, &room);

        FUZZ_CHECK(at && room);
        if (room > size)
            room = size;
        memcpy(at, data, room);
        if (rpc_input_commit(&s->in, room, fds, n_fds, &e) < 0) {
            check_error(&e);
            return -1;
        }
        n_fds = 0;
        data += room;
        size -= room;
        if (take_messages(s) < 0)
            return -1;
    }
    return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct state s = {0};
    const uint8_t *script = data + 1;
    unsigned n = size ? data[0] : 0;
    int r = 0;

    if (size < 1 + 3 * (size_t)n)
        return 0;
    rpc_input_init(&s.in, LIMIT);
    data += 1 + 3 * n;
    size -= 1 + 3 * n;
    for (unsigned i = 0; i < n && !r && size; i++, script += 3) {
        size_t length = (size_t)script[0] << 8 | script[1];

        if (length > size)
            length = size;
        if (!length)
            continue;
        r = feed(&s, data, length, script[2] % (RPC_MAX_FDS + 1));
        data += length;
        size -= length;
    }
    if (!r)
        feed(&s, data, size, 0);
    rpc_input_free(&s.in);
    for (unsigned i = 0; i < s.n_fds; i++)
        FUZZ_CHECK(s.fds[i] < 0 || fcntl(s.fds[i], F_GETFD) < 0);
    return 0;
}
