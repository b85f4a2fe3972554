/* Pages of timelines and their watchers; ordered streams: finding one for a CUDA stream, calls on it, and closing them
 * all. */
#include "ordered.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fail.h"
#include "session/connect.h"
#include "session/session.h"

enum { RELEASE_FIRST_MS = 1, RELEASE_LAST_MS = 60000, RELEASES = 64 };

/* Writes the far end into every done word. Writes of the daemon's GPU that are under way may set a word back to a
 * smaller value, less and less likely with time, so the pauses between repeats grow. */
static void release(struct timeline *t)
{
    struct pollfd p = {.fd = t->stop, .events = POLLIN};
    int pause_ms = RELEASE_FIRST_MS;

    atomic_store(&t->over, true);
    for (unsigned round = 1;; round++) {
        for (unsigned i = 0; i < TIMELINE_STREAMS; i++)
            atomic_store_explicit(&t->words[TIMELINE_STREAMS + i], INT64_MAX, memory_order_relaxed);
        if (poll(&p, 1, pause_ms) > 0)
            return;
        if (round % RELEASES == 0 && pause_ms < RELEASE_LAST_MS)
            pause_ms *= 2;
    }
}

static void *watch(void *argument)
{
    struct timeline *t = argument;
    struct pollfd p[2] = {{.fd = t->stop, .events = POLLIN}, {.fd = t->socket, .events = POLLRDHUP}};

    while (poll(p, 2, -1) < 0 && errno == EINTR)
        ;
    if (!p[0].revents)
        release(t);
    return NULL;
}

/* Blocks all signals in the watcher: handlers run on the caller's own threads only. */
static int start_watcher(struct timeline *t)
{
    sigset_t all, before;
    int r;

    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    r = pthread_create(&t->watcher, NULL, watch, t);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return r;
}

static bool valid(const struct wire_timelines *made)
{
    int seals = fcntl(made->fd, F_GET_SEALS);
    struct stat st;

    return made->streams == TIMELINE_STREAMS && made->size == TIMELINE_BYTES && seals >= 0 && seals & F_SEAL_SHRINK &&
           fstat(made->fd, &st) == 0 && st.st_size >= TIMELINE_BYTES;
}

/* Unregisters the page, in any thread. A page that the driver fails to unregister stays mapped: nothing else could be
 * registered at its addresses. */
static void unregister(struct timeline *t)
{
    const struct cuda_driver *d = t->driver;
    const bool pushed = d->context_push(t->context) == 0;
    const cuda_status status = d->host_unregister((void *)t->words);

    if (pushed)
        cuda_pop(d);
    if (status == 0 || status == CUDA_ERROR_NOT_REGISTERED)
        munmap((void *)t->words, TIMELINE_BYTES);
}

static enum kops_code map_words(struct timeline *t, const struct wire_timelines *made, struct kops_error *e)
{
    void *words;

    if (!valid(made))
        return fail(e, KOPS_ERR_BAD_REPLY, "the daemon's page of timelines is not of the agreed form");
    words = mmap(NULL, TIMELINE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, made->fd, 0);
    if (words == MAP_FAILED)
        return fail_os(e, errno, "mapping the page of timelines");
    t->words = words;
    return KOPS_OK;
}

/* Opens the page. Takes the daemon's descriptor, also on failure. `socket` stays the caller's. A context must be
 * current. */
