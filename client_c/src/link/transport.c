/* A connection's streams, on its socket and in its shared memory. */
#include "transport.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

/* ---- shared memory ---- */

static void ring_link_init(struct ring_link *l)
{
    *l = (struct ring_link){.doorbell = -1, .wake = -1};
}

/* Touching a mapping longer than its file would kill the process. */
static bool long_enough(int fd, uint64_t size)
{
    int seals = fcntl(fd, F_GET_SEALS);
    struct stat st;

    return seals >= 0 && seals & F_SEAL_SHRINK && fstat(fd, &st) == 0 && st.st_size >= 0 &&
           (uint64_t)st.st_size >= size;
}

const char *ring_link_open(struct ring_link *l, const struct ring_offer *offer)
{
    const char *wrong = NULL;
    void *memory = MAP_FAILED;
    size_t size = 0;

    if (!ring_size_valid(offer->request_bytes) || !ring_size_valid(offer->reply_bytes)) {
        wrong = "the sizes of its rings are no powers of two";
    } else {
        size = (size_t)ring_memory_bytes(offer->request_bytes, offer->reply_bytes);
        if (!long_enough(offer->fd, size))
            wrong = "its memory is not sealed, or shorter than it says";
        else
            memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, offer->fd, 0);
    }
    close(offer->fd);
    if (memory == MAP_FAILED) {
        close(offer->doorbell);
        close(offer->wake);
        return wrong ? wrong : "its memory cannot be mapped";
    }
    *l = (struct ring_link){.memory = memory, .size = size, .doorbell = offer->doorbell, .wake = offer->wake};
    fcntl(l->wake, F_SETFL, O_NONBLOCK);
    ring_client_ends(memory, offer->request_bytes, offer->reply_bytes, &l->requests, &l->replies);
    return NULL;
}

/* Unmaps and closes; safe without memory. */
static void ring_link_close(struct ring_link *l)
{
    if (!l->memory)
        return;
    munmap(l->memory, l->size);
    close(l->doorbell);
    close(l->wake);
    ring_link_init(l);
}

static void ring_bell(const struct ring_link *l)
{
    const uint64_t one = 1;

    /* A write fails only where the counter is full, and then the bell rings already. */
    if (write(l->doorbell, &one, sizeof(one)) < 0)
        return;
}

/* Writes as much as there is room for, at most n bytes. Returns how many, -EAGAIN for none, -EPROTO when the daemon
 * broke the ring. */
static ssize_t ring_link_send(struct ring_link *l, const void *data, size_t n)
{
    uint64_t room = ring_room_known(&l->requests);

    if (room < n) {
        int64_t now = ring_room(&l->requests);

        if (now < 0)
            return -EPROTO;
        room = (uint64_t)now;
    }
    if (n > room)
        n = (size_t)room;
    if (!n)
        return -EAGAIN;
    ring_write(&l->requests, data, n);
    if (ring_publish(&l->requests))
        ring_bell(l);
    return (ssize_t)n;
}

bool ring_link_unread(const struct ring_link *l, uint64_t end)
{
    uint64_t read = atomic_load_explicit(&l->requests.control->tail, memory_order_seq_cst);

    return end - read - 1 < l->requests.size;
}

/* Returns the window in which the daemon expects its next reply. */
static struct wait_window ring_link_window(const struct ring_link *l)
{
    return ring_window_get(l->memory);
}

/* Copies received bytes, at most `max`. Returns how many, 0 for none, -EPROTO. */
static ssize_t ring_link_receive(struct ring_link *l, void *into, size_t max)
{
    int64_t there = ring_available(&l->replies);
    size_t n;

    if (there <= 0)
        return there < 0 ? -EPROTO : 0;
    n = ring_read(&l->replies, into, max);
    if (ring_producer_waits(&l->replies))
        ring_bell(l);
    return (ssize_t)n;
}

/* Prepares for poll(2) on `wake`. False: there is something to receive already, or something is wrong. */
static bool ring_link_sleep(struct ring_link *l)
{
    ring_consumer_sleeps(&l->replies);
    if (ring_available(&l->replies) == 0)
        return true;
    ring_consumer_wakes(&l->replies);
    return false;
}

/* Ends the sleep after poll(2); `rung` when `wake` was readable. */
static void ring_link_awake(struct ring_link *l, bool rung)
{
    uint64_t count;

    ring_consumer_wakes(&l->replies);
    if (rung && read(l->wake, &count, sizeof(count)) < 0)
        return; /* another thread read it before */
}

bool ring_link_want_room(struct ring_link *l)
{
    ring_producer_sleeps(&l->requests);
    if (ring_room(&l->requests) == 0)
        return true;
    ring_producer_wakes(&l->requests);
    return false;
}

