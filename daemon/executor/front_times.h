/* The times that an executor tells of its jobs. Kernels of users run in its process: what cannot be is not taken.
 * Thread: loop. */
#ifndef KOPS_EXECUTOR_FRONT_TIMES_H
#define KOPS_EXECUTOR_FRONT_TIMES_H

#include "executor/front.h"

/* Whether it is one, or a NaN: there was no copy. */
bool front_is_copy_time(double us);

/* The job has ended, and has all its samples: those that are no times become 0. Sets its wall_us. False: together they
 * are longer than the executor had the job. */
bool front_accept_samples(const struct front_job *own);

/* Takes the other times of the job's end. */
void front_accept_times(struct executor *x, const struct front_job *own, const struct record_done *record);

/* A time that comes after its job's end: tells the host, unless it was not expected. */
void front_take_time(struct executor *x, const struct record_timed *record);

#endif