static enum kops_code timeline_open(const struct cuda_driver *d, const struct wire_timelines *made, int socket,
                                    uint32_t generation, struct timeline **ret, struct kops_error *e)
{
    struct timeline *t = calloc(1, sizeof(*t));
    cuda_status status;
    enum kops_code r = t ? map_words(t, made, e) : fail(e, KOPS_ERR_NO_MEMORY, "there is no memory for timelines");

    close(made->fd);
    if (r)
        goto free_timeline;
    t->generation = generation;
    t->driver = d;
    d->context_get(&t->context);
    status = d->host_register((void *)t->words, TIMELINE_BYTES, CUDA_HOST_PORTABLE | CUDA_HOST_DEVICEMAP);
    if (status) {
        r = cuda_fail(d, e, KOPS_ERR_DEVICE_ERROR, status, "cuMemHostRegister of the page of timelines");
        munmap((void *)t->words, TIMELINE_BYTES);
        goto free_timeline;
    }
    t->socket = fcntl(socket, F_DUPFD_CLOEXEC, 0);
    t->stop = eventfd(0, EFD_CLOEXEC);
    if (t->socket < 0 || t->stop < 0) {
        r = fail_os(e, errno, "making a descriptor");
        goto close_descriptors;
    }
    errno = start_watcher(t);
    if (errno) {
        r = fail_os(e, errno, "starting the thread that watches the connection");
        goto close_descriptors;
    }
    *ret = t;
    return KOPS_OK;

close_descriptors:
    timeline_forget(t);
    unregister(t);
free_timeline:
    free(t);
    return r;
}

void timeline_forget(struct timeline *t)
{
    if (t->socket >= 0)
        close(t->socket);
    if (t->stop >= 0)
        close(t->stop);
    t->socket = t->stop = -1;
}

/* Ends the watcher and frees the page. No stream may wait on the page any more. Returns NULL. */
static struct timeline *timeline_close(struct timeline *t)
{
    const uint64_t one = 1;

    if (!t)
        return NULL;
    if (write(t->stop, &one, sizeof(one)) == sizeof(one))
        pthread_join(t->watcher, NULL);
    timeline_forget(t);
    unregister(t);
    free(t);
    return NULL;
}

/* ---- ordered streams ---- */

/* ---- a call begins on a stream ---- */

/* Forgets the parent's ordered calls in a child: the parent owns the driver's objects and the watchers. */
static void forget(struct kops_client *c)
{
    for (struct timeline *t = c->ordered->timeline; t; t = t->next)
        timeline_forget(t);
    c->ordered = NULL; /* leaks once: the members are the parent's */
    atomic_store(&c->batches, 0);
}

static enum kops_code load_driver(struct kops_client *c, struct kops_error *e)
{
    const struct cuda_driver *d;

    if (!(c->features & FEATURE_ORDERED))
        return fail(e, KOPS_ERR_UNSUPPORTED,
                    "the daemon has no ordered calls (it serves no GPU that can wait in memory): use kops_run()");
    d = cuda_load(e);
    if (!d)
        return KOPS_ERR_NO_CUDA;
    if (!d->host_register || !d->host_unregister || !d->host_device_pointer || !d->stream_is_capturing ||
        (!d->stream_batch && (!d->stream_write64 || !d->stream_wait64)))
        return fail(e, KOPS_ERR_UNSUPPORTED, "the CUDA driver has no 64-bit stream memory operations: it is too old");
    if (!c->ordered)
        c->ordered = calloc(1, sizeof(*c->ordered));
    if (!c->ordered)
        return fail(e, KOPS_ERR_NO_MEMORY, "there is no memory for ordered calls");
    c->ordered->driver = d;
    c->forget_ordered = forget;
    return KOPS_OK;
}

static enum kops_code check_capture(const struct cuda_driver *d, cuda_queue cuda_stream, struct kops_error *e)
{
    int capturing = 0;
    cuda_status status = d->stream_is_capturing(cuda_stream, &capturing);

    if (capturing || (status >= CUDA_ERROR_CAPTURE_FIRST && status <= CUDA_ERROR_CAPTURE_LAST))
        return fail(e, KOPS_ERR_CAPTURING,
                    "the CUDA stream is being captured into a graph, which cannot hold the daemon's work: call outside "
                    "the capture, or define a program (kops_program_define())");
    if (status)
        return cuda_fail(d, e, KOPS_ERR_DEVICE_ERROR, status, "cuStreamIsCapturing");
    return KOPS_OK;
}