/* ---- both streams ---- */

enum { RECEIVE_ROOM = 16384, KEEP_CAPACITY = 256 << 10, POLLS_A_CLOCK = 16, SOCKET_LOOK_NS = 20000 };

void transport_init(struct transport *t)
{
    memset(t, 0, sizeof(*t));
    t->fd = -1;
    ring_link_init(&t->ring);
}

static int set_timeout(int fd, int option, int64_t us)
{
    struct timeval tv = {.tv_sec = us / 1000000, .tv_usec = us % 1000000};

    return setsockopt(fd, SOL_SOCKET, option, &tv, sizeof(tv));
}

int transport_dial(const char *path, int64_t timeout_ms, int *ret_fd)
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
    *ret_fd = fd;
    return 0;
}

void transport_adopt(struct transport *t, int fd)
{
    t->fd = fd;
    t->receive_timeout_us = 0;
    t->position = 0;
    for (unsigned i = 0; i < STREAMS; i++)
        scan_reset(&t->in[i].scan);
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
    ring_link_close(&t->ring);
    for (unsigned i = 0; i < STREAMS; i++) {
        t->in[i].start = t->in[i].end = 0;
        t->out[i].bytes.length = t->out[i].sent = 0;
        t->out[i].bytes.failed = false;
    }
}

void transport_free(struct transport *t)
{
    transport_close(t);
    for (unsigned i = 0; i < STREAMS; i++) {
        bytes_free(&t->out[i].bytes);
        free(t->in[i].data);
        t->in[i] = (struct inbox){.data = NULL};
    }
}

static ssize_t send_on_socket(const struct transport *t, const void *data, size_t n, const int *fds, unsigned n_fds)
{
    union {
        char space[CMSG_SPACE(TRANSPORT_MAX_FDS * sizeof(int))];
        struct cmsghdr align;
    } control;
    struct iovec iov = {.iov_base = (void *)(uintptr_t)data, .iov_len = n};
    struct msghdr message = {.msg_iov = &iov, .msg_iovlen = 1};
    ssize_t sent;

    if (n_fds) {
        struct cmsghdr *c = &control.align;

        memset(&control, 0, sizeof(control));
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN(n_fds * sizeof(int));
        memcpy(CMSG_DATA(c), fds, n_fds * sizeof(int));
        message.msg_control = &control;
        message.msg_controllen = CMSG_SPACE(n_fds * sizeof(int));
    }
    do
        sent = n_fds ? sendmsg(t->fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT)
                     : send(t->fd, data, n, MSG_NOSIGNAL | MSG_DONTWAIT);
    while (sent < 0 && errno == EINTR);
    return sent < 0 ? -errno : sent;
}

ssize_t transport_send(struct transport *t, enum stream stream, size_t until, const int *fds, unsigned n_fds)
{
    struct outbox *out = &t->out[stream];
    const char *data = out->bytes.data + out->sent;
    size_t n = until - out->sent;
    ssize_t sent = stream == STREAM_RING ? ring_link_send(&t->ring, data, n) : send_on_socket(t, data, n, fds, n_fds);

    if (sent < 0)
        return sent;
    out->sent += (size_t)sent;
    if (out->sent == out->bytes.length)
        out->bytes.length = out->sent = 0;
    return sent;
}

/* ---- receiving ---- */

