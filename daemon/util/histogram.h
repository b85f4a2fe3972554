/* Durations in logarithmic buckets, for percentiles within 6 % at constant cost. Runs for ever: when a bucket is full
 * all are halved, so old values count less. Not thread safe. */
#ifndef KOPS_UTIL_HISTOGRAM_H
#define KOPS_UTIL_HISTOGRAM_H

#include <stdint.h>

enum { HISTOGRAM_SUB_BITS = 3, HISTOGRAM_BUCKETS = 40 << HISTOGRAM_SUB_BITS };

struct histogram {
    uint64_t count;
    double sum_us, min_us, max_us; /* over all values ever added */
    uint32_t buckets[HISTOGRAM_BUCKETS];
};

void histogram_add(struct histogram *h, double us);

/* Makes earlier values count less in percentiles: half as much, a quarter, … */
void histogram_fade(struct histogram *h, unsigned halvings);

/* Returns a duration's bucket: the first of the two steps of histogram_add(), for a duration that goes into several
 * histograms. The bucket has the duration's power of two and the HISTOGRAM_SUB_BITS bits below the leading one; *ret_ns
 * is the duration. */
static inline unsigned histogram_bucket(double us, uint64_t *ret_ns)
{
    const uint64_t ns = us > 0 ? (uint64_t)(us * 1e3 + 0.5) : 0;
    unsigned exponent, bucket;

    *ret_ns = ns;
    if (ns < 1U << HISTOGRAM_SUB_BITS)
        return (unsigned)ns;
    exponent = 63U - (unsigned)__builtin_clzll(ns);
    bucket = (exponent - HISTOGRAM_SUB_BITS + 1) << HISTOGRAM_SUB_BITS;
    bucket += (unsigned)(ns >> (exponent - HISTOGRAM_SUB_BITS)) & ((1U << HISTOGRAM_SUB_BITS) - 1);
    return bucket < HISTOGRAM_BUCKETS ? bucket : HISTOGRAM_BUCKETS - 1;
}

static inline void histogram_add_in(struct histogram *h, double us, unsigned bucket)
{
    if (h->count == 0 || us < h->min_us)
        h->min_us = us;
    if (h->count == 0 || us > h->max_us)
        h->max_us = us;
    h->count++;
    h->sum_us += us;
    if (__builtin_expect(++h->buckets[bucket] == UINT32_MAX, 0))
        histogram_fade(h, 1);
}

/* The values below which the fractions `ps` (0 to 1, ascending) lie, µs; 0 when empty. Exact at the ends. */
void histogram_percentiles(const struct histogram *h, unsigned n, const double *ps, double *ret_us);

#endif
