/* Streams: a queue each, who waits for it, and the thread that runs it.
 *
 * The default stream and those made without CU_STREAM_NON_BLOCKING wait for one another, by OP_AFTER operations that
 * are put before the work. What an operation touches is looked up when its turn comes: a range that is not mapped for
 * the device is what a real device calls an illegal address, and breaks the context.
 *
 * Channels are the few queues of a device that many streams share. Work goes to the device in the order in which it was
 * queued to its channel. A wait that is not over holds everything behind it there, of whatever stream; work itself
 * holds nothing but its own stream. A channel has room for so many operations; who queues one more waits. Off unless
 * the control page says otherwise. */
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#include "standin.h"

static struct stream *streams; /* every one whose handle or thread lives */

static bool range_in_use(uint64_t address, uint64_t size, const struct stream *except);

/* ---- channels ---- */

enum { CHANNELS_USUAL = 8 };

static unsigned channel_choose(struct context *context)
{
    const char *text = getenv("CUDA_DEVICE_MAX_CONNECTIONS");
    unsigned long n = text ? strtoul(text, NULL, 10) : CHANNELS_USUAL;

    if (n < 1 || n > MAX_CHANNELS)
        n = n < 1 ? CHANNELS_USUAL : MAX_CHANNELS;
    return context->streams_made++ % (unsigned)n;
}

static bool waits(const struct op *op)
{
    return op->kind == OP_WAIT_VALUE || op->kind == OP_AFTER;
}

static struct channel *channel_of(const struct stream *stream)
{
    return &stream->context->channels[stream->channel];
}

static void channel_wait_for_room(struct stream *stream)
{
    bool counted = false;
    uint32_t entries;

    stream->references++;
    while (control_channels(&entries) && channel_of(stream)->queued >= entries && !stream->context->broken) {
        count(STANDIN_COUNTER_blocked_launches, 1);
        wait_for_progress(&counted);
        count(STANDIN_COUNTER_blocked_launches, -1);
    }
    stream_unref(stream);
}

static void channel_enter(struct stream *stream, struct op *op)
{
    struct channel *channel = channel_of(stream);
    uint32_t entries;

    if (!control_channels(&entries))
        return;
    op->place = ++channel->places;
    channel->queued++;
    if (waits(op))
        channel->waits++;
}

static void channel_leave(struct stream *stream, const struct op *op)
{
    struct channel *channel = channel_of(stream);

    if (!op->place)
        return;
    channel->queued--;
    if (waits(op))
        channel->waits--;
}

/* Something before it in its channel waits. */
static bool channel_holds(const struct stream *stream, const struct op *op)
{
    if (!op->place || !channel_of(stream)->waits)
        return false;
    for (const struct stream *s = streams; s; s = s->next)
        if (s != stream && s->context == stream->context && s->channel == stream->channel)
            for (const struct op *o = s->head; o; o = o->next)
                if (o->place && o->place < op->place && waits(o))
                    return true;
    return false;
}

/* ---- the thread ---- */

/* Whether the context may make this access to each of the maps that it touches. */
static bool use_is_allowed(const struct region *region, const struct use *use, const struct context *context,
                           bool copies)
{
    for (; region && region->address < use->address + use->size; region = region_find(region->address + region->size))
        if (!region_allows(region, context, use->write, copies))
            return false;
    return true;
}

/* CUDA_SUCCESS, or what the device would answer to the first access that it may not make. */
static CUresult uses_check(const struct stream *stream, const struct op *op)
{
    for (unsigned i = 0; i < op->n_uses; i++) {
        const struct use *use = &op->uses[i];
        const struct region *region = region_find_range(use->address, use->size);

        if (!region || !use_is_allowed(region, use, stream->context, op->kind == OP_COPY)) {
            fprintf(stderr, "cuda_standin: illegal %s of %llu bytes at %#llx (%s)\n", use->write ? "write" : "read",
                    (unsigned long long)use->size, (unsigned long long)use->address,
                    !region ? "not mapped" : "not accessible");
            return CUDA_ERROR_ILLEGAL_ADDRESS;
        }
    }
    return CUDA_SUCCESS;
}

static void run_fill(const struct op *op)
{
    if (op->fill.width == 1) {
        memset(op->fill.to, (int)op->fill.value, op->fill.count);
    } else {
        for (size_t i = 0; i < op->fill.count; i++)
            ((uint32_t *)op->fill.to)[i] = op->fill.value;
    }
}

