#include "util/closer.h"

#include <linux/sockios.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "util/priority.h"

enum { STACK_BYTES = 256 * 1024, PEEK_BYTES = 4096, WAITING_MAX = 256 };
/* Ends what can be interrupted; whom it is sent to by somebody else does not mind. */
enum { INTERRUPTION = SIGURG };

struct closing {
    struct list link; /* in its lane's `waiting`, then in `closed` */
    struct closer *closer;
    struct closer_lane *lane;
    unsigned count;
    int fds[];
};

struct closer {
    uv_async_t finished;
    pthread_mutex_t lock;
    struct list lanes;  /* struct closer_lane, those with something in them */
    struct list closed; /* struct closing: what done() has to be told of */
    unsigned threads;
    bool stopped, freed;
};

static void close_all(const int *fds, unsigned count)
{
    for (unsigned i = 0; i < count; i++)
        close(fds[i]);
}

static void free_closer(struct closer *closer)
{
    pthread_mutex_destroy(&closer->lock);
    free(closer);
}

/* ---- a lane's thread ---- */

/* One is closed. Returns what the lane's thread closes next; NULL: it ends. Under the lock. */
static struct closing *next_of(struct closer *closer, struct closing *c)
{
    struct closer_lane *lane = c->lane;
    struct list *next;

    if (closer->stopped) { /* nobody asks, and the lane is gone */
        free(c);
        return NULL;
    }
    list_append(&closer->closed, &c->link);
    uv_async_send(&closer->finished);
    next = list_first(&lane->waiting);
    if (next) {
        list_remove(next);
        lane->n_waiting--;
    } else {
        list_remove(&lane->link);
    }
    lane->now = next ? list_entry(next, struct closing, link) : NULL;
    return lane->now;
}

static void interrupted(int number)
{
    (void)number;
}

static void *work_off(void *first)
{
    struct closing *c = first;
    struct closer *closer = c->closer;
    bool last;

    do {
        close_all(c->fds, c->count);
        pthread_mutex_lock(&closer->lock);
        c = next_of(closer, c);
        if (!c)
            closer->threads--;
        last = closer->freed && !closer->threads;
        pthread_mutex_unlock(&closer->lock);
    } while (c);
    if (last)
        free_closer(closer);
    return NULL;
}

static void *begin(void *first)
{
    priority_lower();
    return work_off(first);
}

/* Under the lock. */
static int start_thread(struct closing *first)
{
    sigset_t others, before;
    pthread_attr_t attr;
    int r = pthread_attr_init(&attr);

    if (r)
        return -r;
    pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
    pthread_attr_setstacksize(&attr, STACK_BYTES);
    sigfillset(&others); /* signals are the loop's thread's */
    sigdelset(&others, INTERRUPTION);
    pthread_sigmask(SIG_SETMASK, &others, &before);
    r = pthread_create(&first->lane->thread, &attr, begin, first);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attr);
    return -r;
}

/* ---- the loop's thread ---- */

static void tell(struct list *closed)
{
    list_for_each_safe (node, after, closed) {
        struct closing *c = list_entry(node, struct closing, link);

        list_remove(&c->link);
        c->lane->done(c->lane, c->count);
        free(c);
    }
}

static void on_finished(uv_async_t *async)
{
    struct closer *closer = async->data;
    struct list closed;

    pthread_mutex_lock(&closer->lock);
    list_take(&closed, &closer->closed);
    pthread_mutex_unlock(&closer->lock);
    tell(&closed);
}

struct closer *closer_new(uv_loop_t *loop)
{
    struct sigaction action = {.sa_handler = interrupted}; /* without SA_RESTART: that is what it is for */
    struct closer *closer = calloc(1, sizeof(*closer));

