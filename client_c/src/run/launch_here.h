/* Launches of kernels and ops in the caller's CUDA context. */
#ifndef KOPS_CLIENT_LAUNCH_HERE_H
#define KOPS_CLIENT_LAUNCH_HERE_H

#include "jobs/dispatch.h"
#include "kernel.h"

/* Refuses ways and options that only the daemon has. `options` may be NULL. */
enum kops_code launch_here_check(const struct dispatch *d, const struct kops_options *options, struct kops_error *e);

/* The tensors' addresses in this process, and the UUID of their device (NULL: none has memory), which lives as long as
 * their buffers. Lock held. Errors: no_cuda, bad_argument (shared memory), out_of_bounds, device_mismatch. */
enum kops_code launch_here_tensors(const struct kops_tensor *const *given, unsigned n, struct here_tensor *into,
                                   const char **ret_uuid, struct kops_error *e);

/* The result of a launch here. `us` is the time between two events, taken where `timed`. The device is not filled in.
 */
struct kops_result launch_here_result(double us, bool timed, const char *variant);

/* Enqueues, or launches and waits. Without the lock. `options` may be NULL. */
enum kops_code launch_here(struct kops_kernel *k, const struct here_call *call, const struct dispatch *d,
                           const struct kops_options *options, struct kops_error *e);

/* The same for an op, whose operands and attributes were checked. Drops the lock. */
enum kops_code op_here(struct kops_client *c, const struct kops_request *request, const struct dispatch *d,
                       struct kops_error *e);

/* Tells the daemon of the launches here that it was not told of, for its statistics: as far as it knows the kernel's
 * module, and without waiting. Lock held. */
void kernel_tell_here(struct kops_kernel *k);
void kernels_tell_here(struct kops_client *c);
void ops_tell_here(struct kops_client *c);
/* The last time. */
void ops_close_here(struct kops_client *c);

#endif
