/* Calls on descriptors. A call that would block waits until another thread has used any descriptor, and tries again. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include "preload.h"

static uint64_t deadline(int64_t ms)
{
    return ms < 0 ? NEVER : world->now_ns + (uint64_t)ms * 1000000U;
}

/* What threads of this process wait for; a stale one looks itself where this is not known. */
static struct {
    const struct pollfd *fds; /* NULL: not known */
    nfds_t n;
} waiting[PARTIES];

/* Until something was done to a descriptor, or it is time, or a timer is due. False: `until` has come. */
static bool wait_for_descriptors(uint64_t until, const struct pollfd *fds, nfds_t n)
{
    const unsigned number = party_number(me);
    const uint64_t timer = timers_expire();

    if (world->now_ns >= until)
        return false;
    waiting[number].n = n;
    waiting[number].fds = fds;
    wait_until(timer < until ? timer : until, KEY_DESCRIPTORS);
    waiting[number].fds = NULL;
    return true;
}

/* A thread that waits would look and wait on: a turn, and another one back, for each thing that is done anywhere. */
void look_for_others(void)
{
    enum { AT_ONCE = 256 };
    struct pollfd all[AT_ONCE], *at = all;
    unsigned whose[PARTIES], n = 0;
    const int before = errno;

    for (unsigned i = 1; i < world->n_parties; i++) {
        const struct party *p = &world->parties[i];

        if (!p->stale || p->process != me->process || p->state != PARTY_WAITS || p->key != KEY_DESCRIPTORS || p == me ||
            !waiting[i].fds || waiting[i].n > (nfds_t)(all + AT_ONCE - at))
            continue;
        memcpy(at, waiting[i].fds, waiting[i].n * sizeof(*at));
        at += waiting[i].n;
        whose[n++] = i;
    }
    if (!n)
        return;
    timers_expire();
    if (REAL(poll)(all, (nfds_t)(at - all), 0) >= 0) {
        at = all;
        for (unsigned i = 0; i < n; i++) {
            bool ready = false;

            for (nfds_t k = 0; k < waiting[whose[i]].n; k++)
                ready |= at++->revents != 0;
            world->parties[whose[i]].stale = ready;
        }
    }
    errno = before;
}

/* ---- private descriptors: event counters that this process has not sent to another one ---- */

enum { ALONE = 1024 };

static bool is_alone[ALONE];

static bool alone(int fd)
{
    return fd >= 0 && fd < ALONE && is_alone[fd];
}

static void share(int fd)
{
    if (fd >= 0 && fd < ALONE)
        is_alone[fd] = false;
}

void forget_alone(void)
{
    memset(is_alone, 0, sizeof(is_alone));
}

EXPORT int eventfd(unsigned count, int flags)
{
    const int fd = REAL(eventfd)(count, flags);

    if (simulated() && fd >= 0 && fd < ALONE)
        is_alone[fd] = true;
    return fd;
}

static void share_sent(const struct msghdr *m)
{
    struct msghdr all = *m;

    for (struct cmsghdr *c = CMSG_FIRSTHDR(&all); c; c = CMSG_NXTHDR(&all, c))
        for (size_t i = 0; c->cmsg_type == SCM_RIGHTS && CMSG_LEN((i + 1) * sizeof(int)) <= c->cmsg_len; i++) {
            int fd;

            memcpy(&fd, CMSG_DATA(c) + i * sizeof(int), sizeof(fd));
            share(fd);
        }
}

static void done_alone(bool mine)
{
    const int before = errno;

    changed_descriptors(mine);
    step();
    errno = before;
}

static void done(int fd)
{
    done_alone(alone(fd));
}

/* ---- several at once ---- */

EXPORT int poll(struct pollfd *fds, nfds_t n, int ms)
{
    uint64_t until;
    int r;

    if (!simulated())
        return REAL(poll)(fds, n, ms);
    until = deadline(ms);
    step();
    do {
        timers_expire();
        r = REAL(poll)(fds, n, 0);
    } while (r == 0 && wait_for_descriptors(until, fds, n));
    return r;
}

