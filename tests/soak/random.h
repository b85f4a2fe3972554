/* Random numbers from a seed, the same everywhere. */
#ifndef SOAK_RANDOM_H
#define SOAK_RANDOM_H

#include <stdbool.h>
#include <stdint.h>

struct random {
    uint64_t state;
};

static inline uint64_t random_bits(struct random *r)
{
    uint64_t z = r->state += UINT64_C(0x9e3779b97f4a7c15);

    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return z ^ z >> 31;
}

/* 0 to n - 1 */
static inline unsigned random_below(struct random *r, unsigned n)
{
    return (unsigned)((random_bits(r) >> 32) * n >> 32);
}

static inline unsigned random_between(struct random *r, unsigned low, unsigned high)
{
    return low + random_below(r, high - low + 1);
}

static inline bool random_chance(struct random *r, unsigned percent)
{
    return random_below(r, 100) < percent;
}

#endif