void bytes_copy(unsigned char *to, const unsigned char *from, size_t size)
{
    while (size) {
        struct iovec here = {.iov_base = to, .iov_len = size};
        struct iovec there = {.iov_base = (void *)(uintptr_t)from, .iov_len = size};
        ssize_t n = process_vm_readv(getpid(), &here, 1, &there, 1, 0);

        if (n < 0 && errno != EFAULT)
            memmove(to, from, size); /* not allowed here */
        if (n <= 0)
            return;
        to += n;
        from += n;
        size -= (size_t)n;
    }
}

/* Kernels, copies and fills; a kernel on nothing passes every gate. The mutex is given up while they wait at their gate
 * and while they touch data. Nothing that they use can go meanwhile: frees wait for them. */
static void run_work(struct stream *stream, struct op *op)
{
    bool is_kernel = op->kind == OP_KERNEL, sticky;
    struct context *context = stream->context;
    CUresult r;

    if (is_kernel && op->launch.kernel && kernel_is_idle(op->launch.kernel, op->launch.params)) {
        r = uses_check(stream, op);
        if (r != CUDA_SUCCESS) {
            context_break(context, r);
            return;
        }
        pthread_mutex_unlock(&standin_lock);
        kernel_run(op->launch.kernel, op->launch.params);
        pthread_mutex_lock(&standin_lock);
        return;
    }
    pthread_mutex_unlock(&standin_lock);
    gate_pass(is_kernel ? STANDIN_GATE_kernel : STANDIN_GATE_copy, &context->broken);
    pthread_mutex_lock(&standin_lock);
    if (context->broken)
        return;
    r = control_fault(is_kernel ? "kernel" : "copy", &sticky);
    if (r == CUDA_SUCCESS)
        r = uses_check(stream, op);
    if (r != CUDA_SUCCESS) {
        context_break(context, r);
        return;
    }
    pthread_mutex_unlock(&standin_lock);
    if (is_kernel && op->launch.user)
        r = user_kernel_run(op->launch.user, &op->launch.given, op->launch.params, context);
    else if (is_kernel)
        kernel_run(op->launch.kernel, op->launch.params);
    else if (op->kind == OP_COPY)
        bytes_copy(op->copy.to, op->copy.from, op->copy.size);
    else
        run_fill(op);
    pthread_mutex_lock(&standin_lock);
    if (r == CUDA_SUCCESS)
        r = control_fault(is_kernel ? "kernel_end" : "copy_end", &sticky);
    if (r != CUDA_SUCCESS)
        context_break(context, r);
    else if (is_kernel)
        count(STANDIN_COUNTER_kernels_run, 1);
}

static void run_kernel(struct stream *stream, struct op *op)
{
    const uint64_t begin_ns = now_ns();
    const char *name;

    run_work(stream, op);
    if (!op->call || !standin_profiler)
        return;
    name = op->launch.kernel ? kernel_symbol(op->launch.kernel) : user_kernel_name(op->launch.user);
    standin_profiler->ran(op->call, op->what, name, begin_ns, now_ns(), op->last);
}

static bool value_reached(const struct op *op)
{
    const uint64_t now = __atomic_load_n((uint64_t *)(uintptr_t)op->word.address, __ATOMIC_ACQUIRE);

    return (int64_t)(now - op->word.value) >= 0;
}

static void run_word(struct stream *stream, struct op *op)
{
    struct timespec pause = {.tv_nsec = 50000};
    struct context *context = stream->context;
    CUresult r = uses_check(stream, op);

    if (r != CUDA_SUCCESS) {
        context_break(context, r);
        return;
    }
    if (op->kind == OP_WRITE_VALUE) {
        __atomic_store_n((uint64_t *)(uintptr_t)op->word.address, op->word.value, __ATOMIC_RELEASE);
        count(STANDIN_COUNTER_value_writes, 1);
        return;
    }
    pthread_mutex_unlock(&standin_lock);
    while (!value_reached(op) && !context->broken) {
        nanosleep(&pause, NULL); /* the other side is a plain store, of another process even */
        if (pause.tv_nsec < 200000)
            pause.tv_nsec += 1000; /* many streams may wait for long */
    }
    pthread_mutex_lock(&standin_lock);
}

static void run_record(struct stream *stream, struct op *op)
{
    uint64_t now = now_ns();

    /* Two records in a row never have the same time: a device's clock ticks between them. */
    if (now < stream->last_time + 500)
        now = stream->last_time + 500;
    stream->last_time = now;
    op->mark.event->time = now;
    if (op->mark.event->done < op->mark.generation)
        op->mark.event->done = op->mark.generation;
}

