/* Events. An event remembers how often it was recorded: a wait is for the
 * record before it, and a later record does not disturb it. */
#include <stdlib.h>

#include "standin.h"

void event_unref(struct event *event)
{
    if (!--event->references)
        free(event);
}

static struct event *event_get(CUevent handle)
{
    return handle_get(HANDLE_EVENT, handle);
}

API cuEventCreate(CUevent *ret_event, unsigned flags)
{
    struct context *context;
    struct event *event;

    ENTER(enter_context("cuEventCreate", &context));
    if (flags & ~7U || ((flags & CU_EVENT_INTERPROCESS) && !(flags & CU_EVENT_DISABLE_TIMING)))
        return leave(CUDA_ERROR_INVALID_VALUE);
    event = calloc(1, sizeof(*event));
    if (!event)
        return leave(CUDA_ERROR_OUT_OF_MEMORY);
    *event = (struct event){.context = context, .flags = flags, .references = 1};
    event->handle = handle_new(HANDLE_EVENT, event);
    count(STANDIN_COUNTER_events, 1);
    count(STANDIN_COUNTER_live_events, 1);
    *ret_event = event->handle;
    return leave(CUDA_SUCCESS);
}

/* As a real driver: an event that is still to be recorded or waited for may be destroyed. */
API cuEventDestroy_v2(CUevent handle)
{
    struct event *event;

    ENTER(enter_context("cuEventDestroy", NULL));
    event = event_get(handle);
    if (!event)
        return leave(CUDA_ERROR_INVALID_HANDLE);
    handle_free(handle);
    event_unref(event);
    count(STANDIN_COUNTER_live_events, -1);
    return leave(CUDA_SUCCESS);
}

static CUresult record(struct context *context, CUstream stream_handle, CUevent event_handle)
{
    struct event *event = event_get(event_handle);
    struct stream *stream;
    struct op *op;
    CUresult r = stream_get(stream_handle, context, &stream);

    if (r != CUDA_SUCCESS)
        return r;
    if (!event)
        return CUDA_ERROR_INVALID_HANDLE;
    if (event->context != context)
        return misuse(CUDA_ERROR_INVALID_HANDLE, "the event belongs to another context");
    if (stream->capture)
        return capture_record_event(stream, event);
    r = capture_check_wait(stream); /* the default stream's rule */
    if (r != CUDA_SUCCESS)
        return r;
    op = op_new(OP_RECORD);
    if (!op)
        return CUDA_ERROR_OUT_OF_MEMORY;
    event->captured = false;
    event->references++;
    op->mark.event = event;
    op->mark.generation = ++event->recorded;
    return stream_enqueue(stream, op);
}

API cuEventRecord(CUevent event, CUstream stream)
{
    struct context *context;
    CUresult r = enter_context("cuEventRecord", &context);

    return r == CUDA_SUCCESS ? leave(record(context, stream, event)) : r;
}

API cuEventQuery(CUevent handle)
{
    struct event *event;

    ENTER(enter_context("cuEventQuery", NULL));
    event = event_get(handle);
    if (!event)
        return leave(CUDA_ERROR_INVALID_HANDLE);
    if (event->captured)
        return leave(CUDA_ERROR_CAPTURED_EVENT);
    return leave(event->done < event->recorded ? CUDA_ERROR_NOT_READY : CUDA_SUCCESS);
}

API cuEventSynchronize(CUevent handle)
{
    bool counted = false;
    struct context *context;
    struct event *event;
    uint64_t generation;

    ENTER(enter_context("cuEventSynchronize", &context));
    event = event_get(handle);
    if (!event)
        return leave(CUDA_ERROR_INVALID_HANDLE);
    if (event->captured)
        return leave(CUDA_ERROR_CAPTURED_EVENT);
    event->references++;
    generation = event->recorded;
    while (event->done < generation && !event->context->broken)
        wait_for_progress(&counted);
    context = event->context;
    event_unref(event);
    return leave(context->broken ? context->error : CUDA_SUCCESS);
}

/* What the events of a real GPU say too much. */
static double extra_us(void)
{
    const char *us = getenv("KOPS_STANDIN_EVENT_US");

    return us ? strtod(us, NULL) : 0;
}

static CUresult elapsed(float *ret_milliseconds, CUevent start, CUevent end)
{
    const struct event *first = event_get(start), *last = event_get(end);

    if (!first || !last || first->context != last->context)
        return CUDA_ERROR_INVALID_HANDLE;
    if (first->captured || last->captured)
        return CUDA_ERROR_CAPTURED_EVENT;
    if ((first->flags | last->flags) & CU_EVENT_DISABLE_TIMING)
        return misuse(CUDA_ERROR_INVALID_HANDLE, "the event was made without timing");
    if (!first->recorded || !last->recorded)
        return misuse(CUDA_ERROR_INVALID_HANDLE, "the event was never recorded");
    if (first->done < first->recorded || last->done < last->recorded)
        return CUDA_ERROR_NOT_READY;
    *ret_milliseconds = (float)((double)(int64_t)(last->time - first->time) * 1e-6 + extra_us() * 1e-3);
    return CUDA_SUCCESS;
}

API cuEventElapsedTime_v2(float *ret_milliseconds, CUevent start, CUevent end)
{
    ENTER(enter_context("cuEventElapsedTime", NULL));
    return leave(elapsed(ret_milliseconds, start, end));
}
#undef cuEventElapsedTime
__attribute__((visibility("default"), alias("cuEventElapsedTime_v2"))) CUresult CUDAAPI
cuEventElapsedTime(float *ret_milliseconds, CUevent start, CUevent end);
