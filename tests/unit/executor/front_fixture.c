#include "front_fixture.h"

#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "executor/bell.h"

static struct front_fixture *now;

static void wake(void *context)
{
    (void)context;
}

static void done(struct backend_job *job)
{
    const unsigned i = (unsigned)(job - now->jobs);

    now->done[i]++;
    if (now->n_done < JOBS)
        now->order[now->n_done++] = i;
}

static void make_shared(struct front_fixture *f)
{
    struct executor *x = &f->x;
    struct error e;
    int pair[2], fd;

    x->region = region_new(&fd, &e);
    if (!x->region || socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0)
        abort();
    close(fd);
    x->control = pair[0];
    f->other = pair[1];
    if (bell_new(pair) < 0)
        abort();
    x->bell = pair[0];
    f->bell = pair[1];
    x->watch = epoll_create1(0);
    x->jobs = calloc(EXECUTOR_JOBS_MAX + 1, sizeof(*x->jobs));
    if (x->watch < 0 || !x->jobs)
        abort();
    ring_init(&x->out, &x->region->to_executor, x->region->to_executor_bytes);
    ring_init(&x->in, &x->region->to_daemon, x->region->to_daemon_bytes);
    ring_init(&f->in, &x->region->to_executor, x->region->to_executor_bytes);
    ring_init(&f->out, &x->region->to_daemon, x->region->to_daemon_bytes);
}

struct front_fixture *front_fixture_new(void)
{
    struct front_fixture *f = now = calloc(1, sizeof(*f));
    struct executor *x;
    struct error e;

    if (!f)
        abort();
    x = &f->x;
    make_shared(f);
    for (unsigned i = 0; i < CALL_CHANNELS; i++)
        x->channels[i] = -1;
    x->host.wake = wake;
    list_init(&x->overflow);
    list_init(&x->blocked);
    list_init(&x->busy);
    ids_init(&x->stream_ids, EXECUTOR_STREAMS_MAX);
    ids_init(&x->program_ids, EXECUTOR_PROGRAMS_MAX);
    ids_init(&x->slots, EXECUTOR_JOBS_MAX);
    f->device.executor = x;
    for (unsigned i = 0; i < STREAMS; i++)
        if (front_stream_new(&f->device.base, PRIORITY_NORMAL, &f->streams[i], &e) < 0)
            abort();
    return f;
}

void front_fixture_free(struct front_fixture *f)
{
    for (unsigned i = 0; i < STREAMS; i++)
        front_stream_free(f->streams[i]);
    front_drop_rest(&f->x);
    close(f->x.control);
    close(f->other);
    close(f->x.bell);
    close(f->bell);
    close(f->x.watch);
    region_unmap(f->x.region);
    ids_free(&f->x.stream_ids);
    ids_free(&f->x.program_ids);
    ids_free(&f->x.slots);
    free(f->x.jobs);
    free(f);
}

/* Takes what the daemon has sent. */
static void take(struct front_fixture *f)
{
    const void *at;
    uint32_t size, kind;

    while ((at = ring_peek(&f->in, &size))) {
        memcpy(&kind, at, sizeof(kind));
        for (unsigned i = 0; kind == RECORD_SUBMIT && i < JOBS; i++) {
            const struct front_job *own = f->jobs[i].impl;
            struct record_submit record;

            memcpy(&record, at, sizeof(record));
            if (own && own->slot == record.slot && own->serial == record.serial)
                f->sent[i] = record;
        }
        ring_next(&f->in);
    }
}

void front_fixture_submit(struct front_fixture *f, unsigned i, unsigned stream)
{
    struct backend_job *job = &f->jobs[i];

    f->steps[i] = (struct step){.op = OP_ADD, .n_inputs = 2, .n_outputs = 1};
    f->steps[i].plan.elementwise.rank = 1;
    f->sent[i].kind = RECORD_LOST;
    *job = (struct backend_job){
        .steps = &f->steps[i], .n_steps = 1, .repeat = REPEAT, .timing = true, .samples = f->samples[i], .done = done};
    front_submit(f->streams[stream], job);
    take(f);
}

void front_fixture_put(struct front_fixture *f, const void *record, uint32_t size)
{
    void *at = ring_reserve(&f->out, size);

    if (!at)
        return;
    memcpy(at, record, size);
    ring_publish(&f->out);
}

void front_fixture_end(struct front_fixture *f)
{
    shutdown(f->other, SHUT_RDWR);
    front_arm(&f->device.base);
    front_poll(&f->device.base);
}