static bool same_stream(const struct ordered_stream *l, cuda_context context, unsigned long long id)
{
    return l->used && l->id == id && l->context == context;
}

/* Finds an ordered stream without a CUDA stream; when all have one, the stream unused for longest. */
static struct ordered_stream *free_stream(struct kops_client *c)
{
    const uint64_t limit = c->info.info.limits.streams;
    const unsigned n = limit && limit < TIMELINE_STREAMS ? (unsigned)limit : TIMELINE_STREAMS;
    struct ordered *o = c->ordered;
    struct ordered_stream *found = NULL;

    for (unsigned i = 0; i < n; i++) {
        struct ordered_stream *l = &o->streams[i];

        /* From the top: blocking runs usually have the daemon's stream 0. */
        l->index = n - 1 - i;
        if (!l->used)
            return l;
        if (!l->taken && !l->outstanding && !l->in_batch && (!found || l->touched < found->touched))
            found = l;
    }
    return found;
}

static struct ordered_stream *present_stream(struct ordered *o, cuda_context context, unsigned long long id)
{
    if (o->last && same_stream(o->last, context, id))
        return o->last;
    for (unsigned i = 0; i < TIMELINE_STREAMS && o->streams[i].used; i++)
        if (same_stream(&o->streams[i], context, id))
            return &o->streams[i];
    return NULL;
}

static unsigned long long stream_id(const struct cuda_driver *d, cuda_queue cuda_stream)
{
    unsigned long long id;

    return d->stream_get_id && !d->stream_get_id(cuda_stream, &id) ? id : (uintptr_t)cuda_stream;
}

bool ordered_find(struct kops_client *c, void *cuda_stream, struct ordered_stream **ret_stream)
{
    const struct cuda_driver *d = c->ordered->driver;
    cuda_context context = NULL;

    if (cuda_stream == KOPS_ALL_STREAMS || d->context_get(&context) || !context)
        return false;
    *ret_stream = present_stream(c->ordered, context, stream_id(d, cuda_stream));
    return true;
}

static struct ordered_stream *find_stream(struct kops_client *c, cuda_context context, unsigned long long id)
{
    struct ordered_stream *l = present_stream(c->ordered, context, id);

    if (l)
        return l;
    l = free_stream(c);
    if (!l)
        return NULL;
    l->used = true;
    l->context = context;
    l->id = id;
    l->generation = 0;
    return l;
}

bool ordered_take(struct kops_client *c, struct ordered_stream *stream, uint64_t deadline)
{
    while (stream->taken) {
        if (deadline_passed(deadline))
            return false;
        session_sleep(c, deadline);
    }
    stream->taken = true;
    return true;
}

enum kops_code ordered_enter(struct kops_client *c, void *cuda_stream, uint64_t deadline,
                             struct ordered_stream **ret_stream, struct kops_error *e)
{
    const struct cuda_driver *d;
    unsigned long long id;
    cuda_context context = NULL;
    struct ordered_stream *stream;
    enum kops_code r = ordered_report(c, e);

    if (!r && cuda_stream == KOPS_ALL_STREAMS)
        r = fail(e, KOPS_ERR_BAD_ARGUMENT, "KOPS_ALL_STREAMS is no stream to put work on");
    if (!r && !c->ordered)
        r = load_driver(c, e);
    if (r)
        return r;
    d = c->ordered->driver;
    if (d->context_get(&context) || !context)
        return fail(e, KOPS_ERR_NO_CUDA, "the calling thread has no current CUDA context");
    r = check_capture(d, cuda_stream, e);
    if (r)
        return r;
    id = stream_id(d, cuda_stream);
    do {
        stream = find_stream(c, context, id);
        if (!stream)
            return fail(e, KOPS_ERR_QUOTA_EXCEEDED, "%d CUDA streams have ordered calls under way, no more can",
                        TIMELINE_STREAMS);
        if (!ordered_take(c, stream, deadline))
            return fail(e, KOPS_ERR_TIMEOUT, "another thread's call on the stream did not end in time");
        if (!same_stream(stream, context, id)) /* another CUDA stream got it meanwhile */
            ordered_leave(c, stream);
    } while (!same_stream(stream, context, id));
    c->ordered->last = stream;
    stream->touched = c->ordered->number;
    *ret_stream = stream;
    return KOPS_OK;
}