/* True when the head may run: what it waits for has come. */
static bool op_is_ready(const struct stream *stream, const struct op *op)
{
    if (stream->context->broken)
        return true;
    if (channel_holds(stream, op))
        return false;
    if (op->kind == OP_AFTER)
        return op->after.stream->completed >= op->after.number;
    return true;
}

static void op_run(struct stream *stream, struct op *op)
{
    bool broken = stream->context->broken;

    switch (op->kind) {
    case OP_KERNEL:
        if (!broken)
            run_kernel(stream, op);
        break;
    case OP_COPY:
    case OP_FILL:
        if (!broken)
            run_work(stream, op);
        break;
    case OP_WRITE_VALUE:
    case OP_WAIT_VALUE:
        if (!broken)
            run_word(stream, op);
        break;
    case OP_HOST:
        if (!broken) {
            pthread_mutex_unlock(&standin_lock);
            op->host.function(op->host.data);
            pthread_mutex_lock(&standin_lock);
        }
        break;
    case OP_RECORD:
        run_record(stream, op);
        event_unref(op->mark.event);
        break;
    case OP_AFTER:
        stream_unref(op->after.stream);
        break;
    case OP_FREE:
        /* Work of another stream that still uses it was not ordered before the free: keep it mapped, so that the
         * report is what ends the test. */
        if (range_in_use(op->region->address, op->region->size, stream))
            misuse(0, "freed %#llx while another stream uses it", (unsigned long long)op->region->address);
        else
            allocation_end(op->region);
        break;
    }
}

static void *stream_main(void *argument)
{
    struct stream *stream = argument;

    pthread_mutex_lock(&standin_lock);
    for (;;) {
        struct op *op = stream->head;

        if (!op && stream->destroyed)
            break;
        if (!op) {
            pthread_cond_wait(&stream->work, &standin_lock);
        } else if (!op_is_ready(stream, op)) {
            pthread_cond_wait(&standin_progress, &standin_lock);
        } else {
            op_run(stream, op);
            stream->head = op->next;
            if (!stream->head)
                stream->tail = &stream->head;
            stream->completed = op->number;
            channel_leave(stream, op);
            free(op);
            count(STANDIN_COUNTER_queued, -1);
            pthread_cond_broadcast(&standin_progress);
        }
    }
    stream_unref(stream);
    pthread_mutex_unlock(&standin_lock);
    return NULL;
}

/* ---- queues ---- */

void stream_unref(struct stream *stream)
{
    struct stream **link = &streams;

    if (--stream->references)
        return;
    while (*link != stream)
        link = &(*link)->next;
    *link = stream->next;
    pthread_cond_destroy(&stream->work);
    free(stream);
}

struct op *op_new(enum op_kind kind)
{
    struct op *op = calloc(1, sizeof(*op));

    if (op)
        op->kind = kind;
    return op;
}

void op_use(struct op *op, uint64_t address, uint64_t size, bool write)
{
    if (size)
        op->uses[op->n_uses++] = (struct use){.address = address, .size = size, .write = write};
}

static bool stream_start(struct stream *stream)
{
    pthread_attr_t attributes;
    pthread_t thread;
    int r;

    if (stream->has_thread)
        return true;
    pthread_attr_init(&attributes);
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    pthread_attr_setstacksize(&attributes, 512 << 10);
    r = pthread_create(&thread, &attributes, stream_main, stream);
    pthread_attr_destroy(&attributes);
    if (r != 0)
        return false;
    stream->has_thread = true;
    stream->references++;
    return true;
}

static void append(struct stream *stream, struct op *op)
{
    op->number = ++stream->enqueued;
    channel_enter(stream, op);
    *stream->tail = op;
    stream->tail = &op->next;
    count(STANDIN_COUNTER_queued, 1);
    pthread_cond_signal(&stream->work);
}

static void append_after(struct stream *stream, struct stream *other)
{
    struct op *op;

    if (other == stream || other->completed == other->enqueued)
        return;
    op = op_new(OP_AFTER);
    if (!op)
        return;
    op->after.stream = other;
    op->after.number = other->enqueued;
    other->references++;
    append(stream, op);
}

void stream_order_after(struct stream *stream, struct stream *other)
{
    if (stream_start(stream))
        append_after(stream, other);
}

