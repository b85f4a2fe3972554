/* What the GPU's counters say, as text or as JSON. */
#ifndef KOPS_CTL_COUNTERS_H
#define KOPS_CTL_COUNTERS_H

#include <kops/kops.h>

/* Readable lines on stdout. */
void counters_print(const struct kops_counters *c);

/* A map, under `key` where that is not NULL. */
void counters_json(const char *key, const struct kops_counters *c);

/* The value of --cache. False: it is neither of the caches. */
bool counters_parse(const char *text, enum kops_counter_caches *ret);

#endif
