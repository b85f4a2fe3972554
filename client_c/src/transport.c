#include "transport.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

enum { RECEIVE_ROOM = 16384, KEEP_CAPACITY = 256 << 10, SPINS_A_CLOCK = 16 };

uint64_t clock_ns(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000U + (uint64_t)t.tv_nsec;
}

uint64_t deadline_in(int64_t ms)
{
    if (ms < 0 || ms > INT64_MAX / 2000000)
        return DEADLINE_NEVER;
    return clock_ns() + (uint64_t)ms * 1000000U;
}

int deadline_poll_ms(uint64_t deadline)
{
    uint64_t now, ms;

    if (deadline == DEADLINE_NEVER)
        return -1;
    now = clock_ns();
    if (now >= deadline)
        return 0;
    ms = (deadline - now + 999999U) / 1000000U;
    return ms < 1000000 ? (int)ms : 1000000;
}

void transport_init(struct transport *t)
{
    memset(t, 0, sizeof(*t));
    t->fd = -1;
}

static int set_timeout(int fd, int option, int64_t us)
{
    struct timeval tv = {.tv_sec = us / 1000000, .tv_usec = us % 1000000};

    return setsockopt(fd, SOL_SOCKET, option, &tv, sizeof(tv));
}

int transport_connect(struct transport *t, const char *path, int64_t timeout_ms)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    size_t length = strlen(path);
    int fd, r;

    if (length >= sizeof(address.sun_path))
        return ENAMETOOLONG;
    memcpy(address.sun_path, path, length + 1);
    fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return errno;
    /* A full backlog makes connect wait, bounded by the send timeout. */
    if (timeout_ms >= 0)
        set_timeout(fd, SO_SNDTIMEO, (timeout_ms ? timeout_ms : 1) * 1000);
    do
        r = connect(fd, (struct sockaddr *)&address, sizeof(address));
    while (r < 0 && errno == EINTR);
    if (r < 0) {
        r = errno;
        close(fd);
        return r == EAGAIN ? ETIMEDOUT : r;
    }
    t->fd = fd;
    t->receive_timeout_us = 0;
    t->position = 0;
    scan_reset(&t->scan);
    return 0;
}

static void drop_batch(struct transport *t)
{
    for (unsigned i = 0; i < t->batches[0].n; i++)
        if (t->batches[0].fds[i] >= 0)
            close(t->batches[0].fds[i]);
    t->n_batches--;
    memmove(&t->batches[0], &t->batches[1], t->n_batches * sizeof(t->batches[0]));
}

void transport_close(struct transport *t)
{
    if (t->fd >= 0)
        close(t->fd);
    t->fd = -1;
    while (t->n_batches)
        drop_batch(t);
    t->start = t->end = 0;
    t->out.length = t->sent = 0;
    t->out.failed = false;
}

void transport_free(struct transport *t)
{
    transport_close(t);
    bytes_free(&t->out);
    free(t->in);
    t->in = NULL;
    t->capacity = 0;
}

ssize_t transport_send(struct transport *t, size_t until, int fd)
{
    union {
        char space[CMSG_SPACE(sizeof(int))];
        struct cmsghdr align;
    } control;
    struct iovec iov = {.iov_base = t->out.data + t->sent, .iov_len = until - t->sent};
    struct msghdr message = {.msg_iov = &iov, .msg_iovlen = 1};
    ssize_t n;

    if (fd < 0) {
        do
            n = send(t->fd, iov.iov_base, iov.iov_len, MSG_NOSIGNAL | MSG_DONTWAIT);
        while (n < 0 && errno == EINTR);
    } else {
        struct cmsghdr *c = &control.align;

        memset(&control, 0, sizeof(control));
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN(sizeof(int));
        memcpy(CMSG_DATA(c), &fd, sizeof(fd));
        message.msg_control = &control;
        message.msg_controllen = sizeof(control.space);
        do
            n = sendmsg(t->fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
        while (n < 0 && errno == EINTR);
    }
    if (n < 0)
        return -errno;
    t->sent += (size_t)n;
    if (t->sent == t->out.length)
        t->out.length = t->sent = 0;
    return n;
}

/* ---- receiving ---- */

/* Room behind what is there; big buffers of a rare long reply are given back once empty. */
static bool make_room(struct transport *t)
{
    size_t used = t->end - t->start, capacity = t->capacity;
    char *moved;

    if (t->capacity - t->end >= RECEIVE_ROOM && (used || t->capacity <= KEEP_CAPACITY))
        return true;
    if (!used && capacity > KEEP_CAPACITY)
        capacity = KEEP_CAPACITY;
    if (used)
        memmove(t->in, t->in + t->start, used);
    t->start = 0;
    t->end = used;
    while (capacity < used + RECEIVE_ROOM)
        capacity = capacity ? capacity * 2 : 4 * RECEIVE_ROOM;
    if (capacity == t->capacity)
        return true;
    moved = realloc(t->in, capacity);
    if (!moved)
        return false;
    t->in = moved;
    t->capacity = capacity;
    return true;
}

/* Keeps the descriptors of one recvmsg. False: more than a message may bring, or they were cut. */
static bool keep_fds(struct transport *t, struct msghdr *message, size_t bytes)
{
    struct fd_batch batch = {.n = 0};
    bool cut = message->msg_flags & MSG_CTRUNC;

    for (struct cmsghdr *c = CMSG_FIRSTHDR(message); c; c = CMSG_NXTHDR(message, c)) {
        size_t n = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);

        if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
            continue;
        for (size_t i = 0; i < n; i++) {
            int fd;

            memcpy(&fd, CMSG_DATA(c) + i * sizeof(int), sizeof(int));
            if (batch.n < WIRE_MAX_FDS) {
                batch.fds[batch.n++] = fd;
            } else {
                close(fd);
                cut = true;
            }
        }
    }
    if (!batch.n)
        return !cut;
    if (cut || t->n_batches == TRANSPORT_MAX_BATCHES) {
        for (unsigned i = 0; i < batch.n; i++)
            close(batch.fds[i]);
        return false;
    }
    batch.from = t->position + (t->end - t->start);
    batch.to = batch.from + bytes;
    t->batches[t->n_batches++] = batch;
    return true;
}