/* What the default stream's rule makes this stream wait for. */
static void append_barriers(struct stream *stream)
{
    struct stream *first = stream->context->default_stream;

    if (stream->flags & CU_STREAM_NON_BLOCKING)
        return;
    if (stream != first) {
        if (first)
            append_after(stream, first);
        return;
    }
    for (struct stream *s = streams; s; s = s->next)
        if (s->context == stream->context && !(s->flags & CU_STREAM_NON_BLOCKING))
            append_after(stream, s);
}

CUresult stream_enqueue(struct stream *stream, struct op *op)
{
    bool taken;
    CUresult r = capture_enqueue(stream, op, &taken);

    if (taken)
        return r;
    for (unsigned i = 0; i < op->n_uses; i++) {
        const struct region *region = region_find(op->uses[i].address);

        if (region && region->freeing)
            misuse(0, "uses %#llx, which is being freed", (unsigned long long)op->uses[i].address);
    }
    if (!stream_start(stream)) {
        free(op);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    channel_wait_for_room(stream);
    append_barriers(stream);
    append(stream, op);
    return CUDA_SUCCESS;
}

CUresult stream_wait(struct stream *stream, uint64_t number)
{
    bool counted = false;
    struct context *context = stream->context;

    stream->references++;
    while (stream->completed < number && !context->broken)
        wait_for_progress(&counted);
    stream_unref(stream);
    return context->broken ? context->error : CUDA_SUCCESS;
}

static struct stream *find_busy(const struct context *context)
{
    for (struct stream *s = streams; s; s = s->next)
        if (s->context == context && s->completed < s->enqueued)
            return s;
    return NULL;
}

/* Waits for what was queued before, stream by stream; what others queue meanwhile is not waited for twice. */
CUresult streams_wait_context(struct context *context)
{
    bool counted = false;
    while (find_busy(context) && !context->broken)
        wait_for_progress(&counted);
    return context->broken ? context->error : CUDA_SUCCESS;
}

static bool overlaps(const struct op *op, uint64_t address, uint64_t size)
{
    for (unsigned i = 0; i < op->n_uses; i++)
        if (op->uses[i].address < address + size && address < op->uses[i].address + op->uses[i].size)
            return true;
    return false;
}

static bool range_in_use(uint64_t address, uint64_t size, const struct stream *except)
{
    for (struct stream *s = streams; s; s = s->next)
        for (const struct op *op = s == except ? NULL : s->head; op; op = op->next)
            if (overlaps(op, address, size))
                return true;
    return false;
}

void range_retire(struct context *context, uint64_t address, uint64_t size)
{
    bool counted = false;
    if (range_in_use(address, size, NULL))
        misuse(0, "%#llx is used by work that is still queued", (unsigned long long)address);
    if (context)
        streams_wait_context(context);
    while (range_in_use(address, size, NULL))
        wait_for_progress(&counted);
}

/* ---- handles ---- */

static struct stream *stream_new(struct context *context, unsigned flags, int priority)
{
    struct stream *stream = calloc(1, sizeof(*stream));
    static uint64_t last_id;

    if (!stream)
        return NULL;
    stream->id = ++last_id;
    stream->channel = channel_choose(context);
    stream->context = context;
    stream->flags = flags;
    stream->priority = priority;
    stream->references = 1;
    stream->tail = &stream->head;
    pthread_cond_init(&stream->work, NULL);
    stream->next = streams;
    streams = stream;
    return stream;
}

void stream_end(struct stream *stream)
{
    stream->destroyed = true;
    pthread_cond_signal(&stream->work);
    stream_unref(stream);
}

CUresult stream_get(CUstream handle, struct context *context, struct stream **ret_stream)
{
    uint64_t number = (uint64_t)(uintptr_t)handle;
    struct stream *stream;

    if (number <= 2) { /* NULL, CU_STREAM_LEGACY, CU_STREAM_PER_THREAD: all the one default stream here */
        if (!context->default_stream)
            context->default_stream = stream_new(context, 0, 0);
        *ret_stream = context->default_stream;
        return context->default_stream ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
    }
    stream = handle_get(HANDLE_STREAM, handle);
    if (!stream)
        return CUDA_ERROR_INVALID_HANDLE;
    if (stream->context != context)
        return misuse(CUDA_ERROR_INVALID_HANDLE, "the stream belongs to another context");
    *ret_stream = stream;
    return CUDA_SUCCESS;
}

CUresult enter_stream(const char *name, CUstream handle, struct stream **ret_stream)
{
    struct context *context;
    CUresult r = enter_context(name, &context);

    if (r != CUDA_SUCCESS)
        return r;
    r = stream_get(handle, context, ret_stream);
    return r == CUDA_SUCCESS ? r : leave(r);
}

/* ---- the driver's functions ---- */

API cuStreamCreateWithPriority(CUstream *ret_stream, unsigned flags, int priority)
{
    struct context *context;
    struct stream *stream;

    ENTER(enter_context("cuStreamCreate", &context));
    if (!ret_stream || (flags & ~(unsigned)CU_STREAM_NON_BLOCKING))
        return leave(CUDA_ERROR_INVALID_VALUE);
    if (priority > PRIORITY_LEAST)
        priority = PRIORITY_LEAST; /* as a real driver: the nearest one */
    if (priority < PRIORITY_GREATEST)
        priority = PRIORITY_GREATEST;
    gate_pass_call(STANDIN_GATE_stream_create);
    stream = stream_new(context, flags, priority);
    if (!stream)
        return leave(CUDA_ERROR_OUT_OF_MEMORY);
    stream->handle = handle_new(HANDLE_STREAM, stream);
    count(STANDIN_COUNTER_streams, 1);
    count(STANDIN_COUNTER_live_streams, 1);
    *ret_stream = stream->handle;
    return leave(CUDA_SUCCESS);
}

API cuStreamCreate(CUstream *ret_stream, unsigned flags)
{
    return cuStreamCreateWithPriority(ret_stream, flags, 0);
}

/* As a real driver: returns at once, queued work goes on to its end. */
API cuStreamDestroy_v2(CUstream handle)
{
    struct stream *stream;

    ENTER(enter_context("cuStreamDestroy", NULL));
    stream = handle_get(HANDLE_STREAM, handle);
    if (!stream)
        return leave(CUDA_ERROR_INVALID_HANDLE);
    if (stream->capture)
        capture_stream_destroyed(stream);
    handle_free(handle);
    stream_end(stream);
    count(STANDIN_COUNTER_live_streams, -1);
    return leave(CUDA_SUCCESS);
}

API cuStreamQuery(CUstream handle)
{
    struct stream *stream;
    CUresult r;

    ENTER(enter_stream("cuStreamQuery", handle, &stream));
    r = capture_check_wait(stream);
    if (r == CUDA_SUCCESS && stream->completed < stream->enqueued)
        r = CUDA_ERROR_NOT_READY;
    return leave(r);
}

API cuStreamSynchronize(CUstream handle)
{
    struct stream *stream;
    CUresult r;

    ENTER(enter_stream("cuStreamSynchronize", handle, &stream));
    r = capture_check_wait(stream);
    if (r == CUDA_SUCCESS) {
        /* Synchronising the default stream waits for those that it waits for, too. */
        if (stream == stream->context->default_stream && stream_start(stream))
            append_barriers(stream);
        r = stream_wait(stream, stream->enqueued);
    }
    return leave(r);
}

/* Any stream may be asked, whatever context is current. */
CUresult enter_stream_any(const char *name, CUstream handle, struct stream **ret_stream)
{
    CUresult r;

    if ((uint64_t)(uintptr_t)handle <= 2) /* the current context's default stream */
        return enter_stream(name, handle, ret_stream);
    r = enter(name);
    if (r != CUDA_SUCCESS)
        return r;
    *ret_stream = handle_get(HANDLE_STREAM, handle);
    if (!*ret_stream)
        return leave(CUDA_ERROR_INVALID_HANDLE);
    return (*ret_stream)->context->broken ? leave((*ret_stream)->context->error) : CUDA_SUCCESS;
}

API cuStreamGetId(CUstream handle, unsigned long long *ret_id)
{
    struct stream *stream;

    ENTER(enter_stream_any("cuStreamGetId", handle, &stream));
    if (!ret_id)
        return leave(CUDA_ERROR_INVALID_VALUE);
    *ret_id = stream->id;
    return leave(CUDA_SUCCESS);
}

/* As on a real device the function may call nothing of CUDA. */
API cuLaunchHostFunc(CUstream handle, CUhostFn function, void *data)
{
    struct stream *stream;
    struct op *op;

    ENTER(enter_stream("cuLaunchHostFunc", handle, &stream));
    if (!function)
        return leave(CUDA_ERROR_INVALID_VALUE);
    op = op_new(OP_HOST);
    if (!op)
        return leave(CUDA_ERROR_OUT_OF_MEMORY);
    op->host.function = function;
    op->host.data = data;
    return leave(stream_enqueue(stream, op));
}
