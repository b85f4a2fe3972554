/* The kernels that copy matrices for gemm, on an emulated GPU: random matrices beside plain loops, and the pieces of
 * special numbers. Every array ends at a page that cannot be touched. */
#include <math.h>

#include "emulator.h"
#include "guarded.h"
#include "ops/launch.h"
#include "ops/params.h"
#include "tests/support/unit.h"

enum { ROUNDS = 400, BYTES = 1 << 16, POISON = 0xa5 };

static uint64_t seed = 1;

static uint64_t below(uint64_t n)
{
    seed = seed * 6364136223846793005U + 1442695040888963407U;
    return (seed >> 33) % n;
}

static void run(enum cuda_ops_repack_kind kind, struct cuda_ops_repack *p)
{
    struct cuda_launch launch;
    unsigned grid;

    cuda_ops_launch_repack(kind, p, &launch);
    grid = launch.grid[0];
    assert_int_equal(emulate(EMULATED_SM_80, launch.kernel, grid, launch.block[0], launch.params, launch.params_size),
                     0);
}

/* Numbers of every exponent, or few of them, so that sums of pieces are seen to be exact. */
static float any_float(void)
{
    const uint32_t bits = (uint32_t)(below(1U << 16) << 16 | below(1U << 16));
    float x;

    memcpy(&x, &bits, sizeof(x));
    return isfinite(x) ? x : 1.5f;
}

static float of_bf16(uint16_t piece)
{
    const uint32_t bits = (uint32_t)piece << 16;
    float x;

    memcpy(&x, &bits, sizeof(x));
    return x;
}

/* A random part whose source ends with its memory. */
static struct cuda_ops_repack_part random_part(unsigned char *from, size_t size, bool pieces)
{
    struct cuda_ops_repack_part p = {.rows = 1 + below(12), .columns = 1 + below(40)};
    uint64_t last = 0;

    p.column = below(5) == 0 ? 3 : 1;
    p.row = (p.columns - 1) * p.column + 1 + below(4);
    if (below(6) == 0) { /* transposed */
        p.row = 1;
        p.column = p.rows + below(3);
    }
    p.batch_rank = (uint32_t)below(3);
    for (unsigned d = 0; d < p.batch_rank; d++) {
        p.batch_shape[d] = 1 + below(3);
        p.batch[d] = below(4) ? p.rows * p.row * (d + 1) : 0;
        last += (p.batch_shape[d] - 1) * p.batch[d];
    }
    last += (p.rows - 1) * p.row + (p.columns - 1) * p.column + 1;
    assert_true(last * size <= BYTES);
    p.from = (uint64_t)(uintptr_t)from + BYTES - last * size;
    p.to_rows = p.rows + below(3);
    p.to_columns = p.columns + below(9);
    if (pieces)
        p.to_columns = (p.to_columns + 7) / 8 * 8;
    return p;
}

static uint64_t give_target(struct cuda_ops_repack_part *p, bool aligned, unsigned pieces)
{
    const uint64_t step = aligned ? 8 : 1;
    uint64_t next;

    p->to_column = aligned || below(4) ? 1 : 2;
    p->to_row = (p->to_columns * p->to_column + step - 1) / step * step + step * below(3);
    next = p->to_row * p->to_rows;
    for (unsigned i = 0; i < pieces; i++)
        p->pieces[i] = (pieces - 1 - i) * next;
    next *= pieces ? pieces : 1;
    for (unsigned d = 0; d < p->batch_rank; d++) {
        p->to_batch[d] = next;
        next *= p->batch_shape[d];
    }
    return next;
}

static uint64_t batch_offset(const struct cuda_ops_repack_part *p, uint64_t c, const uint64_t *strides)
{
    uint64_t offset = 0;

    for (unsigned d = 0; d < p->batch_rank; d++) {
        offset += c % p->batch_shape[d] * strides[d];
        c /= p->batch_shape[d];
    }
    return offset;
}

static uint64_t batches_of(const struct cuda_ops_repack_part *p)
{
    uint64_t n = 1;

    for (unsigned d = 0; d < p->batch_rank; d++)
        n *= p->batch_shape[d];
    return n;
}

static void expect_pieces(const struct cuda_ops_repack_part *p, uint64_t to, const float *x, unsigned pieces)
{
    float rest = x ? *x : 0;

    for (unsigned k = 0; k < pieces; k++) {
        const float piece = of_bf16(((const uint16_t *)(uintptr_t)p->to)[to + p->pieces[k]]);

        assert_true(fabsf(rest - piece) <=
                    fabsf(rest) * (fabsf(x ? *x : 0) < 0x1.ffp127f ? 0x1p-8f : 0x1p-7f) + 0x1p-134f);
        rest = (rest - piece) * 128;
    }
    /* Three pieces are the number itself, but for the last bits of the smallest ones. */
    if (pieces == 3)
        assert_true(fabsf(rest) <= 0x1p-126f);
}

