/* f16 and bf16 against f64 arithmetic: every pattern decoded, every rounding boundary encoded, by every build of
 * the kernels and by the scalar definition. */
#include <math.h>

#include "convert.h"
#include "kernels.h"
#include "support.h"

enum { PATTERNS = 1 << 16 };

static bool same(float a, double b)
{
    return isnan(a) ? isnan(b) : (double)a == b && !signbit(a) == !signbit(b);
}

TEST(test_decode)
{
    uint16_t *patterns = malloc(PATTERNS * sizeof(*patterns));
    float *got = malloc(PATTERNS * sizeof(*got));

    for (unsigned i = 0; i < PATTERNS; i++)
        patterns[i] = (uint16_t)i;
    for (unsigned way = 0; way < 2 * (2 * CPU_ISAS + 1); way++) {
        const enum dtype dtype = way % 2 ? DTYPE_BF16 : DTYPE_F16;
        const struct kernels *kernels = way < 4 * CPU_ISAS ? kernels_get((enum cpu_isa)(way / 4)) : NULL;

        if (!kernels && way < 4 * CPU_ISAS)
            continue;
        memset(got, 0, PATTERNS * sizeof(*got));
        if (!kernels)
            for (unsigned i = 0; i < PATTERNS; i++)
                got[i] = way % 2 ? bf16_to_f32((uint16_t)i) : f16_to_f32((uint16_t)i);
        else if (way & 2)
            kernels->load[dtype](got, patterns, 1, PATTERNS, 0, 1);
        else
            kernels->load[dtype](got, patterns, PATTERNS, 1, 1, PATTERNS); /* one at a time */
        for (unsigned i = 0; i < PATTERNS; i++)
            if (!same(got[i], decode(dtype, &patterns[i])))
                fail_msg("%s 0x%04x became %g, not %g", dtype_name(dtype), i, (double)got[i],
                         decode(dtype, &patterns[i]));
    }
    free(patterns);
    free(got);
}

static float next(float x, int steps)
{
    return bits_float(float_bits(x) + (uint32_t)steps);
}

/* Every value of the type, the midpoints between neighbours and what lies next to both, and random bits. */
static size_t make_inputs(enum dtype dtype, float *into)
{
    size_t n = 0;

    for (unsigned i = 0; i < PATTERNS; i++) {
        uint16_t pattern = (uint16_t)i, after = (uint16_t)(i + 1);
        double here = decode(dtype, &pattern), there = decode(dtype, &after);
        float middle;

        if (isnan(here)) {
            into[n++] = (float)here;
            continue;
        }
        if (isinf(there)) /* overflow begins half a unit above the largest */
            there = here + (here - decode(dtype, &(uint16_t){(uint16_t)(i - 1)}));
        middle = (float)((here + there) / 2);
        into[n++] = (float)here;
        if (isfinite(here) && isfinite(there) && (i & 0x7fff) != 0x7fff) {
            into[n++] = middle;
            into[n++] = next(middle, 1);
            into[n++] = middle == 0 ? middle : next(middle, -1);
        }
    }
    for (unsigned i = 0; i < 200000; i++)
        into[n++] = bits_float((uint32_t)random_bits());
    return n;
}

TEST(test_encode)
{
    float *inputs = malloc((4 * PATTERNS + 200000) * sizeof(*inputs));
    uint16_t *got = malloc((4 * PATTERNS + 200000) * sizeof(*got)), want;

    for (unsigned way = 0; way < 2 * (CPU_ISAS + 1); way++) {
        const enum dtype dtype = way % 2 ? DTYPE_BF16 : DTYPE_F16;
        const struct kernels *kernels = way < 2 * CPU_ISAS ? kernels_get((enum cpu_isa)(way / 2)) : NULL;
        const size_t n = make_inputs(dtype, inputs);

        if (!kernels && way < 2 * CPU_ISAS)
            continue;
        memset(got, 0x55, n * sizeof(*got));
        if (kernels)
            kernels->store[dtype](got, (ptrdiff_t)n, 1, inputs, 1, n, 1, 0);
        for (size_t i = 0; i < n; i++) {
            if (!kernels)
                got[i] = way % 2 ? f32_to_bf16(inputs[i]) : f32_to_f16(inputs[i]);
            encode(dtype, (double)inputs[i], &want);
            if (isnan(inputs[i]) ? !isnan(decode(dtype, &got[i])) : got[i] != want)
                fail_msg("%a became %s 0x%04x, not 0x%04x", (double)inputs[i], dtype_name(dtype), got[i], want);
        }
    }
    free(inputs);
    free(got);
}
