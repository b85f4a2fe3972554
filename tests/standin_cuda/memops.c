/* Words of 64 bits in memory that streams write and wait for: cuStreamWriteValue, cuStreamWaitValue,
 * cuStreamBatchMemOp.
 *
 * The memory may be the device's, registered, or of cuMemHostAlloc; who writes it may be the CPU, another stream or
 * another process. worker.c runs them. A wait ends when the word has reached the value; no other condition is known. */
#include <stdlib.h>

#include "standin.h"

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