void ordered_leave(struct kops_client *c, struct ordered_stream *stream)
{
    stream->taken = false;
    client_changed(c);
}

uint64_t ordered_oldest(const struct kops_client *c)
{
    uint64_t oldest = 0;

    for (unsigned i = 0; c->ordered && i < TIMELINE_STREAMS && c->ordered->streams[i].used; i++) {
        const struct ordered_stream *l = &c->ordered->streams[i];
        uint64_t of_stream = l->outstanding ? (l->first > l->ended ? l->first : l->ended + 1) : l->gathered_from;

        if (of_stream && (!oldest || of_stream < oldest))
            oldest = of_stream;
    }
    return oldest;
}

/* ---- the end ---- */

/* Tells whether no stream waits on a page after this. False: a stream may; the watchers release it. */
static bool streams_drained(const struct ordered *o)
{
    bool drained = true;

    for (unsigned i = 0; i < TIMELINE_STREAMS && o->streams[i].used; i++) {
        cuda_context context = o->streams[i].context;
        bool seen = false;

        for (unsigned k = 0; k < i && !seen; k++)
            seen = o->streams[k].context == context;
        if (seen || o->driver->context_push(context))
            continue;
        if (o->driver->context_synchronize())
            drained = false;
        cuda_pop(o->driver);
    }
    return drained;
}

void ordered_close(struct kops_client *c)
{
    struct ordered *o = c->ordered;
    const uint64_t deadline = client_deadline(c, 0);
    bool drained;

    if (!o)
        return;
    while (o->outstanding && client_is_connected(c) && (deadline == DEADLINE_NEVER || clock_ns() < deadline))
        session_progress(c, deadline);
    if (client_is_connected(c))
        session_lost(c, KOPS_ERR_CONNECTION_LOST, "the client was closed");
    drained = !o->timeline || streams_drained(o);
    while (o->timeline) {
        struct timeline *t = o->timeline;

        o->timeline = t->next;
        if (drained)
            timeline_close(t);
    }
    free(o);
    c->ordered = NULL;
}

/* ---- its numbers and words, and its end ---- */

enum {
    COLLECT_AT = 8,   /* unanswered requests from which on each call reads replies */
    COLLECT_EACH = 16 /* on the socket, where reading is a system call, one call of this many reads */
};

/* Notes of a call that is under way (call.notes). */
struct ordered_call {
    struct ordered_stream *stream;
    uint64_t number, last; /* numbers of the first and last op */
    unsigned n_ops;
    const char *name; /* NULL: none is known */
    bool gathered;    /* several ops; the members below are theirs */
    unsigned char names[ORDERED_MAX_OPS];
    uint16_t after[ORDERED_MAX_OPS];
};

/* ---- errors ---- */

enum kops_code ordered_report(struct kops_client *c, struct kops_error *e)
{
    struct ordered *o = c->ordered;

    if (!o || !o->failed.code)
        return KOPS_OK;
    *e = o->failed;
    o->failed.code = KOPS_OK;
    return e->code;
}

static void note_failure(struct kops_client *c, const struct ordered_call *call, const struct kops_error *error)
{
    struct kops_error *f = &c->ordered->failed;
    uint64_t number = call->number;
    const char *name = call->name;
    int64_t index = 0;

    if (call->gathered) {
        if (!kops_error_number(error, "op_index", &index) || index < 0 || index >= call->n_ops)
            index = 0;
        number += call->after[index];
        name = names_at(c, call->names[index]);
    }
    *f = *error;
    fail(f, error->code, "call %llu%s%s%s on a CUDA stream: %.400s", (unsigned long long)number, name ? " (" : "",
         name ? name : "", name ? ")" : "", error->message);
    f->n_details = error->n_details;
    memcpy(f->details, error->details, sizeof(f->details));
    if (f->n_details == sizeof(f->details) / sizeof(f->details[0]))
        f->n_details--;
    fail_number(f, f->code, "call", (int64_t)number);
}

