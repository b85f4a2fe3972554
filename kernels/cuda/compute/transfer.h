/* The op copy between host memory and the device, as one transfer by the GPU's copy engines: no kernel runs, and no
 * memory of the device's lies between. Thread: any. */
#ifndef KOPS_CUDA_COMPUTE_TRANSFER_H
#define KOPS_CUDA_COMPUTE_TRANSFER_H

#include "work.h"

struct cuda_device;

extern const char cuda_variant_transfer[];

/* Whether the step may be a transfer: it copies between contiguous bytes in host memory and as many on the device. */
bool cuda_transfer_fits(const struct step *step);

/* Whether the client wants nothing but a transfer, and the error where it cannot be one. */
bool cuda_transfer_is_forced(const struct step *step);
int cuda_transfer_refuse(struct error *e);

/* Whether cuda_transfer_take() will not block. Only where the step fits. */
bool cuda_transfer_is_ready(const struct cuda_device *d, const struct step *step);

/* Makes the work a transfer, where the step fits and its host memory can be registered. 1: it is one; 0: the work is as
 * it was; -1: an error. The context is current. */
int cuda_transfer_take(struct cuda_device *d, const struct step *step, struct cuda_work *work, struct error *e);

/* Enqueues it. */
int cuda_transfer_issue(const struct cuda_queue *q, const struct cuda_work *work, struct error *e);

#endif
