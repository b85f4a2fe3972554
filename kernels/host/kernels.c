#include "kernels.h"

const struct kernels *kernels_get(enum cpu_isa isa)
{
    if (!cpu_has(isa))
        return NULL;
    switch (isa) {
#ifdef __x86_64__
    case CPU_AVX512:
        return &kernels_avx512;
    case CPU_AVX2:
        return &kernels_avx2;
#endif
    case CPU_GENERIC:
        return &kernels_generic;
    default:
        return NULL;
    }
}

const struct kernels_gemm *kernels_gemm_bf16(void)
{
#ifdef __x86_64__
    return cpu_has_bf16() ? &kernels_gemm_avx512bf16 : NULL;
#else
    return NULL;
#endif
}

const struct kernels_gemm *kernels_gemm_amx(void)
{
#ifdef __x86_64__
    return cpu_has_amx() ? &kernels_gemm_amxbf16 : NULL;
#else
    return NULL;
#endif
}

const struct kernels *kernels_best(void)
{
    for (int isa = CPU_ISAS - 1; isa > CPU_GENERIC; isa--)
        if (kernels_get((enum cpu_isa)isa))
            return kernels_get((enum cpu_isa)isa);
    return &kernels_generic;
}
