/* Replies of the usual form, read from their bytes without a decoder. Whatever is unusual is left to wire_unpack.c. */
#ifndef KOPS_CLIENT_WIRE_FAST_H
#define KOPS_CLIENT_WIRE_FAST_H

#include "wire.h"

/* Bytes of [1, msgid, with the array's head; 0: not in one of the forms that it is usually written in. */
size_t wire_response_head(const unsigned char *d, size_t length, uint32_t *ret_msgid);

/* Whether the message is a response with a small map for a result, which may be empty; nothing but its first bytes is
 * looked at. */
bool wire_is_success(const char *data, size_t length, uint32_t *ret_msgid, bool *ret_empty);

/* The result of such a message as that of a run; false: something in it is unusual, and *t undefined. */
bool wire_fast_run(const char *data, size_t length, struct wire_timings *t);

/* Where a timing of that name is kept; NULL: there is none such. They are looked for from *from on, which is moved. */
double *wire_timing(struct kops_result *r, const char *key, size_t length, unsigned *from);

/* Nothing was measured. */
void wire_clear_result(struct kops_result *r);

#endif
