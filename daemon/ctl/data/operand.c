#include "operand.h"

#include <stdlib.h>

#include "base/ctl.h"

bool operand_measure(struct operand *o)
{
    const size_t size = kops_dtype_size(o->tensor.dtype);
    const int64_t count = kops_tensor_count(&o->tensor);

    if (count < 0 || (uint64_t)count > (SIZE_MAX >> 1) / size)
        return false;
    o->bytes = (size_t)count * size;
    return true;
}

enum ctl_exit operand_make(struct ctl *ctl, struct operand *o, bool device_memory, const char *device)
{
    struct kops_error error;
    enum kops_code code;

    if (!o->bytes)
        return CTL_OK;
    if (device_memory)
        code = kops_buffer_alloc(ctl->client, o->bytes, device, &o->buffer, &error);
    else
        code = kops_buffer_alloc_shared(ctl->client, o->bytes, &o->buffer, &error);
    if (code)
        return ctl_failed("making a buffer", &error);
    o->tensor.buffer = o->buffer;
    o->host = kops_buffer_data(o->buffer);
    if (!o->host)
        o->host = o->copy = calloc(1, o->bytes);
    return o->host ? CTL_OK : ctl_no_memory(o->bytes);
}

void operand_free(struct operand *o)
{
    free(o->copy);
    kops_buffer_release(o->buffer);
}

enum kops_code operand_push(struct operand *o, struct kops_error *error)
{
    return o->copy ? kops_buffer_write(o->buffer, 0, o->copy, o->bytes, error) : KOPS_OK;
}

enum kops_code operand_pull(struct operand *o, struct kops_error *error)
{
    return o->copy ? kops_buffer_read(o->buffer, 0, o->copy, o->bytes, error) : KOPS_OK;
}
