/* The requests and replies of <kops/admin.h> on the wire. */
#ifndef KOPS_CLIENT_ADMIN_WIRE_H
#define KOPS_CLIENT_ADMIN_WIRE_H

#include "wire.h"

struct wire_clients {
    struct kops_clients clients; /* first: a kops_clients pointer is one to this */
    struct arena arena;
};

struct wire_conditions {
    struct kops_conditions conditions; /* first: a kops_conditions pointer is one to this */
    struct arena arena;
};

wire_pack wire_pack_conditions; /* const char *: the device, or NULL */
wire_pack wire_pack_drain;      /* struct kops_drain_options */

wire_decode wire_decode_clients;    /* struct wire_clients */
wire_decode wire_decode_conditions; /* struct wire_conditions */
wire_decode wire_decode_metrics;    /* char *: malloc'd text */
wire_decode wire_decode_drain;      /* struct kops_drain_result */

#endif
