#include "executor/call.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

union control {
    struct cmsghdr header;
    unsigned char bytes[CMSG_SPACE(CALL_FDS_MAX * sizeof(int))];
};

static int send_parts(int socket, struct iovec *parts, unsigned n_parts, const int *fds, unsigned n)
{
    union control control;
    struct msghdr m = {.msg_iov = parts, .msg_iovlen = n_parts};
    ssize_t sent;

    if (n) {
        memset(&control, 0, sizeof(control));
        m.msg_control = &control;
        m.msg_controllen = CMSG_SPACE(n * sizeof(int));
        control.header.cmsg_level = SOL_SOCKET;
        control.header.cmsg_type = SCM_RIGHTS;
        control.header.cmsg_len = CMSG_LEN(n * sizeof(int));
        memcpy(CMSG_DATA(&control.header), fds, n * sizeof(int));
    }
    do
        sent = sendmsg(socket, &m, MSG_NOSIGNAL);
    while (sent < 0 && errno == EINTR);
    return sent < 0 ? -1 : 0;
}

static int drop(const int *fds, unsigned n)
{
    for (unsigned i = 0; i < n; i++)
        close(fds[i]);
    return -1;
}

static int receive_parts(int socket, struct iovec *parts, unsigned n_parts, int *ret_fds, unsigned *ret_n)
{
    union control control;
    struct msghdr m = {
        .msg_iov = parts, .msg_iovlen = n_parts, .msg_control = &control, .msg_controllen = sizeof(control)};
    ssize_t got;

    do
        got = recvmsg(socket, &m, MSG_CMSG_CLOEXEC);
    while (got < 0 && errno == EINTR);
    if (got <= 0)
        return -1;
    *ret_n = 0;
    for (struct cmsghdr *c = CMSG_FIRSTHDR(&m); c; c = CMSG_NXTHDR(&m, c)) {
        if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
            continue;
        *ret_n = (unsigned)((c->cmsg_len - CMSG_LEN(0)) / sizeof(int));
        memcpy(ret_fds, CMSG_DATA(c), *ret_n * sizeof(int));
    }
    if (!(m.msg_flags & (MSG_TRUNC | MSG_CTRUNC)))
        return (int)got;
    /* MSG_CTRUNC: this process has no descriptors left, and some of the message's are lost. */
    drop(ret_fds, *ret_n);
    *ret_n = 0;
    return m.msg_flags & MSG_TRUNC ? -1 : (int)got;
}

int call_send(int socket, const void *data, uint32_t size, const int *fds, unsigned n)
{
    struct iovec part = {.iov_base = (void *)(uintptr_t)data, .iov_len = size};

    return send_parts(socket, &part, 1, fds, n);
}

int call_receive(int socket, void *data, uint32_t size, int *ret_fds, unsigned *ret_n)
{
    struct iovec part = {.iov_base = data, .iov_len = size};

    return receive_parts(socket, &part, 1, ret_fds, ret_n);
}

int call_send_request(int socket, const struct call_request *request, const char *text, const int *fds)
{
    struct iovec parts[2] = {{.iov_base = (void *)(uintptr_t)request, .iov_len = sizeof(*request)},
                             {.iov_base = (void *)(uintptr_t)text, .iov_len = request->text_size}};

    return send_parts(socket, parts, request->text_size ? 2 : 1, fds, request->n_fds);
}

int call_receive_request(int socket, struct call_request *ret, char text[CALL_TEXT_MAX], int *ret_fds)
{
    struct iovec parts[2] = {{.iov_base = ret, .iov_len = sizeof(*ret)}, {.iov_base = text, .iov_len = CALL_TEXT_MAX}};
    unsigned n = 0;
    int got = receive_parts(socket, parts, 2, ret_fds, &n);

    if (got < 0)
        return -1;
    if ((size_t)got != sizeof(*ret) + ret->text_size || ret->n_fds != n)
        return drop(ret_fds, n);
    return 0;
}

int call_receive_reply(int socket, struct call_reply *ret, int *ret_fds)
{
    unsigned n = 0;
    int got = call_receive(socket, ret, sizeof(*ret), ret_fds, &n);

    if (got < 0)
        return -1;
    if ((size_t)got != sizeof(*ret) || (n && ret->n_fds != n))
        return drop(ret_fds, n);
    ret->n_fds = n;
    return 0;
}

/* ---- bells ---- */

int bell_new(int ret_ends[2])
{
    return socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ret_ends);
}

void bell_ring(int end)
{
    while (send(end, "", 1, MSG_DONTWAIT | MSG_NOSIGNAL) < 0 && errno == EINTR)
        ;
}

void bell_silence(int end)
{
    enum { READS = 4 };
    char bytes[256];

    for (unsigned i = 0; i < READS && recv(end, bytes, sizeof(bytes), MSG_DONTWAIT) == sizeof(bytes); i++)
        ;
}