/* Ends a call whose reply came, or never will. */
static void ended(void *owner, struct call *sent, const struct kops_error *error)
{
    struct kops_client *c = owner;
    struct ordered *o = c->ordered;
    const struct ordered_call *call = sent->notes;

    if (!o)
        return;
    call->stream->outstanding--;
    o->outstanding--;
    call->stream->ended = call->last;
    if (error && (!o->failed.code || call->number < o->failed_number)) {
        o->failed_number = call->number;
        note_failure(c, call, error);
    }
}

void ordered_collect(struct kops_client *c)
{
    if (c->calls.inflight >= COLLECT_AT && c->t.ring.memory)
        session_drain(c);
    else if (c->calls.inflight * 2 >= c->max_inflight && c->calls.inflight % COLLECT_EACH == 0)
        session_poll(c);
}

void ordered_collect_all(struct kops_client *c)
{
    if (!c->ordered || !c->ordered->outstanding)
        return;
    if (!c->t.ring.memory || (c->ordered->timeline && atomic_load(&c->ordered->timeline->over)))
        session_poll(c);
    else
        session_drain(c);
}

/* ---- the page ---- */

bool ordered_current(const struct kops_client *c)
{
    return c->ordered->timeline && c->ordered->timeline->generation == c->generation;
}

static enum kops_code make_timeline(struct kops_client *c, uint64_t deadline, struct kops_error *e)
{
    struct ordered *o = c->ordered;
    struct wire_timelines made = {.fd = -1};
    struct timeline *t = NULL;
    uint32_t generation;
    enum kops_code r =
        session_call(c, wire_pack_plain, "timelines", -1, wire_decode_timelines, &made, deadline, SESSION_ATTEMPTS, e);

    generation = c->generation;
    if (r || c->lost || c->t.fd < 0) {
        if (made.fd >= 0)
            close(made.fd);
        return r;
    }
    r = timeline_open(o->driver, &made, c->t.fd, generation, &t, e);
    if (r)
        return r;
    t->next = o->timeline;
    o->timeline = t;
    return KOPS_OK;
}

enum kops_code ordered_renew(struct kops_client *c, uint64_t deadline, struct kops_error *e)
{
    struct ordered *o = c->ordered;
    enum kops_code r;

    if (o->making) {
        session_sleep(c, deadline);
        if (deadline_passed(deadline))
            return fail(e, KOPS_ERR_TIMEOUT, "the page of timelines was not there in time");
        return KOPS_OK;
    }
    o->making = true;
    r = make_timeline(c, deadline, e);
    o->making = false;
    client_changed(c);
    return r;
}

/* ---- one call ---- */

enum kops_code ordered_assign(const struct ordered_work *work, struct call *call, struct kops_error *e)
{
    const uint64_t next = work->stream->value + 1, ready = work->starts ? next : 0;

    if (!call->notes)
        call->notes = calloc(1, sizeof(struct ordered_call));
    if (!call->notes)
        return fail(e, KOPS_ERR_NO_MEMORY, "there is no memory for an ordered call");
    if (work->raw) {
        work->raw->stream = work->stream->index;
        work->raw->ready = ready;
        work->raw->done = next;
    } else {
        work->how->stream = work->stream->index;
        work->how->ready = ready;
        work->how->done = next;
    }
    return KOPS_OK;
}

