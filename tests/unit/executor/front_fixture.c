#include "front_fixture.h"

#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "executor/front.h"

static struct front_fixture *now;

static void wake(void *context)
{
    (void)context;
}

/* ---- the server's part: the queues ---- */

static void note_end(unsigned i)
{
    now->done[i]++;
    if (now->n_done < JOBS)
        now->order[now->n_done++] = i;
}

/* Gives the stream's queued jobs as far as they are taken. One that came back as failed ends when those before it have.
 */
static void advance(unsigned stream)
{
    unsigned *queue = now->queue[stream];

    while (now->n_queued[stream]) {
        const unsigned i = queue[0];
        struct backend_job *job = &now->jobs[i];
        const bool came_back = job->failed;

        if (came_back ? now->n_given[stream] != 0 : !front_submit(now->streams[stream], job))
            return;
        memmove(queue, queue + 1, --now->n_queued[stream] * sizeof(*queue));
        if (!came_back) {
            now->n_given[stream]++;
            continue;
        }
        front_withdraw(job);
        note_end(i);
    }
}

static void done(struct backend_job *job)
{
    const unsigned i = (unsigned)(job - now->jobs), stream = now->stream_of[i];

    now->n_given[stream]--;
    note_end(i);
    advance(stream);
}

static void again(struct backend_job *job)
{
    const unsigned i = (unsigned)(job - now->jobs), stream = now->stream_of[i];
    unsigned *queue = now->queue[stream];

    memmove(queue + 1, queue, now->n_queued[stream]++ * sizeof(*queue));
    queue[0] = i;
    now->n_given[stream]--;
}

void front_fixture_withdraw(struct front_fixture *f, unsigned i)
{
    const unsigned stream = f->stream_of[i];
    unsigned *queue = f->queue[stream], at = 0;

    while (queue[at] != i)
        at++;
    memmove(queue + at, queue + at + 1, (--f->n_queued[stream] - at) * sizeof(*queue));
    front_withdraw(&f->jobs[i]);
    advance(stream);
}

static void go_on(struct backend_job *job)
{
    advance(now->stream_of[job - now->jobs]);
}

static void *keep(void *argument)
{
    return argument;
}

/* What its keeper does for an executor with a process. */
static void make_region(struct executor *x)
{
    struct error e;
    int fd;

    x->region = region_new(&fd, &e);
    if (!x->region || pthread_create(&x->keeper, NULL, keep, NULL) != 0)
        abort();
    close(fd);
    ring_init(&x->out, &x->region->to_executor, x->region->to_executor_bytes);
    ring_init(&x->in, &x->region->to_daemon, x->region->to_daemon_bytes);
}

static void make_shared(struct front_fixture *f)
{
    struct executor *x = f->x;
    int pair[2];

    make_region(x);
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0)
        abort();
    x->control = pair[0];
    f->other = pair[1];
    if (bell_new(pair) < 0)
        abort();
    x->bell = pair[0];
    f->bell = pair[1];
    f->region = x->region;
    ring_init(&f->in, &x->region->to_executor, x->region->to_executor_bytes);
    ring_init(&f->out, &x->region->to_daemon, x->region->to_daemon_bytes);
}

static void serve(struct front_fixture *f)
{
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = f->x};
    struct front *front = f->front;

    f->x->domain = front->common;
    f->x->state = PROCESS_SERVING;
    f->x->ready = true;
    atomic_store(&f->x->active, 1);
    f->x->start_error.code = ERROR_NONE;
    front->by_bit[0] = front->common->executor = f->x;
    list_append(&front->executors, &f->x->link);
    if (epoll_ctl(front->watch, EPOLL_CTL_ADD, f->x->bell, &event) < 0 ||
        epoll_ctl(front->watch, EPOLL_CTL_ADD, f->x->control, &event) < 0)
        abort();
}

struct front_fixture *front_fixture_new(void)
{
    struct front_fixture *f = now = calloc(1, sizeof(*f));
    const struct backend_config config = {.executors_max = 8};
    const struct backend_host host = {.wake = wake};
    struct error e;

    if (!f)
        abort();
    f->front = front_new(&config, &host, &e);
    f->x = f->front ? front_process_new(f->front, true, -1, &e) : NULL;
    if (!f->x)
        abort();
    make_shared(f);
    serve(f);
    f->device.front = f->front;
    front_hold_init(&f->device.hold);
    f->front->devices[0] = &f->device;
    f->front->n_devices = 1;
    for (unsigned i = 0; i < STREAMS; i++)
        if (front_stream_new(&f->device.base, PRIORITY_NORMAL, &f->streams[i], &e) < 0)
            abort();
    return f;
}

