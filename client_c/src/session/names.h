/* Names of what runs, for messages: those of hello's ops, and those of kernels. Each has a place that fits a byte, and
 * lives as long as the client. Lock held. */
#ifndef KOPS_CLIENT_NAMES_H
#define KOPS_CLIENT_NAMES_H

#include <limits.h>

struct kops_client;

enum { NAMES_NONE = UCHAR_MAX, NAMES_MAX_KERNELS = 128 };

/* The same text, kept; what has no room any more is "a kernel". */
const char *names_keep(struct kops_client *c, const char *kernel);

/* NAMES_NONE: it has no place. */
unsigned char names_place(const struct kops_client *c, const char *name);

/* NULL for NAMES_NONE. */
const char *names_at(const struct kops_client *c, unsigned char place);

#endif
