#include "rpc/output.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

void rpc_output_init(struct rpc_output *out, size_t max)
{
    out->position = 0;
    out->n_attachments = 0;
    buffer_init(&out->bytes, max);
}

void rpc_output_free(struct rpc_output *out)
{
    for (unsigned i = 0; i < out->n_attachments; i++)
        close(out->attachments[i].fd);
    out->n_attachments = 0;
    buffer_free(&out->bytes);
}

int rpc_output_attach(struct rpc_output *out, uint64_t start, int fd)
{
    if (out->n_attachments == RPC_OUTPUT_MAX_ATTACHMENTS) {
        close(fd);
        return -1;
    }
    out->attachments[out->n_attachments].start = start;
    out->attachments[out->n_attachments].end = rpc_output_position(out);
    out->attachments[out->n_attachments++].fd = fd;
    return 0;
}

void rpc_output_move(struct rpc_output *from, size_t length, struct rpc_output *to)
{
    if (from->bytes.failed)
        return;
    buffer_append(&to->bytes, from->bytes.data + from->bytes.end - length, length);
    from->bytes.end -= length;
}

/* The descriptors of the message that starts at the front, if any; *ret_length is cut so that one send holds nothing
 * after that message, and nothing of a later one that has descriptors. */
static unsigned attachments_here(const struct rpc_output *out, size_t *ret_length)
{
    unsigned n = 0;

    while (n < out->n_attachments && out->attachments[n].start == out->position)
        n++;
    if (n)
        *ret_length = (size_t)(out->attachments[0].end - out->position);
    else if (out->n_attachments)
        *ret_length = (size_t)(out->attachments[0].start - out->position);
    return n;
}

static ssize_t send_some(const struct rpc_output *out, int socket, size_t length, unsigned n_fds)
{
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(RPC_OUTPUT_MAX_ATTACHMENTS * sizeof(int))];
    } control;
    struct iovec iov = {out->bytes.data + out->bytes.start, length};
    struct msghdr message = {.msg_iov = &iov, .msg_iovlen = 1};
    ssize_t n;

    if (n_fds) {
        struct cmsghdr *c;

        memset(&control, 0, sizeof(control));
        message.msg_control = &control;
        message.msg_controllen = CMSG_SPACE(n_fds * sizeof(int));
        c = CMSG_FIRSTHDR(&message);
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN(n_fds * sizeof(int));
        for (unsigned i = 0; i < n_fds; i++)
            memcpy(CMSG_DATA(c) + i * sizeof(int), &out->attachments[i].fd, sizeof(int));
    }
    do /* without descriptors the simpler call is the faster one */
        n = n_fds ? sendmsg(socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT)
                  : send(socket, iov.iov_base, iov.iov_len, MSG_NOSIGNAL | MSG_DONTWAIT);
    while (n < 0 && errno == EINTR);
    return n;
}

/* ETOOMANYREFS: more descriptors are on their way, in any socket, than this user may have. */
static int refused(int cause)
{
    if (cause == EAGAIN || cause == EWOULDBLOCK)
        return 0;
    return cause == ENOBUFS || cause == ENOMEM || cause == ETOOMANYREFS ? RPC_OUTPUT_LATER : -1;
}

int rpc_output_flush(struct rpc_output *out, int socket)
{
    for (size_t length; (length = buffer_length(&out->bytes));) {
        unsigned n_fds = attachments_here(out, &length);
        ssize_t n = send_some(out, socket, length, n_fds);

        if (n < 0)
            return refused(errno);
        for (unsigned i = 0; i < n_fds; i++)
            close(out->attachments[i].fd);
        out->n_attachments -= n_fds;
        memmove(&out->attachments[0], &out->attachments[n_fds], out->n_attachments * sizeof(out->attachments[0]));
        out->position += (uint64_t)n;
        buffer_consume(&out->bytes, (size_t)n);
    }
    return 1;
}
