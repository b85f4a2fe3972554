/* Names of ops and kernels, for messages: those of hello's ops, and those of kernels that were declared. Each has a
 * place that fits a byte, and lives as long as the client. Lock held. */
#ifndef KOPS_CLIENT_NAMES_H
#define KOPS_CLIENT_NAMES_H

#include <limits.h>

struct kops_client;

enum { NAMES_NONE = UCHAR_MAX, NAMES_MAX_KERNELS = 128 };

struct names {
    const char *kernels[NAMES_MAX_KERNELS];
    unsigned n_kernels;
};

/* The same text, kept. Where there is no room left the name is "a kernel". */
const char *names_keep(struct kops_client *c, const char *kernel);

/* NAMES_NONE: it has no place. */
unsigned char names_place(const struct kops_client *c, const char *name);

/* NULL for NAMES_NONE. */
const char *names_at(const struct kops_client *c, unsigned char place);

#endif