/* Compares the target with a loop, and everything else in it with what it was. */
static void expect_part(const struct cuda_ops_repack_part *p, size_t size, unsigned pieces, unsigned char *target,
                        uint64_t bytes)
{
    for (uint64_t c = 0; c < batches_of(p); c++)
        for (uint64_t i = 0; i < p->to_rows; i++)
            for (uint64_t j = 0; j < p->to_columns; j++) {
                const uint64_t from = batch_offset(p, c, p->batch) + i * p->row + j * p->column;
                const uint64_t to = batch_offset(p, c, p->to_batch) + i * p->to_row + j * p->to_column;
                const bool inside = i < p->rows && j < p->columns;
                const unsigned char *source = (const unsigned char *)(uintptr_t)p->from + from * size;
                const unsigned char zero[8] = {0};
                unsigned char *got = (unsigned char *)(uintptr_t)p->to + to * size;

                if (pieces) {
                    expect_pieces(p, to, inside ? (const float *)(const void *)source : NULL, pieces);
                    for (unsigned k = 0; k < pieces; k++)
                        memset((uint16_t *)(uintptr_t)p->to + to + p->pieces[k], POISON, 2);
                } else {
                    assert_memory_equal(got, inside ? source : zero, size);
                    memset(got, POISON, size);
                }
            }
    for (uint64_t i = 0; i < bytes; i++)
        assert_int_equal(target[i], POISON);
}

static void check(enum cuda_ops_repack_kind kind, size_t size, unsigned pieces)
{
    const size_t to_size = pieces ? 2 : size;
    unsigned char *sources[2];
    struct cuda_ops_repack p;
    unsigned char *targets[2];
    uint64_t bytes[2];
    unsigned n;

    for (unsigned round = 0; round < ROUNDS; round++) {
        memset(&p, 0, sizeof(p));
        n = 1 + (unsigned)below(2);
        for (unsigned i = 0; i < n; i++) {
            const bool aligned = pieces || below(2);

            sources[i] = guarded_new(BYTES);
            for (unsigned k = 0; k < BYTES / 4; k++)
                ((float *)(void *)sources[i])[k] = any_float();
            p.parts[i] = random_part(sources[i], size, pieces > 0);
            bytes[i] = give_target(&p.parts[i], aligned, pieces) * to_size;
            bytes[i] = (bytes[i] + 15) / 16 * 16 + (aligned ? 0 : to_size * below(9));
            targets[i] = guarded_new(bytes[i]);
            memset(targets[i], POISON, bytes[i]);
            p.parts[i].to = (uint64_t)(uintptr_t)targets[i];
        }
        run(kind, &p);
        for (unsigned i = 0; i < n; i++) {
            expect_part(&p.parts[i], size, pieces, targets[i], bytes[i]);
            guarded_free(sources[i], BYTES);
            guarded_free(targets[i], bytes[i]);
        }
    }
}

TEST(copies_keep_every_bit)
{
    check(CUDA_OPS_REPACK_2, 2, 0);
    check(CUDA_OPS_REPACK_4, 4, 0);
    check(CUDA_OPS_REPACK_8, 8, 0);
}

TEST(pieces_add_up)
{
    check(CUDA_OPS_REPACK_BF16X2, 4, 2);
    check(CUDA_OPS_REPACK_BF16X3, 4, 3);
}

TEST(special_numbers_are_in_one_piece)
{
    static const float numbers[8] = {INFINITY, -INFINITY, NAN, 0x1.fffffep127f, -0x1.fffffep127f, 0x1p-149f, -0.0f, 0};
    _Alignas(16) float from[8];
    _Alignas(16) uint16_t to[24];
    struct cuda_ops_repack p = {.parts[0] = {.from = (uint64_t)(uintptr_t)from,
                                             .to = (uint64_t)(uintptr_t)to,
                                             .rows = 1,
                                             .columns = 8,
                                             .row = 8,
                                             .column = 1,
                                             .to_rows = 1,
                                             .to_columns = 8,
                                             .to_row = 8,
                                             .to_column = 1,
                                             .pieces = {0, 8, 16}}};

    memcpy(from, numbers, sizeof(from));
    run(CUDA_OPS_REPACK_BF16X3, &p);
    for (unsigned i = 0; i < 3; i++) {
        assert_int_equal(to[i] & 0x7fff, 0);
        assert_int_equal(to[8 + i] & 0x7fff, 0);
    }
    assert_true(isinf(of_bf16(to[16])) && of_bf16(to[16]) > 0);
    assert_true(isinf(of_bf16(to[17])) && of_bf16(to[17]) < 0);
    assert_true(isnan(of_bf16(to[18])));
    for (unsigned i = 3; i < 5; i++) { /* the largest numbers: nothing overflows, nothing is lost */
        const double sum =
            (double)of_bf16(to[i]) + (double)of_bf16(to[8 + i]) / 128 + (double)of_bf16(to[16 + i]) / 16384;

        assert_true(sum == (double)numbers[i]);
    }
    assert_true(fabs((double)of_bf16(to[21]) / 16384 - 0x1p-149) < 0x1p-146); /* what is lost of the smallest number */
}
