/* Calls into executors, and what wakes the loop. Thread: any. */
#include <errno.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "executor/front.h"

void front_tell(struct front *f)
{
    atomic_store(&f->news, true);
    f->host.wake(f->host.context);
}

void front_set_timer(struct front *f, uint64_t at_ns)
{
    const struct itimerspec at = {
        .it_value = {.tv_sec = (time_t)(at_ns / 1000000000), .tv_nsec = (long)(at_ns % 1000000000)}};

    if (at_ns >= f->timer_ns)
        return;
    f->timer_ns = at_ns;
    timerfd_settime(f->timer, TFD_TIMER_ABSTIME, &at, NULL);
}

/* A socket that no other call uses; waits for one. Its place. */
static unsigned take_channel(struct executor *x)
{
    unsigned i = 0;

    pthread_mutex_lock(&x->lock);
    for (;; i = (i + 1) % CALL_CHANNELS) {
        if (!x->channel_busy[i])
            break;
        if (i == CALL_CHANNELS - 1)
            pthread_cond_wait(&x->channel_free, &x->lock);
    }
    x->channel_busy[i] = true;
    pthread_mutex_unlock(&x->lock);
    return i;
}

static void give_channel(struct executor *x, unsigned i)
{
    pthread_mutex_lock(&x->lock);
    x->channel_busy[i] = false;
    pthread_cond_signal(&x->channel_free);
    pthread_mutex_unlock(&x->lock);
}

static int lost(struct error *e)
{
    return error_set(e, ERROR_DEVICE_LOST, "the executor of the GPU has ended");
}

/* Fails a call without a reply, or one of a broken context. The daemon cannot know whether the executor did the work,
 * so the loop ends it. */
static int broken(struct executor *x, enum front_broken why, struct error *e)
{
    unsigned before = FRONT_SOUND;

    if (!atomic_load(&x->gone) && atomic_compare_exchange_strong(&x->broken, &before, why))
        front_tell(x->front);
    return lost(e);
}

int front_distrust(struct executor *x, struct error *e)
{
    return broken(x, FRONT_BROKEN_SOCKET, e);
}

/* Takes the descriptors that belong to the reply and closes the others. */
static int take_reply(const struct call_reply *reply, const int *fds, int *ret_fd)
{
    const bool wanted = ret_fd && reply->n_fds == 1 && reply->result == 0;

    for (unsigned i = 0; i < reply->n_fds; i++)
        if (!wanted)
            close(fds[i]);
    if (wanted)
        *ret_fd = fds[0];
    return ret_fd && reply->result == 0 && !wanted ? -1 : 0;
}

int front_call(struct executor *x, struct call_request *request, const char *text, const int *fds,
               struct call_reply *ret_reply, int *ret_fd, struct error *e)
{
    int reply_fds[CALL_FDS_MAX], r;
    unsigned channel;
    bool late;

    if (atomic_load(&x->gone) || atomic_load(&x->broken))
        return lost(e);
    channel = take_channel(x);
    r = call_send_request(x->channels[channel], request, text, fds);
    errno = 0;
    if (r == 0)
        r = call_receive_reply(x->channels[channel], ret_reply, reply_fds);
    late = errno == EAGAIN || errno == EWOULDBLOCK;
    give_channel(x, channel);
    if (r < 0)
        return broken(x, late ? FRONT_BROKEN_TIME : FRONT_BROKEN_SOCKET, e);
    if (take_reply(ret_reply, reply_fds, ret_fd) < 0)
        return error_set(e, ERROR_QUOTA_EXCEEDED, "the daemon has no descriptor left for the memory");
    if (ret_reply->result == 0)
        return 0;
    *e = ret_reply->error;
    error_accept(e);
    return e->code == ERROR_DEVICE_LOST ? broken(x, FRONT_BROKEN_CONTEXT, e) : -1;
}
