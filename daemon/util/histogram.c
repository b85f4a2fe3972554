#include "util/histogram.h"

/* The middle of a bucket, in µs. */
static double bucket_value(unsigned bucket)
{
    unsigned exponent = bucket >> HISTOGRAM_SUB_BITS, sub = bucket & ((1U << HISTOGRAM_SUB_BITS) - 1);
    double width;

    if (exponent == 0)
        return sub * 1e-3;
    width = (double)(UINT64_C(1) << (exponent - 1));
    return ((double)((1U << HISTOGRAM_SUB_BITS) + sub) + 0.5) * width * 1e-3;
}

void histogram_add(struct histogram *h, double us)
{
    uint64_t ns;

    histogram_add_in(h, us, histogram_bucket(us, &ns));
}

void histogram_fade(struct histogram *h, unsigned halvings)
{
    for (unsigned i = 0; i < HISTOGRAM_BUCKETS; i++)
        h->buckets[i] = halvings < 32 ? h->buckets[i] >> halvings : 0;
}

void histogram_percentiles(const struct histogram *h, unsigned n, const double *ps, double *ret_us)
{
    uint64_t total = 0, seen = 0;
    unsigned done = 0;

    for (unsigned i = 0; i < HISTOGRAM_BUCKETS; i++)
        total += h->buckets[i]; /* not `count`: it may have faded */
    for (unsigned i = 0; total && done < n && i < HISTOGRAM_BUCKETS; i++) {
        double value = bucket_value(i);

        seen += h->buckets[i];
        while (h->buckets[i] && done < n && (double)seen >= ps[done] * (double)total)
            ret_us[done++] = value < h->min_us ? h->min_us : value > h->max_us ? h->max_us : value;
    }
    while (done < n)
        ret_us[done++] = h->count ? h->max_us : 0;
}
