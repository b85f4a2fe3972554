/* A clock of the GPU beside CLOCK_MONOTONIC. What the host saw before and after something on the GPU bounds how far the
 * two are apart: by the time that a launch takes on one side, and that until an end is seen on the other. Earlier
 * bounds count too, less what the clocks may have drifted since. Thread: loop. */
#ifndef KOPS_CUDA_CLOCK_H
#define KOPS_CUDA_CLOCK_H

#include <stdbool.h>
#include <stdint.h>

struct cuda_clock {
    int64_t least, most;        /* of host time less GPU time, ns */
    uint64_t least_ns, most_ns; /* when the host learned it; 0: not yet */
};

/* Work was given to the GPU after `before_ns`, and there began at `begin`, ended at `end`; the host saw that end at
 * `seen_ns`. */
void cuda_clock_learn(struct cuda_clock *c, uint64_t before_ns, uint64_t begin, uint64_t end, uint64_t seen_ns);

/* The host's time of `gpu`; 0: not known yet. */
uint64_t cuda_clock_host_ns(const struct cuda_clock *c, uint64_t gpu);

#endif
