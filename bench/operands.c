#include "operands.h"

#include "options.h"

int operands_make(struct operands *operands, kops_client *client, const char *op, enum kops_dtype dtype, unsigned rank,
                  const int64_t *shape)
{
    size_t bytes = kops_dtype_size(dtype);
    struct kops_error error;

    *operands = (struct operands){0};
    for (unsigned i = 0; i < rank; i++)
        bytes *= (size_t)shape[i];
    for (size_t i = 0; i < 3; i++) {
        if (check_kops(kops_buffer_alloc(client, bytes, NULL, &operands->buffers[i], &error), &error, "alloc"))
            goto release;
        operands->tensors[i] = kops_tensor_of(operands->buffers[i], dtype, rank, shape);
    }
    operands->request = (struct kops_request){
        .op = op, .inputs = operands->tensors, .n_inputs = 2, .outputs = &operands->tensors[2], .n_outputs = 1};
    return 0;

release:
    operands_release(operands);
    return -1;
}

void operands_release(struct operands *operands)
{
    for (size_t i = 0; i < 3; i++)
        operands->buffers[i] = kops_buffer_release(operands->buffers[i]);
}
