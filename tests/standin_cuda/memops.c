/* Words in memory that streams write and wait for: cuStreamWriteValue, cuStreamWaitValue, cuStreamBatchMemOp.
 *
 * The memory may be the device's, registered, or of cuMemHostAlloc; who writes it may be the CPU, another stream or
 * another process. worker.c runs them. */
#include <stdlib.h>

#include "standin.h"

enum { BATCH_MAX = 256 };

struct word {
    enum op_kind kind;
    uint64_t address, value;
    unsigned bytes, flags;
};

static CUresult word_check(const struct context *context, const struct word *word)
{
    bool wait = word->kind == OP_WAIT_VALUE;
    unsigned known =
        wait ? CU_STREAM_WAIT_VALUE_NOR | CU_STREAM_WAIT_VALUE_FLUSH : CU_STREAM_WRITE_VALUE_NO_MEMORY_BARRIER;

    if (word->bytes == 8 && !device_attribute(context->device, CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS))
        return CUDA_ERROR_NOT_SUPPORTED;
    if (word->flags & ~known)
        return CUDA_ERROR_INVALID_VALUE;
    if (wait && (word->flags & CU_STREAM_WAIT_VALUE_FLUSH) &&
        !device_attribute(context->device, CU_DEVICE_ATTRIBUTE_CAN_FLUSH_REMOTE_WRITES))
        return CUDA_ERROR_NOT_SUPPORTED;
    if (!word->address || word->address % word->bytes || !region_find_range(word->address, word->bytes))
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
    op->word.bytes = word->bytes;
    op->word.flags = word->flags;
    op_use(op, word->address, word->bytes, word->kind == OP_WRITE_VALUE);
    return stream_enqueue(stream, op);
}

static CUresult one(const char *name, CUstream handle, const struct word *word)
{
    struct stream *stream;
    CUresult r = enter_stream(name, handle, &stream);

    if (r != CUDA_SUCCESS)
        return r;
    r = word_check(stream->context, word);
    return leave(r == CUDA_SUCCESS ? word_enqueue(stream, word) : r);
}

API cuStreamWriteValue32_v2(CUstream stream, CUdeviceptr address, cuuint32_t value, unsigned flags)
{
    return one("cuStreamWriteValue32", stream, &(struct word){OP_WRITE_VALUE, address, value, 4, flags});
}

API cuStreamWriteValue64_v2(CUstream stream, CUdeviceptr address, cuuint64_t value, unsigned flags)
{
    return one("cuStreamWriteValue64", stream, &(struct word){OP_WRITE_VALUE, address, value, 8, flags});
}

API cuStreamWaitValue32_v2(CUstream stream, CUdeviceptr address, cuuint32_t value, unsigned flags)
{
    return one("cuStreamWaitValue32", stream, &(struct word){OP_WAIT_VALUE, address, value, 4, flags});
}

API cuStreamWaitValue64_v2(CUstream stream, CUdeviceptr address, cuuint64_t value, unsigned flags)
{
    return one("cuStreamWaitValue64", stream, &(struct word){OP_WAIT_VALUE, address, value, 8, flags});
}

/* ---- batches ---- */

/* Whether the entry is a word to write or to wait for; barriers and flushes have nothing to do here but be valid. */
static CUresult batch_entry(const struct context *context, const CUstreamBatchMemOpParams *entry, struct word *ret_word,
                            bool *ret_is_word)
{
    bool wide =
        entry->operation == CU_STREAM_MEM_OP_WAIT_VALUE_64 || entry->operation == CU_STREAM_MEM_OP_WRITE_VALUE_64;

    *ret_is_word = false;
    switch (entry->operation) {
    case CU_STREAM_MEM_OP_WAIT_VALUE_32:
    case CU_STREAM_MEM_OP_WAIT_VALUE_64:
        *ret_word = (struct word){OP_WAIT_VALUE, entry->waitValue.address,
                                  wide ? entry->waitValue.value64 : entry->waitValue.value, wide ? 8 : 4,
                                  entry->waitValue.flags};
        break;
    case CU_STREAM_MEM_OP_WRITE_VALUE_32:
    case CU_STREAM_MEM_OP_WRITE_VALUE_64:
        *ret_word = (struct word){OP_WRITE_VALUE, entry->writeValue.address,
                                  wide ? entry->writeValue.value64 : entry->writeValue.value, wide ? 8 : 4,
                                  entry->writeValue.flags};
        break;
    case CU_STREAM_MEM_OP_BARRIER:
        return entry->memoryBarrier.flags > CU_STREAM_MEMORY_BARRIER_TYPE_GPU ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
    case CU_STREAM_MEM_OP_FLUSH_REMOTE_WRITES:
        if (entry->flushRemoteWrites.flags)
            return CUDA_ERROR_INVALID_VALUE;
        return device_attribute(context->device, CU_DEVICE_ATTRIBUTE_CAN_FLUSH_REMOTE_WRITES)
                   ? CUDA_SUCCESS
                   : CUDA_ERROR_NOT_SUPPORTED;
    default:
        return CUDA_ERROR_INVALID_VALUE;
    }
    *ret_is_word = true;
    return word_check(context, ret_word);
}

/* All or nothing: every entry is checked before the first is queued. */
API cuStreamBatchMemOp_v2(CUstream handle, unsigned count_of, CUstreamBatchMemOpParams *entries, unsigned flags)
{
    struct stream *stream;
    CUresult r = enter_stream("cuStreamBatchMemOp", handle, &stream);
    struct word word;
    bool is_word;

    if (r != CUDA_SUCCESS)
        return r;
    if (flags || !count_of || count_of > BATCH_MAX || !entries)
        r = CUDA_ERROR_INVALID_VALUE;
    for (unsigned i = 0; r == CUDA_SUCCESS && i < count_of; i++)
        r = batch_entry(stream->context, &entries[i], &word, &is_word);
    for (unsigned i = 0; r == CUDA_SUCCESS && i < count_of; i++) {
        batch_entry(stream->context, &entries[i], &word, &is_word);
        if (is_word)
            r = word_enqueue(stream, &word);
    }
    return leave(r);
}

/* The names of the first version; where its module parameter allows them they do the same. */
#undef cuStreamWriteValue32
#undef cuStreamWriteValue64
#undef cuStreamWaitValue32
#undef cuStreamWaitValue64
#undef cuStreamBatchMemOp
API_ALIAS(cuStreamWriteValue32_v2)
CUresult CUDAAPI cuStreamWriteValue32(CUstream stream, CUdeviceptr address, cuuint32_t value, unsigned flags);
API_ALIAS(cuStreamWriteValue64_v2)
CUresult CUDAAPI cuStreamWriteValue64(CUstream stream, CUdeviceptr address, cuuint64_t value, unsigned flags);
API_ALIAS(cuStreamWaitValue32_v2)
CUresult CUDAAPI cuStreamWaitValue32(CUstream stream, CUdeviceptr address, cuuint32_t value, unsigned flags);
API_ALIAS(cuStreamWaitValue64_v2)
CUresult CUDAAPI cuStreamWaitValue64(CUstream stream, CUdeviceptr address, cuuint64_t value, unsigned flags);
API_ALIAS(cuStreamBatchMemOp_v2)
CUresult CUDAAPI cuStreamBatchMemOp(CUstream stream, unsigned count_of, CUstreamBatchMemOpParams *entries,
                                    unsigned flags);
