#include "kernels.h"

#include <pthread.h>
#include <string.h>

#include "convert.h"

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

const struct kernels *kernels_named(const char *name)
{
    for (int isa = CPU_ISAS - 1; isa >= CPU_GENERIC; isa--) {
        const struct kernels *kernels = kernels_get((enum cpu_isa)isa);

        if (kernels && !strcmp(kernels->name, name))
            return kernels;
    }
    return NULL;
}

const struct kernels *kernels_best(void)
{
    for (int isa = CPU_ISAS - 1; isa > CPU_GENERIC; isa--)
        if (kernels_get((enum cpu_isa)isa))
            return kernels_get((enum cpu_isa)isa);
    return &kernels_generic;
}

/* ---- f8 ---- */

static float e4m3[256], e5m2[256];

static void make_tables(void)
{
    for (unsigned b = 0; b < 256; b++) {
        e4m3[b] = e4m3_to_f32((uint8_t)b);
        e5m2[b] = e5m2_to_f32((uint8_t)b);
    }
}

static void load(const float table[256], float *into, const uint8_t *from, size_t rows, size_t columns, ptrdiff_t row,
                 ptrdiff_t column)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;

    pthread_once(&once, make_tables);
    for (size_t r = 0; r < rows; r++)
        for (size_t c = 0; c < columns; c++)
            into[r * columns + c] = table[from[(ptrdiff_t)r * row + (ptrdiff_t)c * column]];
}

void kernels_load_e4m3(void *into, const void *from, size_t rows, size_t columns, ptrdiff_t row, ptrdiff_t column)
{
    load(e4m3, into, from, rows, columns, row, column);
}

void kernels_load_e5m2(void *into, const void *from, size_t rows, size_t columns, ptrdiff_t row, ptrdiff_t column)
{
    load(e5m2, into, from, rows, columns, row, column);
}
