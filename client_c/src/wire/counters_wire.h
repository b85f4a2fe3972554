/* The reply of <kops/counters.h> on the wire; its request is that of a run, see struct wire_run. */
#ifndef KOPS_CLIENT_COUNTERS_WIRE_H
#define KOPS_CLIENT_COUNTERS_WIRE_H

#include "wire.h"

struct wire_counters {
    struct kops_counters counters; /* first: a kops_counters pointer is one to this */
    struct arena arena;
};

wire_decode wire_decode_counters; /* struct wire_counters */

#endif
