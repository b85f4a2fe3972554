#include "util/close_queue.h"

#include <linux/sockios.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "util/process.h"

enum { STACK_BYTES = 256 * 1024, PEEK_BYTES = 4096, WAITING_MAX = 256 };
/* Interrupts a close that waits. Stray SIGURGs are harmless. */
enum { INTERRUPTION = SIGURG };

struct closing {
    struct list link; /* in its queue's `waiting`, then in `closed` */
    struct close_queues *queues;
    struct close_queue *queue;
    unsigned count;
    int fds[];
};

struct close_queues {
    uv_async_t finished;
    pthread_mutex_t lock;
    struct list busy;   /* struct close_queue: those with entries */
    struct list closed; /* struct closing: not yet reported to done() */
    unsigned threads;
    bool stopped, freed;
};

static void close_all(const int *fds, unsigned count)
{
    for (unsigned i = 0; i < count; i++)
        close(fds[i]);
}

static void free_queues(struct close_queues *queues)
{
    pthread_mutex_destroy(&queues->lock);
    free(queues);
}

/* ---- a queue's thread ---- */

/* After a close. Returns the queue's next entry; NULL: the thread ends. Under the lock. */
static struct closing *next_of(struct close_queues *queues, struct closing *c)
{
    struct close_queue *queue = c->queue;
    struct list *next;

    if (queues->stopped) { /* done() was called, and the queue is gone */
        free(c);
        return NULL;
    }
    list_append(&queues->closed, &c->link);
    uv_async_send(&queues->finished);
    next = list_pop(&queue->waiting);
    if (next)
        queue->n_waiting--;
    else
        list_remove(&queue->link);
    queue->now = next ? list_entry(next, struct closing, link) : NULL;
    return queue->now;
}

static void interrupted(int number)
{
    (void)number;
}

static void *work_off(void *first)
{
    struct closing *c = first;
    struct close_queues *queues = c->queues;
    bool last;

    do {
        close_all(c->fds, c->count);
        pthread_mutex_lock(&queues->lock);
        c = next_of(queues, c);
        if (!c)
            queues->threads--;
        last = queues->freed && !queues->threads;
        pthread_mutex_unlock(&queues->lock);
    } while (c);
    if (last)
        free_queues(queues);
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
    r = pthread_create(&first->queue->thread, &attr, begin, first);
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
        c->queue->done(c->queue, c->count);
        free(c);
    }
}

static void on_finished(uv_async_t *async)
{
    struct close_queues *queues = async->data;
    struct list closed;

    pthread_mutex_lock(&queues->lock);
    list_take(&closed, &queues->closed);
    pthread_mutex_unlock(&queues->lock);
    tell(&closed);
}

struct close_queues *close_queues_new(uv_loop_t *loop)
{
    struct sigaction action = {.sa_handler = interrupted}; /* without SA_RESTART: the close returns early */
    struct close_queues *queues = calloc(1, sizeof(*queues));

    if (!queues)
        return NULL;
    if (uv_async_init(loop, &queues->finished, on_finished) < 0) {
        free(queues);
        return NULL;
    }
    sigemptyset(&action.sa_mask);
    sigaction(INTERRUPTION, &action, NULL);
    queues->finished.data = queues;
    pthread_mutex_init(&queues->lock, NULL);
    list_init(&queues->busy);
    list_init(&queues->closed);
    return queues;
}

void close_queues_stop(struct close_queues *queues)
{
    pthread_mutex_lock(&queues->lock);
    queues->stopped = true;
    tell(&queues->closed);
    list_for_each_safe (node, after, &queues->busy) {
        struct close_queue *queue = list_entry(node, struct close_queue, link);
        struct list waiting;

        list_remove(&queue->link);
        list_take(&waiting, &queue->waiting);
        queue->n_waiting = 0;
        queue->done(queue, queue->now->count); /* the queue's thread frees it, if its close() ever returns */
        tell(&waiting);
    }
    pthread_mutex_unlock(&queues->lock);
    uv_close((uv_handle_t *)&queues->finished, NULL);
}

struct close_queues *close_queues_free(struct close_queues *queues)
{
    bool now;

    if (!queues)
        return NULL;
    pthread_mutex_lock(&queues->lock);
    queues->freed = true;
    now = !queues->threads;
    pthread_mutex_unlock(&queues->lock);
    if (now)
        free_queues(queues);
    return NULL;
}

void close_queue_init(struct close_queue *queue, void (*done)(struct close_queue *queue, unsigned count))
{
    list_init(&queue->link);
    list_init(&queue->waiting);
    queue->n_waiting = 0;
    queue->now = NULL;
    queue->done = done;
}

void close_queue_add(struct close_queues *queues, struct close_queue *queue, const int *fds, unsigned count)
{
    struct closing *c = malloc(sizeof(*c) + count * sizeof(c->fds[0]));
    bool here = false;

    if (!c) {
        close_all(fds, count);
        queue->done(queue, count);
        return;
    }
    c->queues = queues;
    c->queue = queue;
    c->count = count;
    memcpy(c->fds, fds, count * sizeof(c->fds[0]));
    list_init(&c->link);
    pthread_mutex_lock(&queues->lock);
    if (!queue->now) {
        queue->now = c;
        list_append(&queues->busy, &queue->link);
        queues->threads++;
        here = start_thread(c) < 0;
    } else {
        list_append(&queue->waiting, &c->link);
        if (++queue->n_waiting > WAITING_MAX)
            pthread_kill(queue->thread, INTERRUPTION); /* the thread exists: it takes the lock before it ends */
    }
    pthread_mutex_unlock(&queues->lock);
    if (here)
        work_off(c);
}

unsigned close_queue_excess(struct close_queues *queues, struct close_queue *queue)
{
    unsigned more;

    pthread_mutex_lock(&queues->lock);
    more = queue->n_waiting > WAITING_MAX ? queue->n_waiting - WAITING_MAX : 0;
    if (more)
        pthread_kill(queue->thread, INTERRUPTION);
    pthread_mutex_unlock(&queues->lock);
    return more;
}

/* Whether descriptors may wait in the socket. A peek without room for them reports MSG_CTRUNC. */
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

bool close_queue_close_socket(int socket)
{
    shutdown(socket, SHUT_RD);
    if (brings_descriptors(socket)) {
        shutdown(socket, SHUT_WR); /* the peer need not wait */
        return false;
    }
    close(socket);
    return true;
}
