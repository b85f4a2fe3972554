/* The requests and replies of <kops/trace.h> on the wire. */
#ifndef KOPS_CLIENT_TRACE_WIRE_H
#define KOPS_CLIENT_TRACE_WIRE_H

#include "wire.h"

struct wire_trace {
    struct kops_trace trace; /* first: a kops_trace pointer is one to this */
    struct arena arena;
};

wire_pack wire_pack_trace_begin; /* struct kops_trace_options */
wire_pack wire_pack_trace_read;  /* bool: end */

wire_decode wire_decode_trace; /* struct wire_trace */

#endif