EXPORT int ppoll(struct pollfd *fds, nfds_t n, const struct timespec *limit, const sigset_t *mask)
{
    const struct timespec now = {0};
    uint64_t until;
    int r;

    if (!simulated())
        return REAL(ppoll)(fds, n, limit, mask);
    until = limit ? world->now_ns + (uint64_t)limit->tv_sec * 1000000000U + (uint64_t)limit->tv_nsec : NEVER;
    step();
    do {
        timers_expire();
        r = REAL(ppoll)(fds, n, &now, mask);
    } while (r == 0 && wait_for_descriptors(until, mask ? NULL : fds, n));
    return r;
}

EXPORT int epoll_pwait(int epoll, struct epoll_event *events, int n, int ms, const sigset_t *mask)
{
    const struct pollfd any = {.fd = epoll, .events = POLLIN};
    uint64_t until;
    int r;

    if (!simulated())
        return REAL(epoll_pwait)(epoll, events, n, ms, mask);
    until = deadline(ms);
    step();
    do {
        timers_expire();
        r = REAL(epoll_pwait)(epoll, events, n, 0, mask);
    } while (r == 0 && wait_for_descriptors(until, mask ? NULL : &any, 1));
    return r;
}

EXPORT int epoll_wait(int epoll, struct epoll_event *events, int n, int ms)
{
    return simulated() ? epoll_pwait(epoll, events, n, ms, NULL) : REAL(epoll_wait)(epoll, events, n, ms);
}

EXPORT int select(int n, fd_set *restrict r, fd_set *restrict w, fd_set *restrict e, struct timeval *restrict limit)
{
    const fd_set none = {0}, before[3] = {r ? *r : none, w ? *w : none, e ? *e : none};
    uint64_t until;
    int found;

    if (!simulated())
        return REAL(select)(n, r, w, e, limit);
    until = limit ? world->now_ns + (uint64_t)limit->tv_sec * 1000000000U + (uint64_t)limit->tv_usec * 1000U : NEVER;
    step();
    for (;;) {
        struct timeval now = {0};

        timers_expire();
        found = REAL(select)(n, r, w, e, &now);
        if (found || !wait_for_descriptors(until, NULL, 0))
            return found;
        if (r)
            *r = before[0];
        if (w)
            *w = before[1];
        if (e)
            *e = before[2];
    }
}

/* ---- one ---- */

/* Before a call that could block: until it would not. False: SO_RCVTIMEO or SO_SNDTIMEO is over. */
static bool until_ready(int fd, short events, int flags)
{
    struct pollfd p = {.fd = fd, .events = events};
    struct timeval limit = {0};
    socklen_t bytes = sizeof(limit);
    uint64_t until = NEVER;

    step();
    if (flags & MSG_DONTWAIT || fcntl(fd, F_GETFL) & O_NONBLOCK)
        return true;
    if (!getsockopt(fd, SOL_SOCKET, events == POLLIN ? SO_RCVTIMEO : SO_SNDTIMEO, &limit, &bytes) &&
        (limit.tv_sec || limit.tv_usec))
        until = world->now_ns + (uint64_t)limit.tv_sec * 1000000000U + (uint64_t)limit.tv_usec * 1000U;
    for (;;) {
        timers_expire();
        if (REAL(poll)(&p, 1, 0))
            return true;
        if (!wait_for_descriptors(until, &p, 1)) {
            errno = EAGAIN;
            return false;
        }
    }
}

#define BLOCKING(type, name, events, flags, parameters, arguments)                                                     \
    EXPORT type name parameters                                                                                        \
    {                                                                                                                  \
        type r;                                                                                                        \
                                                                                                                       \
        if (!simulated()) {                                                                                            \
            r = REAL(name) arguments;                                                                                  \
            changed_descriptors(false);                                                                                \
            return r;                                                                                                  \
        }                                                                                                              \
        if (!until_ready(fd, events, flags))                                                                           \
            return -1;                                                                                                 \
        r = REAL(name) arguments;                                                                                      \
        done(fd);                                                                                                      \
        return r;                                                                                                      \
    }

