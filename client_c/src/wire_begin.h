/* What wire_pack.c and wire_pack_run.c share. */
#ifndef KOPS_CLIENT_WIRE_BEGIN_H
#define KOPS_CLIENT_WIRE_BEGIN_H

#include "mp.h"

/* [0, msgid, method, [ …one map follows. Room for a usual request is made at once. */
void wire_begin_request(struct bytes *b, uint32_t msgid, const char *method, size_t method_length);

#define WIRE_BEGIN(b, msgid, method) wire_begin_request((b), (msgid), (method), sizeof(method) - 1)

/* A UUID is text, an index ("0") a number. */
void wire_pack_device(struct bytes *b, const char *device);

#endif