static ssize_t receive_once(struct transport *t, int flags, bool *ret_broken)
{
    union {
        /* One more than allowed, so that too many is told apart from cut off. */
        char space[CMSG_SPACE((WIRE_MAX_FDS + 1) * sizeof(int))];
        struct cmsghdr align;
    } control;
    struct iovec iov = {.iov_base = t->in + t->end, .iov_len = t->capacity - t->end};
    struct msghdr message = {
        .msg_iov = &iov, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof(control.space)};
    ssize_t n = recvmsg(t->fd, &message, flags | MSG_CMSG_CLOEXEC);

    if (n < 0)
        return -errno;
    *ret_broken = (message.msg_controllen || message.msg_flags & MSG_CTRUNC) && !keep_fds(t, &message, (size_t)n);
    t->end += (size_t)n;
    return n;
}

/* How long the next recvmsg may sleep. Reuses a timeout that is about right, since setting one is a system call: a
 * steady stream of calls with one timeout sets it once. One that ends too early is armed again. Returns 0 when the
 * deadline has passed, or a negative errno. */
static int arm_timeout(struct transport *t, uint64_t deadline)
{
    int64_t us = 0;

    if (deadline != DEADLINE_NEVER) {
        uint64_t now = clock_ns();

        us = deadline > now ? (int64_t)((deadline - now) / 1000) : 0;
        if (us == 0)
            return 0;
    }
    if (us == t->receive_timeout_us || (us && t->receive_timeout_us && llabs(us - t->receive_timeout_us) < us / 64))
        return 1;
    if (set_timeout(t->fd, SO_RCVTIMEO, us) < 0)
        return -errno;
    t->receive_timeout_us = us;
    return 1;
}

enum transport_result transport_receive(struct transport *t, uint64_t deadline, unsigned spin_us)
{
    uint64_t spin_until = 0;
    bool broken = false;
    ssize_t n;

    if (!make_room(t))
        return TRANSPORT_NO_MEMORY;
    if (spin_us && deadline)
        spin_until = clock_ns() + (uint64_t)spin_us * 1000U;
    for (unsigned turn = 1;; turn++) {
        bool wait = deadline && !spin_until;

        if (wait) {
            int armed = arm_timeout(t, deadline);

            if (armed < 0)
                return TRANSPORT_CLOSED;
            wait = armed > 0;
        }
        n = receive_once(t, wait ? 0 : MSG_DONTWAIT, &broken);
        if (broken)
            return TRANSPORT_BROKEN;
        if (n > 0)
            return TRANSPORT_OK;
        if (n == 0 || (n != -EAGAIN && n != -EINTR))
            return TRANSPORT_CLOSED;
        if (spin_until) {
            if (turn % SPINS_A_CLOCK == 0 && clock_ns() >= spin_until)
                spin_until = 0;
        } else if (deadline != DEADLINE_NEVER && (!deadline || clock_ns() >= deadline)) {
            return TRANSPORT_TIMEOUT;
        }
    }
}

const char *transport_next(struct transport *t, const char **ret_data, size_t *ret_length)
{
    enum scan_result r;

    *ret_data = NULL;
    if (t->start == t->end) {
        t->start = t->end = 0;
        return NULL;
    }
    r = scan_value(&t->scan, (const unsigned char *)t->in + t->start, t->end - t->start, TRANSPORT_MESSAGE_MAX);
    if (r == SCAN_MORE)
        return NULL;
    if (r != SCAN_COMPLETE)
        return scan_result_text(r);
    *ret_data = t->in + t->start;
    *ret_length = t->scan.position;
    return NULL;
}

const char *transport_claim(struct transport *t, unsigned n, int *ret_fds)
{
    struct fd_batch *b = &t->batches[0];

    if (!n)
        return NULL;
    if (!t->n_batches || t->position < b->from || t->position >= b->to)
        return "a reply claims descriptors that did not come with it";
    if (b->n != n)
        return "a reply claims another number of descriptors than came with it";
    memcpy(ret_fds, b->fds, n * sizeof(int));
    b->n = 0;
    drop_batch(t);
    return NULL;
}

const char *transport_taken(struct transport *t, size_t length)
{
    t->start += length;
    t->position += length;
    scan_reset(&t->scan);
    /* The next message begins at `position`: whatever came before it belongs to nobody. */
    if (t->n_batches && t->batches[0].to <= t->position)
        return "descriptors came that no message claims";
    return NULL;
}