BLOCKING(ssize_t, read, POLLIN, 0, (int fd, void *data, size_t n), (fd, data, n))
BLOCKING(ssize_t, write, POLLOUT, 0, (int fd, const void *data, size_t n), (fd, data, n))
BLOCKING(ssize_t, readv, POLLIN, 0, (int fd, const struct iovec *v, int n), (fd, v, n))
BLOCKING(ssize_t, writev, POLLOUT, 0, (int fd, const struct iovec *v, int n), (fd, v, n))
BLOCKING(ssize_t, recv, POLLIN, flags, (int fd, void *data, size_t n, int flags), (fd, data, n, flags))
BLOCKING(ssize_t, send, POLLOUT, flags, (int fd, const void *data, size_t n, int flags), (fd, data, n, flags))
BLOCKING(ssize_t, recvmsg, POLLIN, flags, (int fd, struct msghdr *m, int flags), (fd, m, flags))
BLOCKING(ssize_t, sendmsg, POLLOUT, flags, (int fd, const struct msghdr *m, int flags), (fd, (share_sent(m), m), flags))
BLOCKING(int, accept, POLLIN, 0, (int fd, struct sockaddr *restrict a, socklen_t *restrict n), (fd, a, n))
BLOCKING(int, accept4, POLLIN, 0, (int fd, struct sockaddr *restrict a, socklen_t *restrict n, int how),
         (fd, a, n, how))

EXPORT int connect(int fd, const struct sockaddr *address, socklen_t bytes)
{
    int r;

    if (simulated())
        step();
    r = REAL(connect)(fd, address, bytes);
    if (simulated())
        done(fd);
    return r;
}

EXPORT int shutdown(int fd, int how)
{
    const int r = REAL(shutdown)(fd, how);

    if (simulated())
        done(fd);
    return r;
}

/* Who closes a socket that lingers waits as long as that says, in virtual time. Bytes always wait in such a socket of a
 * simulation; asking for them would tell how far the system has come in real time. */
static void wait_for_peer(int fd)
{
    const struct linger at_once = {.l_onoff = 1};
    struct linger lasts = {0};
    socklen_t bytes = sizeof(lasts);
    const int before = errno;
    uint64_t until;

    if (getsockopt(fd, SOL_SOCKET, SO_LINGER, &lasts, &bytes) < 0 || !lasts.l_onoff || !lasts.l_linger) {
        errno = before;
        return;
    }
    setsockopt(fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof(at_once));
    until = world->now_ns + (uint64_t)lasts.l_linger * 1000000000U;
    while (world->now_ns < until)
        wait_until(until, KEY_NONE);
}

EXPORT int close(int fd)
{
    const bool mine = alone(fd);
    int r;

    if (simulated())
        wait_for_peer(fd);
    timers_forget(fd);
    share(fd);
    r = REAL(close)(fd);
    if (simulated())
        done_alone(mine);
    return r;
}

EXPORT int flock(int fd, int how)
{
    int r;

    if (!simulated())
        return REAL(flock)(fd, how);
    step();
    while ((r = REAL(flock)(fd, how | LOCK_NB)) < 0 && errno == EWOULDBLOCK && !(how & LOCK_NB))
        wait_for_descriptors(NEVER, NULL, 0);
    changed_descriptors(false);
    return r;
}

/* ---- random numbers ---- */

static void fill(void *data, size_t n)
{
    for (size_t i = 0; i < n; i++)
        ((unsigned char *)data)[i] = (unsigned char)world_random(world);
}

EXPORT ssize_t getrandom(void *data, size_t n, unsigned flags)
{
    if (!simulated())
        return REAL(getrandom)(data, n, flags);
    fill(data, n);
    return (ssize_t)n;
}

EXPORT int getentropy(void *data, size_t n)
{
    if (!simulated())
        return REAL(getentropy)(data, n);
    fill(data, n);
    return 0;
}