/* Makes room behind the received bytes. A buffer that grew for a rare long reply is freed once it is empty. */
static bool make_room(struct inbox *in)
{
    size_t used = in->end - in->start, capacity = in->capacity;
    char *moved;

    if (in->capacity - in->end >= RECEIVE_ROOM && (used || in->capacity <= KEEP_CAPACITY))
        return true;
    if (!used && capacity > KEEP_CAPACITY)
        capacity = KEEP_CAPACITY;
    if (used)
        memmove(in->data, in->data + in->start, used);
    in->start = 0;
    in->end = used;
    while (capacity < used + RECEIVE_ROOM)
        capacity = capacity ? capacity * 2 : 4 * RECEIVE_ROOM;
    if (capacity == in->capacity)
        return true;
    moved = realloc(in->data, capacity);
    if (!moved)
        return false;
    in->data = moved;
    in->capacity = capacity;
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
            if (batch.n < TRANSPORT_MAX_FDS) {
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
    batch.from = t->position + (t->in[STREAM_SOCKET].end - t->in[STREAM_SOCKET].start);
    batch.to = batch.from + bytes;
    t->batches[t->n_batches++] = batch;
    return true;
}

static ssize_t receive_once(struct transport *t, int flags, bool *ret_broken)
{
    union {
        /* Room for one descriptor too many, to tell a message with too many from one that was cut. */
        char space[CMSG_SPACE((TRANSPORT_MAX_FDS + 1) * sizeof(int))];
        struct cmsghdr align;
    } control;
    struct inbox *in = &t->in[STREAM_SOCKET];
    struct iovec iov = {.iov_base = in->data + in->end, .iov_len = in->capacity - in->end};
    struct msghdr message = {
        .msg_iov = &iov, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof(control.space)};
    ssize_t n = recvmsg(t->fd, &message, flags | MSG_CMSG_CLOEXEC);

    if (n < 0)
        return -errno;
    *ret_broken = (message.msg_controllen || message.msg_flags & MSG_CTRUNC) && !keep_fds(t, &message, (size_t)n);
    in->end += (size_t)n;
    return n;
}

/* Sets the time that the next recvmsg may sleep. A timeout that is about right is kept, since setting one is a system
 * call: a steady stream of calls sets it once. A timeout that ends too early is set again. Returns 0 when the deadline
 * has passed, or a negative errno. */
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

static enum transport_result receive_on_socket(struct transport *t, uint64_t deadline, unsigned poll_us)
{
    uint64_t poll_until = 0;
    bool broken = false;
    ssize_t n;

    if (poll_us && deadline)
        poll_until = clock_ns() + (uint64_t)poll_us * 1000U;
    for (unsigned turn = 1;; turn++) {
        bool wait = deadline && !poll_until;

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
        if (poll_until) {
            if (turn % POLLS_A_CLOCK == 0 && clock_ns() >= poll_until) {
                poll_until = 0;
                t->polled_in_vain = true;
            }
        } else if (deadline != DEADLINE_NEVER && (!deadline || clock_ns() >= deadline)) {
            return TRANSPORT_TIMEOUT;
        }
    }
}

/* ---- receiving with shared memory ---- */

enum transport_result transport_drain(struct transport *t)
{
    struct inbox *in = &t->in[STREAM_RING];
    ssize_t n;

    if (!t->ring.memory)
        return TRANSPORT_TIMEOUT;
    if (!make_room(in))
        return TRANSPORT_NO_MEMORY;
    n = ring_link_receive(&t->ring, in->data + in->end, in->capacity - in->end);
    if (n <= 0)
        return n < 0 ? TRANSPORT_BROKEN : TRANSPORT_TIMEOUT;
    in->end += (size_t)n;
    return TRANSPORT_OK;
}

/* Bytes that the daemon wrote to the ring before it closed the socket come first. */
static enum transport_result look_at_socket(struct transport *t)
{
    enum transport_result r = receive_on_socket(t, 0, 0);

    return r == TRANSPORT_CLOSED && transport_drain(t) == TRANSPORT_OK ? TRANSPORT_OK : r;
}

/* Polls the ring a number of times, and the socket when it is due. */
static enum transport_result look(struct transport *t, uint64_t now, uint64_t *look_ns)
{
    enum transport_result r = TRANSPORT_TIMEOUT;

    for (unsigned turn = 0; turn < POLLS_A_CLOCK && r == TRANSPORT_TIMEOUT; turn++) {
        ring_pause();
        r = transport_drain(t);
    }
    if (r == TRANSPORT_TIMEOUT && now >= *look_ns) {
        r = look_at_socket(t);
        *look_ns = now + SOCKET_LOOK_NS;
    }
    return r;
}

/* `precise`: sleep with little slack, since an ordinary thread's timers are late by as much as a short kernel takes. */
static int poll_for(struct pollfd *p, nfds_t n, const struct timespec *rest, bool precise)
{
    const int slack = precise ? prctl(PR_GET_TIMERSLACK) : 0;
    int found;

    if (slack > 1)
        prctl(PR_SET_TIMERSLACK, 1UL);
    found = ppoll(p, n, rest, NULL);
    if (slack > 1)
        prctl(PR_SET_TIMERSLACK, (unsigned long)slack);
    return found;
}

/* Sleeps until the bell or the socket is readable, or until `until`: exactly until then if `precise`. */
static enum transport_result sleep_for_bell(struct transport *t, uint64_t until, bool precise)
{
    struct pollfd p[2] = {{.fd = t->ring.wake, .events = POLLIN}, {.fd = t->fd, .events = POLLIN}};
    const uint64_t now = until == DEADLINE_NEVER ? 0 : clock_ns(), left = until > now ? until - now : 0;
    const struct timespec rest = {.tv_sec = (time_t)(left / 1000000000U), .tv_nsec = (long)(left % 1000000000U)};
    enum transport_result r;
    int n;

    if (!ring_link_sleep(&t->ring))
        return transport_drain(t);
    n = poll_for(p, 2, until == DEADLINE_NEVER ? NULL : &rest, precise);
    ring_link_awake(&t->ring, n > 0 && p[0].revents);
    r = transport_drain(t);
    if (r == TRANSPORT_TIMEOUT && n > 0 && p[1].revents)
        r = look_at_socket(t);
    return r;
}

/* Returns the window of a wait that began at `begin`: the daemon's, or while many clients wait, one from the time that
 * such waits took. */
static struct wait_window window_of(const struct transport *t, uint64_t begin)
{
    struct wait_window w = ring_link_window(&t->ring);

    if (w.to_ns == WAIT_CROWDED && t->crowded_ns)
        w = wait_window_of(begin, t->crowded_ns);
    return w;
}

/* Waits by the daemon's forecast: sleeps, then polls. Without a forecast, or when it has gone, it polls for poll_us.
 * TRANSPORT_TIMEOUT: nothing came, and polling does not pay any more. */
static enum transport_result wait_by_forecast(struct transport *t, uint64_t deadline, unsigned poll_us)
{
    const uint64_t begin = clock_ns(), poll_ns = (uint64_t)poll_us * 1000U;
    uint64_t now = begin, until = begin + poll_ns, look_ns = begin + SOCKET_LOOK_NS;
    bool crowded = false;

    while (now < deadline) {
        enum transport_result r = look(t, now, &look_ns);
        struct wait_window w;

        if (r == TRANSPORT_TIMEOUT) {
            now = clock_ns();
            crowded = crowded || ring_link_window(&t->ring).to_ns == WAIT_CROWDED;
            w = window_of(t, begin);
            if (wait_sleeps_first(&w, now)) {
                const uint64_t end = wait_sleep_end(&w, now);

                r = sleep_for_bell(t, end < deadline ? end : deadline, true);
                now = clock_ns();
            } else if (now >= (wait_is_known(&w) ? w.to_ns : until)) {
                break;
            } else if (wait_is_known(&w)) {
                until = now + poll_ns; /* the daemon takes the window back just before it writes the reply */
            }
        }
        if (r != TRANSPORT_TIMEOUT) {
            if (crowded)
                t->crowded_ns = wait_learn(t->crowded_ns, clock_ns() - begin);
            return r;
        }
    }
    t->polled_in_vain = true;
    return TRANSPORT_TIMEOUT;
}

enum transport_result transport_receive(struct transport *t, uint64_t deadline, unsigned poll_us)
{
    enum transport_result r;

    t->polled_in_vain = false;
    if (!make_room(&t->in[STREAM_SOCKET]))
        return TRANSPORT_NO_MEMORY;
    if (!t->ring.memory)
        return receive_on_socket(t, deadline, poll_us);
    r = transport_drain(t);
    if (r != TRANSPORT_TIMEOUT)
        return r;
    if (!deadline)
        return look_at_socket(t);
    if (poll_us)
        r = wait_by_forecast(t, deadline, poll_us);
    return r == TRANSPORT_TIMEOUT ? sleep_for_bell(t, deadline, false) : r;
}

/* ---- whole messages ---- */

static const char *next_of(struct transport *t, enum stream stream, const char **ret_data, size_t *ret_length)
{
    struct inbox *in = &t->in[stream];
    enum scan_result r;

    if (in->start == in->end) {
        in->start = in->end = 0;
        return NULL;
    }
    r = scan_value(&in->scan, (const unsigned char *)in->data + in->start, in->end - in->start, TRANSPORT_MESSAGE_MAX);
    if (r == SCAN_MORE)
        return NULL;
    if (r != SCAN_COMPLETE)
        return scan_result_text(r);
    *ret_data = in->data + in->start;
    *ret_length = in->scan.position;
    t->taking = stream;
    return NULL;
}

const char *transport_next(struct transport *t, const char **ret_data, size_t *ret_length)
{
    const char *wrong = NULL;

    *ret_data = NULL;
    if (t->ring.memory)
        wrong = next_of(t, STREAM_RING, ret_data, ret_length);
    return wrong || *ret_data ? wrong : next_of(t, STREAM_SOCKET, ret_data, ret_length);
}

const char *transport_claim(struct transport *t, unsigned n, int *ret_fds)
{
    struct fd_batch *b = &t->batches[0];

    if (!n)
        return NULL;
    if (t->taking == STREAM_RING)
        return "a reply in shared memory claims descriptors";
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
    t->in[t->taking].start += length;
    scan_reset(&t->in[t->taking].scan);
    if (t->taking == STREAM_RING)
        return NULL;
    t->position += length;
    /* The next message begins at `position`: descriptors before it belong to no message. */
    if (t->n_batches && t->batches[0].to <= t->position)
        return "descriptors came that no message claims";
    return NULL;
}
