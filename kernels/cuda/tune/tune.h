/* Tuning: measures the candidates for a step, and chooses.
 *
 * Operands are the tuner's own, with the layouts and alignments of the request and random values. There are several
 * sets, used in turn, so that small operands do not stay in the GPU's cache. Thread: one at a time, in a process that
 * does nothing else with the device. */
#ifndef KOPS_CUDA_TUNE_H
#define KOPS_CUDA_TUNE_H

#include "compute/work.h"
#include "core/tuning.h"
#include "driver/device.h"

struct cuda_kernels;

/* tune() and tunes() of struct backend. */
int cuda_tune(const struct cuda_kernels *k, const struct tuning_request *request, struct tuning_pace *pace,
              struct tuning_result *ret, struct error *e);
bool cuda_tunes(const struct step *step);

#endif
