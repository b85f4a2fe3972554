/* Work that streams get: copies, fills, words that they write and wait for, and events.
 *
 * An asynchronous copy of host memory that is not registered blocks until it is done, as with a real driver, and is
 * counted. Words of 64 bits may be the device's, registered, or of cuMemHostAlloc; who writes one may be the CPU,
 * another stream or another process. A wait ends when the word has reached the value; no other condition is known. An
 * event remembers how often it was recorded: a wait is for the record before it, and a later record does not disturb
 * it. */
#include <stdlib.h>

#include "standin.h"

/* ---- copies ---- */

static bool is_device(uint64_t address)
{
    const struct region *r = region_find(address);

    return r && r->kind != REGION_HOST;
}

/* The device side must be memory that the driver knows; a host side that it knows must cover the copy, too. */
static bool side_is_valid(uint64_t address, size_t size, bool device)
{
    const struct region *r = region_find(address);

    if (device)
        return region_find_range(address, size) != NULL;
    if (!r)
        return address != 0;
    return r->kind == REGION_HOST;
}

static CUresult copy(const char *name, uint64_t to, uint64_t from, size_t size, bool to_device, bool from_device,
                     CUstream handle, bool wait)
{
    struct stream *stream;
    CUresult r;
    bool pageable = false;
    struct op *op;

    ENTER(enter_stream(name, handle, &stream));
    if (size == 0)
        return leave(CUDA_SUCCESS);
    if (!side_is_valid(to, size, to_device) || !side_is_valid(from, size, from_device))
        return leave(misuse(CUDA_ERROR_INVALID_VALUE, "%zu bytes from %#llx to %#llx: not %s memory", size,
                            (unsigned long long)from, (unsigned long long)to,
                            to_device && from_device ? "device" : "the right kind of"));
    op = op_new(OP_COPY);
    if (!op)
        return leave(CUDA_ERROR_OUT_OF_MEMORY);
    op->copy.to = (void *)(uintptr_t)to;
    op->copy.from = (const void *)(uintptr_t)from;
    op->copy.size = size;
    if (region_find_range(to, size))
        op_use(op, to, size, is_device(to));
    else
        pageable = true;
    if (region_find_range(from, size))
        op_use(op, from, size, false);
    else
        pageable = true;
    count(!to_device     ? STANDIN_COUNTER_copies_d2h
          : !from_device ? STANDIN_COUNTER_copies_h2d
                         : STANDIN_COUNTER_copies_d2d,
          1);
    if (pageable && !wait && !stream->capture)
        count(STANDIN_COUNTER_pageable_copies, 1);
    r = stream_enqueue(stream, op);
    if (r == CUDA_SUCCESS && (wait || pageable) && !stream->capture)
        r = stream_wait(stream, stream->enqueued);
    return leave(r);
}

API cuMemcpyHtoD_v2(CUdeviceptr to, const void *from, size_t size)
{
    return copy("cuMemcpyHtoD", to, (uint64_t)(uintptr_t)from, size, true, false, NULL, true);
}

API cuMemcpyDtoH_v2(void *to, CUdeviceptr from, size_t size)
{
    return copy("cuMemcpyDtoH", (uint64_t)(uintptr_t)to, from, size, false, true, NULL, true);
}

API cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void *from, size_t size, CUstream stream)
{
    return copy("cuMemcpyHtoDAsync", to, (uint64_t)(uintptr_t)from, size, true, false, stream, false);
}

API cuMemcpyDtoHAsync_v2(void *to, CUdeviceptr from, size_t size, CUstream stream)
{
    return copy("cuMemcpyDtoHAsync", (uint64_t)(uintptr_t)to, from, size, false, true, stream, false);
}

API cuMemcpyDtoDAsync_v2(CUdeviceptr to, CUdeviceptr from, size_t size, CUstream stream)
{
    return copy("cuMemcpyDtoDAsync", to, from, size, true, true, stream, false);
}

/* A real driver's synchronous memset of device memory returns before it is done, too. */
static CUresult fill(const char *name, uint64_t to, uint32_t value, unsigned width, size_t count_of, CUstream handle)
{
    struct stream *stream;
    struct op *op;

    ENTER(enter_stream(name, handle, &stream));
    if (count_of == 0)
        return leave(CUDA_SUCCESS);
    if (to % width || count_of > SIZE_MAX / width || !region_find_range(to, count_of * width))
        return leave(misuse(CUDA_ERROR_INVALID_VALUE, "%zu × %u bytes at %#llx are not device memory", count_of, width,
                            (unsigned long long)to));
    op = op_new(OP_FILL);
    if (!op)
        return leave(CUDA_ERROR_OUT_OF_MEMORY);
    op->fill.to = (void *)(uintptr_t)to;
    op->fill.count = count_of;
    op->fill.width = width;
    op->fill.value = value;
    op_use(op, to, count_of * width, true);
    return leave(stream_enqueue(stream, op));
}