    if (!closer)
        return NULL;
    if (uv_async_init(loop, &closer->finished, on_finished) < 0) {
        free(closer);
        return NULL;
    }
    sigemptyset(&action.sa_mask);
    sigaction(INTERRUPTION, &action, NULL);
    closer->finished.data = closer;
    pthread_mutex_init(&closer->lock, NULL);
    list_init(&closer->lanes);
    list_init(&closer->closed);
    return closer;
}

void closer_stop(struct closer *closer)
{
    pthread_mutex_lock(&closer->lock);
    closer->stopped = true;
    tell(&closer->closed);
    list_for_each_safe (node, after, &closer->lanes) {
        struct closer_lane *lane = list_entry(node, struct closer_lane, link);
        struct list waiting;

        list_remove(&lane->link);
        list_take(&waiting, &lane->waiting);
        lane->n_waiting = 0;
        lane->done(lane, lane->now->count); /* its thread frees it, if it ever gets there */
        tell(&waiting);
    }
    pthread_mutex_unlock(&closer->lock);
    uv_close((uv_handle_t *)&closer->finished, NULL);
}

struct closer *closer_free(struct closer *closer)
{
    bool now;

    if (!closer)
        return NULL;
    pthread_mutex_lock(&closer->lock);
    closer->freed = true;
    now = !closer->threads;
    pthread_mutex_unlock(&closer->lock);
    if (now)
        free_closer(closer);
    return NULL;
}

void closer_lane_init(struct closer_lane *lane, void (*done)(struct closer_lane *lane, unsigned count))
{
    list_init(&lane->link);
    list_init(&lane->waiting);
    lane->n_waiting = 0;
    lane->now = NULL;
    lane->done = done;
}

void closer_close(struct closer *closer, struct closer_lane *lane, const int *fds, unsigned count)
{
    struct closing *c = malloc(sizeof(*c) + count * sizeof(c->fds[0]));
    bool here = false;

    if (!c) {
        close_all(fds, count);
        lane->done(lane, count);
        return;
    }
    c->closer = closer;
    c->lane = lane;
    c->count = count;
    memcpy(c->fds, fds, count * sizeof(c->fds[0]));
    list_init(&c->link);
    pthread_mutex_lock(&closer->lock);
    if (!lane->now) {
        lane->now = c;
        list_append(&closer->lanes, &lane->link);
        closer->threads++;
        here = start_thread(c) < 0;
    } else {
        list_append(&lane->waiting, &c->link);
        if (++lane->n_waiting > WAITING_MAX)
            pthread_kill(lane->thread, INTERRUPTION); /* it is there: it takes the lock before it ends */
    }
    pthread_mutex_unlock(&closer->lock);
    if (here)
        work_off(c);
}

unsigned closer_crowd(struct closer *closer, struct closer_lane *lane)
{
    unsigned more;

    pthread_mutex_lock(&closer->lock);
    more = lane->n_waiting > WAITING_MAX ? lane->n_waiting - WAITING_MAX : 0;
    if (more)
        pthread_kill(lane->thread, INTERRUPTION);
    pthread_mutex_unlock(&closer->lock);
    return more;
}

/* Whether descriptors may be among what waits in the socket. A look without room for them says so. */
static bool brings_descriptors(int socket)
{
    char bytes[PEEK_BYTES];
    struct iovec iov = {.iov_base = bytes, .iov_len = sizeof(bytes)};
    struct msghdr message = {.msg_iov = &iov, .msg_iovlen = 1};
    int unread = 0;
    ssize_t n;

    if (ioctl(socket, SIOCINQ, &unread) == 0 && !unread)
        return false;
    n = recvmsg(socket, &message, MSG_PEEK | MSG_DONTWAIT);
    return n < unread || (message.msg_flags & MSG_CTRUNC);
}

bool closer_close_socket(int socket)
{
    shutdown(socket, SHUT_RD);
    if (brings_descriptors(socket)) {
        shutdown(socket, SHUT_WR); /* the other end need not wait */
        return false;
    }
    close(socket);
    return true;
}