static cuda_status put_on_stream(const struct cuda_driver *d, cuda_queue cuda_stream, struct cuda_memory_op *ops,
                                 unsigned n)
{
    if (d->stream_batch)
        return n ? d->stream_batch(cuda_stream, n, ops, 0) : 0;
    for (unsigned i = 0; i < n; i++) {
        cuda_status status = ops[i].operation == CUDA_OP_WRITE_64
                                 ? d->stream_write64(cuda_stream, ops[i].address, ops[i].value, ops[i].flags)
                                 : d->stream_wait64(cuda_stream, ops[i].address, ops[i].value, ops[i].flags);

        if (status)
            return status;
    }
    return 0;
}

static enum kops_code find_base(struct kops_client *c, struct ordered_stream *stream, struct kops_error *e)
{
    const struct timeline *t = c->ordered->timeline;
    cuda_status status;

    if (stream->generation == t->generation)
        return KOPS_OK;
    status = t->driver->host_device_pointer(&stream->base, (void *)t->words, 0);
    if (status)
        return cuda_fail(t->driver, e, KOPS_ERR_DEVICE_ERROR, status, "cuMemHostGetDevicePointer");
    stream->generation = t->generation;
    return KOPS_OK;
}

static enum kops_code put_words(struct kops_client *c, struct ordered_stream *stream, cuda_queue cuda_stream,
                                uint64_t ready, uint64_t wait, struct kops_error *e)
{
    struct cuda_memory_op ops[2];
    unsigned n = 0;
    cuda_status status;
    enum kops_code r = find_base(c, stream, e);

    if (r)
        return r;
    if (ready)
        ops[n++] = (struct cuda_memory_op){.operation = CUDA_OP_WRITE_64,
                                           .address = stream->base + timeline_ready_offset(stream->index),
                                           .value = ready};
    if (wait)
        ops[n++] = (struct cuda_memory_op){.operation = CUDA_OP_WAIT_64,
                                           .address = stream->base + timeline_done_offset(stream->index),
                                           .value = wait,
                                           .flags = CUDA_WAIT_GEQ};
    status = put_on_stream(c->ordered->driver, cuda_stream, ops, n);
    if (status >= CUDA_ERROR_CAPTURE_FIRST && status <= CUDA_ERROR_CAPTURE_LAST)
        return cuda_fail(c->ordered->driver, e, KOPS_ERR_CAPTURING, status, "the CUDA stream is being captured");
    if (status)
        return cuda_fail(c->ordered->driver, e, KOPS_ERR_DEVICE_ERROR, status, "putting an ordered call on the stream");
    return KOPS_OK;
}

static void note(const struct ordered_work *work, struct ordered_call *call)
{
    call->stream = work->stream;
    call->number = work->number;
    call->last = work->last;
    call->n_ops = work->n_ops;
    call->name = work->name;
    call->gathered = work->names != NULL;
    if (work->names) {
        memcpy(call->names, work->names, work->n_ops);
        memcpy(call->after, work->after, work->n_ops * sizeof(work->after[0]));
    }
}

enum kops_code ordered_commit(struct kops_client *c, struct ordered_work *work, struct call *call, struct kops_error *e)
{
    struct ordered *o = c->ordered;
    struct ordered_stream *stream = work->stream;
    const uint64_t next = stream->value + 1;
    enum kops_code r = put_words(c, stream, work->cuda_stream, work->starts ? next : 0, work->waits ? next : 0, e);

    /* The first half may be on the stream, even where the call failed. */
    stream->value = next;
    if (r)
        return r;
    if (!work->number) {
        work->number = work->last = o->number + 1;
        o->number++;
    }
    if (!stream->outstanding)
        stream->first = work->number;
    stream->outstanding++;
    o->outstanding++;
    note(work, call->notes);
    call->ended = ended;
    call->owner = c;
    return KOPS_OK;
}

enum kops_code ordered_wait_for_last(struct kops_client *c, struct ordered_stream *stream, cuda_queue cuda_stream,
                                     struct kops_error *e)
{
    if (!ordered_current(c) || stream->generation != c->ordered->timeline->generation)
        return KOPS_OK; /* the connection is over: nothing of it runs any more */
    return put_words(c, stream, cuda_stream, 0, stream->value, e);
}
