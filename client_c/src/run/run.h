/* A run of an op, in each of the three ways. */
#ifndef KOPS_CLIENT_RUN_H
#define KOPS_CLIENT_RUN_H

#include "jobs/dispatch.h"

/* Enters the client. `ret_error` may be NULL. */
enum kops_code run_request(struct kops_client *c, const struct kops_request *request, const struct dispatch *d,
                           struct kops_error *ret_error);

#endif
