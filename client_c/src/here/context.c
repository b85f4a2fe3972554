#include "context.h"

#include "base/fail.h"

enum kops_code here_context(const struct cuda_driver **ret_driver, cuda_context *ret_context, struct kops_error *e)
{
    const struct cuda_driver *d = cuda_loaded();
    cuda_context context = NULL;

    if ((!d || d->context_get(&context)) && !(d = cuda_load(e))) /* which says why, also after a fork */
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
