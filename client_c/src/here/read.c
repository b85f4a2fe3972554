#include "read.h"

#include <string.h>

#include "base/fail.h"
#include "rpc/value.h"

/* ---- tensors ---- */

int here_read_tensor(const struct here_tensor *from, const char *key, struct tensor *t, struct error *e)
{
    t->dtype = (enum dtype)from->dtype;
    t->rank = from->rank;
    t->offset = from->pointer;
    if (from->rank > TENSOR_MAX_RANK)
        return error_at(e, ERROR_LIMIT_EXCEEDED, "", key, "more dimensions than limits.rank");
    memcpy(t->shape, from->shape, from->rank * sizeof(t->shape[0]));
    if (from->strides)
        memcpy(t->strides, from->strides, from->rank * sizeof(t->strides[0]));
    else
        tensor_set_contiguous(t);
    if (tensor_measure(t, key, e) < 0)
        return -1;
    return from->bytes ? tensor_check_bounds(t, from->pointer + from->bytes, key, e) : 0;
}

bool here_one_memory(const void *context, unsigned a, unsigned b)
{
    (void)context;
    (void)a;
    (void)b;
    return true;
}

/* ---- the context ---- */

enum kops_code here_context(const struct cuda_driver **ret_driver, cuda_context *ret_context, struct kops_error *e)
{
    const struct cuda_driver *d = cuda_loaded();
    cuda_context context = NULL;

    if ((!d || d->context_get(&context)) && !(d = cuda_load(e))) /* cuda_load() says why, also after a fork */
        return KOPS_ERR_NO_CUDA;
    if (!context && (d->context_get(&context) || !context))
        return fail(e, KOPS_ERR_NO_CUDA,
                    "no CUDA context is current in this thread: a launch here runs in the caller's own; make one, or "
                    "launch in the daemon");
    *ret_driver = d;
    *ret_context = context;
    return KOPS_OK;
}

enum kops_code here_check_device(int tensors, cuda_device context, struct kops_error *e)
{
    if (tensors < 0 || tensors == context)
        return KOPS_OK;
    return fail(e, KOPS_ERR_DEVICE_MISMATCH,
                "the tensors live on GPU %d, but the current context is of GPU %d: make that device current first",
                tensors, context);
}

/* ---- errors ---- */

/* Both enumerations come of proto/errors.json, with the same numbers. */
#define X(NAME, name, value)                                                                                           \
    _Static_assert((int)ERROR_##NAME == (int)KOPS_ERR_##NAME, "the codes of both sides have the same numbers");
KOPS_ERRORS(X)
#undef X

enum kops_code here_error(const struct error *from, struct kops_error *to)
{
    const enum kops_code code = (enum kops_code)from->code;

    fail(to, code, "%s", from->message);
    for (unsigned i = 0; i < from->n_details; i++) {
        const struct error_detail *d = &from->details[i];

        if (d->is_text)
            fail_text(to, code, d->key, d->text, strlen(d->text));
        else
            fail_number(to, code, d->key, d->number);
    }
    return code;
}
