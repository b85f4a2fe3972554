/* gemm's inner loops for bf16 on processors with AVX512_BF16: a unit is a pair of bf16 that follow each other along k,
 * and one instruction adds the products of sixteen pairs to as many f32 sums. Subnormal numbers count as zero. */
#define VECTOR_BYTES  64
#define MICRO_ROWS    12
#define MICRO_STEP    4
#define MICRO_VECTORS 2
#include "kernels_pairs.inc.h"

/* A register that no -Wpsabi or name of a bf16 type stands between. */
INLINE __m512bh as_pairs(__m512i x)
{
    return (__m512bh)x;
}

INLINE uint32_t get_pair(const unsigned char *p)
{
    uint32_t x;

    memcpy(&x, p, sizeof(x));
    return x;
}

INLINE __m512i get_pairs(const void *p)
{
    return _mm512_loadu_si512(p);
}

INLINE __m512 multiply_pairs(__m512 acc, uint32_t a, __m512i b)
{
    return _mm512_dpbf16_ps(acc, as_pairs(_mm512_set1_epi32((int)a)), as_pairs(b));
}

DEFINE_MICRO(bf16, float, __m512, uint32_t, __m512i, get_pair, get_pairs, multiply_pairs)

const struct kernels_gemm kernels_gemm_avx512bf16 = {.mr = MICRO_ROWS,
                                                     .nr = MICRO_VECTORS * LANES,
                                                     .mr_step = MICRO_STEP,
                                                     .pair = 2,
                                                     .run = 1,
                                                     .load = load_pairs,
                                                     .micro = MICRO(bf16)};
