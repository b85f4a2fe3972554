/* What wire_pack.c and wire_pack_run.c share. */
#ifndef KOPS_CLIENT_WIRE_BEGIN_H
#define KOPS_CLIENT_WIRE_BEGIN_H

#include "mp.h"
#include "wire.h"

/* [0, msgid, method, [ …one map follows. Room for a usual request is made at once. */
void wire_begin_request(struct bytes *b, uint32_t msgid, const char *method, size_t method_length);

#define WIRE_BEGIN(b, msgid, method) wire_begin_request((b), (msgid), (method), sizeof(method) - 1)

/* A UUID is text, an index ("0") a number. */
void wire_pack_device(struct bytes *b, const char *device);

/* The keys of a struct wire_how, and how many they are. */
unsigned wire_count_how(const struct wire_how *h);
void wire_pack_how(struct bytes *b, const struct wire_how *h);

/* Of a run or a launch: its method, and the keys behind its work, which are those of wire_pack_how() or, where counters
 * are wanted, those of them that mean something then. */
void wire_begin_run(struct bytes *b, uint32_t msgid, const struct wire_run *run, const char *method);
unsigned wire_count_run_how(const struct wire_run *run);
void wire_pack_run_how(struct bytes *b, const struct wire_run *run);

/* A launch, and a map of `ops` that is one: a tensor argument there is the next of `places`. */
void wire_pack_launch(struct bytes *b, uint32_t msgid, const struct wire_run *run);
void wire_pack_launch_op(struct bytes *b, const struct wire_run *run, const uint32_t *places);

/* Pairs of a packed map, and the bytes of its head; 0 bytes: it is no map. */
size_t wire_map_head(const void *map, size_t length, size_t *ret_pairs);

#endif
