#include "main/bound.h"

#include <errno.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <linux/sock_diag.h>
#include <linux/unix_diag.h>
#include <stdint.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/sysmacros.h>
#include <unistd.h>

/* The kernel's own numbers of states, which it shares with TCP. */
enum { STATE_CLOSED = 7, STATE_LISTENS = 10 };

enum { ANSWER_BYTES = 32768 };

static int ask(void)
{
    struct {
        struct nlmsghdr header;
        struct unix_diag_req request;
    } message = {.header = {.nlmsg_len = sizeof(message),
                            .nlmsg_type = SOCK_DIAG_BY_FAMILY,
                            .nlmsg_flags = NLM_F_REQUEST | NLM_F_DUMP},
                 .request = {.sdiag_family = AF_UNIX,
                             .udiag_states = 1U << STATE_CLOSED | 1U << STATE_LISTENS,
                             .udiag_show = UDIAG_SHOW_VFS}};
    int fd = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_SOCK_DIAG);

    if (fd >= 0 && send(fd, &message, sizeof(message), 0) < 0) {
        close(fd);
        fd = -1;
    }
    return fd;
}

/* The kernel has its own encoding of devices, and tells 32 bits of an inode's number. */
static bool is_file(const struct nlmsghdr *header, const struct stat *st)
{
    const struct unix_diag_msg *body = NLMSG_DATA(header);
    const struct rtattr *attribute = (const struct rtattr *)(const void *)(body + 1);
    unsigned left = header->nlmsg_len - NLMSG_LENGTH(sizeof(*body));

    for (; RTA_OK(attribute, left); attribute = RTA_NEXT(attribute, left)) {
        struct unix_diag_vfs vfs;

        if (attribute->rta_type != UNIX_DIAG_VFS || RTA_PAYLOAD(attribute) < sizeof(vfs))
            continue;
        memcpy(&vfs, RTA_DATA(attribute), sizeof(vfs));
        return vfs.udiag_vfs_ino == (uint32_t)st->st_ino &&
               vfs.udiag_vfs_dev == (major(st->st_dev) << 20 | minor(st->st_dev));
    }
    return false;
}

bool socket_is_bound(const struct stat *st)
{
    _Alignas(struct nlmsghdr) unsigned char answer[ANSWER_BYTES];
    const int fd = ask();
    bool bound = false, more = fd >= 0;

    while (more) {
        const struct nlmsghdr *header = (const struct nlmsghdr *)(const void *)answer;
        ssize_t n = recv(fd, answer, sizeof(answer), 0);
        unsigned left = n > 0 ? (unsigned)n : 0;

        if (n < 0 && errno == EINTR)
            continue;
        more = n > 0;
        for (; NLMSG_OK(header, left); header = NLMSG_NEXT(header, left)) {
            if (header->nlmsg_type == SOCK_DIAG_BY_FAMILY)
                bound = bound || is_file(header, st);
            else if (header->nlmsg_type == NLMSG_DONE || header->nlmsg_type == NLMSG_ERROR)
                more = false;
        }
    }
    if (fd >= 0)
        close(fd);
    return bound;
}
