/* Index arithmetic beyond 2^31 elements: squares of f16, each compared on the CPU. */
#include <stdio.h>
#include <stdlib.h>

#include "core/op.h"
#include "timing.h"
#include "values.h"

enum { PIECE = 64 << 20, PATTERN_COUNT = 97 };

/* Element i is pattern[i mod PATTERN_COUNT]: neighbours and elements 2^31 or 2^32 apart differ. */
static void set_patterns(uint16_t *pattern, uint16_t *squares)
{
    for (unsigned i = 0; i < PATTERN_COUNT; i++) {
        const double x = 0.25 + i * 0.125;

        value_set(DTYPE_F16, (unsigned char *)pattern, i, x);
        value_set(DTYPE_F16, (unsigned char *)squares, i, x * x);
    }
}

static int write_input(const struct lab_machine *m, uint64_t address, uint64_t count, const uint16_t *pattern,
                       uint16_t *piece)
{
    for (uint64_t done = 0; done < count; done += PIECE) {
        const uint64_t n = count - done < PIECE ? count - done : PIECE;

        for (uint64_t i = 0; i < n; i++)
            piece[i] = pattern[(done + i) % PATTERN_COUNT];
        if (m->write(m->context, address + done * 2, piece, n * 2) < 0)
            return -1;
    }
    return 0;
}

static int compare_output(const struct lab_machine *m, uint64_t address, uint64_t count, const uint16_t *squares,
                          uint16_t *piece, const char *kernel)
{
    for (uint64_t done = 0; done < count; done += PIECE) {
        const uint64_t n = count - done < PIECE ? count - done : PIECE;

        if (m->read(m->context, piece, address + done * 2, n * 2) < 0)
            return -1;
        for (uint64_t i = 0; i < n; i++) {
            if (piece[i] != squares[(done + i) % PATTERN_COUNT]) {
                fprintf(stderr, "%s: element %llu is wrong\n", kernel, (unsigned long long)(done + i));
                return -1;
            }
        }
    }
    return 0;
}

int check_large(struct lab_gpu *gpu)
{
    static const char *const variants[] = {"vector", "strided"};
    const struct lab_machine *m = lab_gpu_machine(gpu);
    const uint64_t count = ((uint64_t)1 << 31) + 12345, bytes = count * 2;
    const struct plan plan = {
        .kind = PLAN_ELEMENTWISE,
        .dtype = DTYPE_F16,
        .elementwise = {.rank = 1, .shape = {(int64_t)count}, .strides = {{1}, {1}}, .count = count}};
    uint16_t pattern[PATTERN_COUNT], squares[PATTERN_COUNT], *piece = malloc((size_t)PIECE * 2);
    const uint64_t in = m->alloc(m->context, bytes), out = m->alloc(m->context, bytes), addresses[] = {in, out};
    int result = -1;

    set_patterns(pattern, squares);
    if (!piece || !in || !out || write_input(m, in, count, pattern, piece) < 0)
        goto free_all;
    for (unsigned v = 0; v < 2; v++) {
        struct cuda_launch launch;
        struct error e;

        if (lab_gpu_fill(gpu, out, 0xffff, count) < 0 ||
            cuda_ops_launch(OP_SQUARE, &plan, addresses, variants[v], &m->device, &launch, &e) < 0 ||
            m->launch(m->context, &launch) < 0 || compare_output(m, out, count, squares, piece, launch.kernel) < 0)
            goto free_all;
    }
    result = 0;
free_all:
    m->free(m->context, in, bytes);
    m->free(m->context, out, bytes);
    free(piece);
    return result;
}