API cuMemsetD32_v2(CUdeviceptr to, unsigned value, size_t count_of)
{
    return fill("cuMemsetD32", to, value, 4, count_of, NULL);
}

API cuMemsetD8Async(CUdeviceptr to, unsigned char value, size_t count_of, CUstream stream)
{
    return fill("cuMemsetD8Async", to, value, 1, count_of, stream);
}

API cuMemsetD32Async(CUdeviceptr to, unsigned value, size_t count_of, CUstream stream)
{
    return fill("cuMemsetD32Async", to, value, 4, count_of, stream);
}

/* ---- words ---- */

enum { BATCH_MAX = 256 };

struct word {
    enum op_kind kind;
    uint64_t address, value;
    unsigned flags;
};

static CUresult word_check(const struct context *context, const struct word *word)
{
    if (!device_attribute(context->device, CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS))
        return CUDA_ERROR_NOT_SUPPORTED;
    if (word->flags || !word->address || word->address % 8 || !region_find_range(word->address, 8))
        return CUDA_ERROR_INVALID_VALUE;
    return CUDA_SUCCESS;
}

static CUresult word_enqueue(struct stream *stream, const struct word *word)
{
    struct op *op = op_new(word->kind);

    if (!op)
        return CUDA_ERROR_OUT_OF_MEMORY;
    op->word.address = word->address;
    op->word.value = word->value;
    op_use(op, word->address, 8, word->kind == OP_WRITE_VALUE);
    return stream_enqueue(stream, op);
}

static CUresult one(const char *name, CUstream handle, const struct word *word)
{
    struct stream *stream;
    CUresult r;

    ENTER(enter_stream(name, handle, &stream));
    r = word_check(stream->context, word);
    return leave(r == CUDA_SUCCESS ? word_enqueue(stream, word) : r);
}

API cuStreamWriteValue64_v2(CUstream stream, CUdeviceptr address, cuuint64_t value, unsigned flags)
{
    return one("cuStreamWriteValue64", stream, &(struct word){OP_WRITE_VALUE, address, value, flags});
}

API cuStreamWaitValue64_v2(CUstream stream, CUdeviceptr address, cuuint64_t value, unsigned flags)
{
    return one("cuStreamWaitValue64", stream, &(struct word){OP_WAIT_VALUE, address, value, flags});
}

static CUresult word_of(const CUstreamBatchMemOpParams *entry, struct word *ret_word)
{
    if (entry->operation == CU_STREAM_MEM_OP_WAIT_VALUE_64)
        *ret_word =
            (struct word){OP_WAIT_VALUE, entry->waitValue.address, entry->waitValue.value64, entry->waitValue.flags};
    else if (entry->operation == CU_STREAM_MEM_OP_WRITE_VALUE_64)
        *ret_word = (struct word){OP_WRITE_VALUE, entry->writeValue.address, entry->writeValue.value64,
                                  entry->writeValue.flags};
    else
        return CUDA_ERROR_INVALID_VALUE;
    return CUDA_SUCCESS;
}

/* All or nothing: every entry is checked before the first is queued. */
API cuStreamBatchMemOp_v2(CUstream handle, unsigned count_of, CUstreamBatchMemOpParams *entries, unsigned flags)
{
    CUresult r = CUDA_SUCCESS;
    struct word words[BATCH_MAX];
    struct stream *stream;

    ENTER(enter_stream("cuStreamBatchMemOp", handle, &stream));
    if (flags || !count_of || count_of > BATCH_MAX || !entries)
        return leave(CUDA_ERROR_INVALID_VALUE);
    for (unsigned i = 0; r == CUDA_SUCCESS && i < count_of; i++) {
        r = word_of(&entries[i], &words[i]);
        if (r == CUDA_SUCCESS)
            r = word_check(stream->context, &words[i]);
    }
    for (unsigned i = 0; r == CUDA_SUCCESS && i < count_of; i++)
        r = word_enqueue(stream, &words[i]);
    return leave(r);
}

/* ---- events ---- */

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
