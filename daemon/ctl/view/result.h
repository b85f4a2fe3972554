/* The times and shapes of a run as text, the times as JSON. */
#ifndef KOPS_CTL_RESULT_H
#define KOPS_CTL_RESULT_H

#include <stddef.h>

#include <kops/kops.h>

/* Of one execution, on whatever device. */
double result_kernel_us(const struct kops_result *result);

/* "640x640", "scalar". */
void result_shape(const struct kops_tensor *t, char *into, size_t size);

/* Lines on the executions and copies, where there were any. */
void result_print_more(const struct kops_result *result);

/* With the executions' times, of which `samples` has room for so many. */
void result_json_timings(const struct kops_result *result, const double *samples, size_t room);

#endif
