#include "span.h"

#include <string.h>
#include <sys/stat.h>

/* SPACE_ADDRESSES: those of CUDA in this process, where all its devices share one range. */
enum { SPACE_NOTHING, SPACE_FILE, SPACE_ADDRESSES, SPACE_UNMAPPED };

/* From the first to behind the last element; false: it does not fit, or makes no sense. */
static bool covered(const struct kops_tensor *t, uint64_t *ret_bytes)
{
    const uint64_t element = kops_dtype_size(t->dtype);
    uint64_t last = 0, stride = 1, bytes;

    *ret_bytes = 0;
    for (unsigned i = 0; i < t->rank; i++)
        if (t->shape[i] <= 0)
            return t->shape[i] == 0;
    for (unsigned i = t->rank; i-- > 0;) {
        uint64_t step;

        if (t->has_strides && t->strides[i] < 0)
            return false;
        if (__builtin_mul_overflow((uint64_t)t->shape[i] - 1, t->has_strides ? (uint64_t)t->strides[i] : stride,
                                   &step) ||
            __builtin_add_overflow(last, step, &last) || __builtin_mul_overflow(stride, (uint64_t)t->shape[i], &stride))
            return false;
    }
    if (__builtin_add_overflow(last, 1, &last) || __builtin_mul_overflow(last, element, &bytes))
        return false;
    *ret_bytes = bytes;
    return true;
}

bool span_of(const struct kops_tensor *t, struct span *ret)
{
    const struct kops_buffer *b = t->buffer;
    struct stat st;

    *ret = (struct span){{SPACE_NOTHING}, t->offset, 0};
    if (!covered(t, &ret->length))
        return false;
    if (!b || !ret->length)
        return true;
    if (b->kind == BUFFER_SHARED) {
        /* The same file may have been registered twice. */
        if (fstat(b->fd, &st))
            return false;
        ret->space[0] = SPACE_FILE;
        ret->space[1] = st.st_dev;
        ret->space[2] = st.st_ino;
    } else if (b->kind == BUFFER_VMM && !b->pointer) {
        ret->space[0] = SPACE_UNMAPPED;
        ret->space[1] = (uintptr_t)b;
    } else {
        ret->space[0] = SPACE_ADDRESSES;
        ret->begin += b->pointer;
    }
    return true;
}

bool spans_meet(const struct span *a, const struct span *b)
{
    if (!a->length || !b->length || memcmp(a->space, b->space, sizeof(a->space)) != 0)
        return false;
    return a->begin < b->begin ? b->begin - a->begin < a->length : a->begin - b->begin < b->length;
}
