/* Checks of a step before it is queued, so that the client hears of a mistake at once. */
#ifndef KOPS_CUDA_CHECK_H
#define KOPS_CUDA_CHECK_H

#include "backend/backend.h"

/* check() of struct backend. It needs no driver, so a process without one can ask, too. Thread: any. */
int cuda_check_step(struct backend_device *base, const struct step *step, struct error *e);

#endif
