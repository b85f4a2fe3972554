/* A run of an op, and a launch of a kernel, in each of the ways. */
#ifndef KOPS_CLIENT_RUN_H
#define KOPS_CLIENT_RUN_H

#include "jobs/dispatch.h"

/* Refuses what no request may have, before anything is sent. Lock held. */
enum kops_code request_check(const struct kops_client *c, const struct kops_request *r, struct kops_error *e);

/* Its tensors: inputs, then outputs. */
static inline const struct kops_tensor *request_tensor(const struct kops_request *r, size_t i)
{
    return i < r->n_inputs ? &r->inputs[i] : &r->outputs[i - r->n_inputs];
}

/* Enters the client. `ret_error` may be NULL. */
enum kops_code run_request(struct kops_client *c, const struct kops_request *request, const struct dispatch *d,
                           struct kops_error *ret_error);
enum kops_code launch_request(struct kops_kernel *k, const struct kops_argument *args, size_t n_args,
                              const struct kops_launch_options *how, const struct dispatch *d,
                              struct kops_error *ret_error);

#endif
