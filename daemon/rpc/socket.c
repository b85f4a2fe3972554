#include "rpc/socket.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>

#include "util/error.h"

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
