#include "rpc/input.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "codec/read.h"
#include "util/error.h"

enum { READ_ROOM = 16 * 1024, VALUES_A_CALL = 16 * 1024 };

void rpc_input_init(struct rpc_input *in, size_t limit)
{
    memset(in, 0, sizeof(*in));
    buffer_init(&in->bytes, limit + READ_ROOM);
    in->limit = limit;
}

void rpc_input_discard(const struct rpc_input *in, const int *fds, unsigned count)
{
    if (in->discard) {
        in->discard(in->context, fds, count);
        return;
    }
    for (unsigned i = 0; i < count; i++)
        close(fds[i]);
}

void rpc_input_free(struct rpc_input *in)
{
    for (unsigned i = 0; i < in->n_batches; i++)
        rpc_input_discard(in, in->batches[i].fds, in->batches[i].count);
    in->n_batches = 0;
    buffer_free(&in->bytes);
}

unsigned char *rpc_input_reserve(struct rpc_input *in, size_t *ret_room)
{
    unsigned char *at;

    /* A message under way may need more than one step's room. */
    at = buffer_reserve(&in->bytes, READ_ROOM);
    if (at)
        *ret_room = in->bytes.capacity - in->bytes.end;
    if (at && *ret_room > in->bytes.max - buffer_length(&in->bytes))
        *ret_room = in->bytes.max - buffer_length(&in->bytes);
    return at;
}

int rpc_input_commit(struct rpc_input *in, size_t n, const int *fds, unsigned n_fds, struct error *e)
{
    struct rpc_fd_batch batch = {.count = n_fds};

    batch.start = in->position + buffer_length(&in->bytes);
    batch.end = batch.start + n;
    in->bytes.end += n;
    if (!n_fds)
        return 0;
    memcpy(batch.fds, fds, n_fds * sizeof(fds[0]));
    if (in->n_batches == RPC_MAX_BATCHES) {
        rpc_input_discard(in, fds, n_fds);
        return error_set(e, ERROR_PROTOCOL_ERROR, "descriptors arrived that no message starts with");
    }
    in->batches[in->n_batches++] = batch;
    return 0;
}

int rpc_input_next(struct rpc_input *in, struct rpc_frame *ret_frame, struct error *e)
{
    const size_t length = buffer_length(&in->bytes);
    const unsigned char *data;
    enum scan_result r;

    in->paused = false;
    if (!length)
        return 0;
    data = in->bytes.data + in->bytes.start;
    /* A finished scan stands at the message's end until rpc_input_consume(). */
    r = in->scan.position && !in->scan.depth ? SCAN_COMPLETE
                                             : scan_some(&in->scan, data, length, in->limit, VALUES_A_CALL);
    in->paused = r == SCAN_PAUSED;
    if (r == SCAN_MORE || r == SCAN_PAUSED)
        return 0;
    if (r != SCAN_COMPLETE)
        return error_set(e, ERROR_PROTOCOL_ERROR, "%s", scan_result_text(r));
    *ret_frame = (struct rpc_frame){data, in->scan.position, in->scan.values};
    return 1;
}

static void drop_first_batch(struct rpc_input *in)
{
    in->n_batches--;
    memmove(&in->batches[0], &in->batches[1], in->n_batches * sizeof(in->batches[0]));
}

int rpc_input_claim(struct rpc_input *in, unsigned nfds, int *ret_fds, struct error *e)
{
    struct rpc_fd_batch *batch = &in->batches[0];

    if (!nfds)
        return 0;
    if (!in->n_batches || in->position < batch->start || in->position >= batch->end || batch->count != nfds)
        return error_set(e, ERROR_PROTOCOL_ERROR,
                         "nfds is %u, but another number of descriptors (or none) came with the start of the message",
                         nfds);
    memcpy(ret_fds, batch->fds, nfds * sizeof(ret_fds[0]));
    drop_first_batch(in);
    return 0;
}

int rpc_input_consume(struct rpc_input *in, struct error *e)
{
    in->position += in->scan.position;
    buffer_consume(&in->bytes, in->scan.position);
    scan_reset(&in->scan);
    if (in->n_batches && in->batches[0].end <= in->position)
        return error_set(e, ERROR_PROTOCOL_ERROR, "descriptors arrived that no message claims with nfds");
    return 0;
}

/* ---- a message ---- */

static const unsigned char *refuse(struct error *e, const char *what)
{
    error_set(e, ERROR_PROTOCOL_ERROR, "%s", what);
    return NULL;
}

