/* Streams: a queue each, and who waits for it.
 *
 * The default stream and those made without CU_STREAM_NON_BLOCKING wait for one another, by OP_AFTER operations that
 * are put before the work. worker.c runs the queues. */
#include <pthread.h>
#include <stdlib.h>

#include "standin.h"

static struct stream *streams; /* every one whose handle or thread lives */

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

bool op_is_held(const struct stream *stream, const struct op *op)
{
    return channel_holds(streams, stream, op);
}

CUresult stream_wait(struct stream *stream, uint64_t number)
{
    struct context *context = stream->context;
    bool counted = false;

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

bool range_in_use(uint64_t address, uint64_t size, const struct stream *except)
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
#undef cuStreamDestroy
API_ALIAS(cuStreamDestroy_v2) CUresult CUDAAPI cuStreamDestroy(CUstream handle);

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
