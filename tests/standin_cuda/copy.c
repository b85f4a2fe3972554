/* Copies and fills. Synchronous ones go through the default stream. An asynchronous copy of host memory that is not
 * registered blocks until it is done, as with a real driver, and is counted. */
#include <stdlib.h>

#include "standin.h"

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