/* Reads the elements before params. Returns where these begin; NULL: a violation. */
static const unsigned char *read_head(const unsigned char *at, struct rpc_message *m, struct error *e)
{
    struct codec_item item;
    uint32_t n;

    codec_read(at, &item);
    if (item.type != CODEC_ARRAY || item.count < 3)
        return refuse(e, "a message is [0, msgid, method, [params]] or [2, method, [params]]");
    n = item.count;
    codec_read(item.next, &item);
    if (item.type != CODEC_UINT)
        return refuse(e, "a message's first element is its type, 0 or 2");
    if (item.u == 0 && n == 4) {
        codec_read(item.next, &item);
        if (item.type != CODEC_UINT || item.u > UINT32_MAX)
            return refuse(e, "msgid must be an integer from 0 to 2^32 - 1");
        m->msgid = (uint32_t)item.u;
    } else if (item.u == 2 && n == 3) {
        m->notification = true;
    } else {
        return refuse(e, "a client sends requests (type 0, four elements) and notifications (type 2, three)");
    }
    codec_read(item.next, &item);
    if (item.type != CODEC_STR)
        return refuse(e, "method must be a str");
    m->method = item.text;
    m->method_length = item.count;
    return item.next;
}

int rpc_message_parse(const struct rpc_frame *frame, struct rpc_message *ret_message, struct error *e)
{
    struct rpc_message m = {.values = frame->values};
    const unsigned char *end = frame->data + frame->length, *params = read_head(frame->data, &m, e);
    struct codec_item item;
    int nfds;

    if (!params)
        return -1;
    codec_read(params, &item);
    if (m.values <= RPC_MAX_VALUES && item.type == CODEC_ARRAY && item.count == 1 &&
        codec_type_of(item.next) == CODEC_MAP) {
        m.params = (const struct rpc_value *)item.next;
        m.raw = item.next;
        m.raw_length = (size_t)(end - item.next);
        nfds = codec_nfds(m.raw, end, RPC_MAX_FDS); /* must be readable without knowing the method */
        if (nfds < 0)
            return error_set(e, ERROR_PROTOCOL_ERROR, "nfds must be an integer from 0 to 16");
        m.nfds = (unsigned)nfds;
    }
    *ret_message = m;
    return 0;
}

/* ---- a client's socket ---- */

enum { KERNEL_MAX_FDS = 253 }; /* SCM_MAX_FD of Linux */

static unsigned take_fds(struct msghdr *message, int *fds)
{
    unsigned n = 0;

    for (struct cmsghdr *c = CMSG_FIRSTHDR(message); c; c = CMSG_NXTHDR(message, c)) {
        unsigned here;

        if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
            continue;
        here = (unsigned)((c->cmsg_len - CMSG_LEN(0)) / sizeof(int));
        memcpy(fds + n, CMSG_DATA(c), here * sizeof(int));
        n += here;
    }
    return n;
}

enum rpc_receive rpc_socket_receive(int socket, struct rpc_input *in, bool *ret_full, struct error *e)
{
    /* Room for all that can come at once, though a message may have fewer: the kernel would close those that find none,
     * here and now, and that may last. CMSG_SPACE rounds up, which could let one more in. */
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(KERNEL_MAX_FDS * sizeof(int)) + sizeof(long)];
    } control;
    int fds[KERNEL_MAX_FDS + 4];
    struct iovec iov;
    struct msghdr message = {.msg_iov = &iov,
                             .msg_iovlen = 1,
                             .msg_control = &control,
                             .msg_controllen = CMSG_LEN(KERNEL_MAX_FDS * sizeof(int))};
    unsigned n_fds;
    ssize_t n;

    iov.iov_base = rpc_input_reserve(in, &iov.iov_len);
    if (!iov.iov_base) {
        error_set(e, ERROR_OUT_OF_MEMORY, "no memory to receive more");
        return RPC_VIOLATION;
    }
    do
        n = recvmsg(socket, &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
    while (n < 0 && errno == EINTR);
    if (n < 0 && (errno == ENOMEM || errno == ENOBUFS)) {
        error_set(e, ERROR_OUT_OF_MEMORY, "no memory to receive more");
        return RPC_VIOLATION;
    }
    if (n < 0)
        return errno == EAGAIN || errno == EWOULDBLOCK ? RPC_WOULD_BLOCK : RPC_END;
    n_fds = take_fds(&message, fds);
    if (n == 0 || (message.msg_flags & MSG_CTRUNC) || n_fds > RPC_MAX_FDS) {
        rpc_input_discard(in, fds, n_fds);
        if (n == 0)
            return RPC_END;
        if (n_fds > RPC_MAX_FDS)
            error_set(e, ERROR_PROTOCOL_ERROR, "more than %d descriptors came with one message", RPC_MAX_FDS);
        else /* the kernel could not give this process all of them */
            error_shortage(e, EMFILE, "the descriptors that came");
        return RPC_VIOLATION;
    }
    *ret_full = (size_t)n == iov.iov_len;
    return rpc_input_commit(in, (size_t)n, fds, n_fds, e) < 0 ? RPC_VIOLATION : RPC_RECEIVED;
}
