/* The requests and replies of <kops/tune.h> on the wire. */
#ifndef KOPS_CLIENT_TUNE_WIRE_H
#define KOPS_CLIENT_TUNE_WIRE_H

#include "wire.h"

struct wire_tune {
    const char *op;
    unsigned n_inputs, n_outputs;
    const struct native_tensor *tensors; /* inputs, then outputs; without buffers */
    const struct kops_attr *attrs;
    size_t n_attrs;
    const char *device; /* NULL: the default */
};

struct wire_tuning {
    uint64_t from;
    bool clear;
};

struct wire_tuned {
    struct kops_tune tune; /* first: a kops_tune pointer is one to this */
    struct arena arena;
};

struct wire_choices {
    struct kops_tuning tuning; /* first: a kops_tuning pointer is one to this */
    struct arena arena;
};

wire_pack wire_pack_tune;   /* struct wire_tune */
wire_pack wire_pack_tuning; /* struct wire_tuning */

wire_decode wire_decode_tune;   /* struct wire_tuned */
wire_decode wire_decode_tuning; /* struct wire_choices */

#endif