struct executor *front_fixture_spare(struct front_fixture *f)
{
    struct error e;
    struct executor *spare = front_process_new(f->front, false, -1, &e);

    if (!spare)
        abort();
    make_region(spare);
    spare->state = PROCESS_SPARE;
    spare->ready = true;
    spare->start_error.code = ERROR_NONE;
    spare->bit = 1;
    f->front->by_bit[1] = spare;
    list_append(&f->front->executors, &spare->link);
    return spare;
}

void front_fixture_end_spare(struct front_fixture *f, struct executor *spare)
{
    spare->ended = true;
    front_tell(f->front);
    front_poll(&f->device.base);
}

/* The executor's process has ended, and no other can be had. */
static void end(struct front_fixture *f)
{
    struct error e;

    f->x->ended = true;
    f->x = NULL;
    error_set(&e, ERROR_DEVICE_LOST, "there is no other executor");
    f->front->lost = e;
    front_tell(f->front);
}

unsigned front_fixture_poll(struct front_fixture *f)
{
    unsigned unfinished = front_poll(&f->device.base);

    if (f->x && atomic_load(&f->x->gone)) {
        end(f);
        unfinished = front_poll(&f->device.base);
    }
    while (!list_empty(&f->front->failed))
        unfinished = front_poll(&f->device.base);
    return unfinished;
}

void front_fixture_free(struct front_fixture *f)
{
    for (unsigned i = 0; i < STREAMS; i++)
        front_stream_free(f->streams[i]);
    if (f->x)
        end(f);
    front_poll(&f->device.base);
    f->front->n_devices = 0;
    front_free(f->front);
    close(f->other);
    close(f->bell);
    free(f);
}

void front_fixture_take(struct front_fixture *f)
{
    const void *at;
    uint32_t size, kind;

    while ((at = ring_peek(&f->in, &size))) {
        memcpy(&kind, at, sizeof(kind));
        for (unsigned i = 0; kind == RECORD_SUBMIT && i < JOBS; i++) {
            const struct front_job *own = f->jobs[i].impl ? front_job_of(&f->jobs[i]) : NULL;
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

    if (!f->steps[i].n_outputs)
        f->steps[i] = (struct step){.op = OP_ADD, .n_inputs = 2, .n_outputs = 1, .in_place = -1};
    f->steps[i].plan.elementwise.rank = 1;
    f->sent[i].kind = RECORD_LOST;
    *job = (struct backend_job){.steps = &f->steps[i],
                                .n_steps = 1,
                                .repeat = REPEAT,
                                .timing = true,
                                .samples = f->samples[i],
                                .done = done,
                                .go_on = go_on,
                                .again = again,
                                .owner = f->exclusive[i],
                                .exclusive = f->exclusive[i] != 0};
    backend_job_begin(job);
    f->stream_of[i] = stream;
    f->queue[stream][f->n_queued[stream]++] = i;
    advance(stream);
    if (f->x)
        front_fixture_take(f);
}

void front_fixture_put(struct front_fixture *f, const void *record, uint32_t size)
{
    void *at = f->x ? ring_reserve(&f->out, size) : NULL;

    if (!at)
        return;
    memcpy(at, record, size);
    ring_publish(&f->out);
}

void front_fixture_end(struct front_fixture *f)
{
    shutdown(f->other, SHUT_RDWR);
    front_arm(&f->device.base);
    front_fixture_poll(f);
}

void front_fixture_put_done(struct front_fixture *f, unsigned i, uint32_t n_samples)
{
    struct {
        struct record_done head;
        char variant[STEP_VARIANT_BYTES];
    } record = {.head = {.kind = RECORD_DONE,
                         .slot = f->sent[i].slot,
                         .serial = f->sent[i].serial,
                         .ended = REPEAT,
                         .n_samples = n_samples,
                         .n_variants = 1,
                         .started_ns = 7},
                .variant = "vector4"};

    front_fixture_put(f, &record, sizeof(record));
}

void front_fixture_put_lost(struct front_fixture *f, unsigned i, uint64_t started_ns)
{
    struct {
        struct record_done head;
        struct error error;
    } record = {.head = {.kind = RECORD_DONE,
                         .slot = f->sent[i].slot,
                         .serial = f->sent[i].serial,
                         .failed = 1,
                         .started_ns = started_ns}};

    error_set(&record.error, ERROR_DEVICE_LOST, "illegal address");
    error_detail_text(&record.error, "driver", "CUDA_ERROR_ILLEGAL_ADDRESS");
    front_fixture_put(f, &record, sizeof(record));
}

int front_fixture_begin(void **state)
{
    *state = front_fixture_new();
    return 0;
}

int front_fixture_finish(void **state)
{
    front_fixture_free(*state);
    return 0;
}
