/* The kernels that copy matrices for gemm, on an emulated GPU: random matrices beside the stand-in driver's kernels.
 * Every array ends at a page that cannot be touched. */
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

/* Numbers of every exponent, the largest ones and infinities. NaN has other bits on a GPU. */
static float any_float(void)
{
    const uint32_t bits = (uint32_t)(below(1U << 16) << 16 | below(1U << 16));
    float x;

    memcpy(&x, &bits, sizeof(x));
    return isnan(x) ? INFINITY : below(16) ? x : below(2) ? -INFINITY : 0x1.fffffep127f;
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

/* The stand-in driver's, whose header has core's names. */
void repack_run(unsigned size, unsigned pieces, const struct cuda_ops_repack *p);

/* Beside the stand-in's plain loops: they write the same bytes, and leave the same alone. */
static void check(enum cuda_ops_repack_kind kind, size_t size, unsigned pieces)
{
    const size_t to_size = pieces ? 2 : size;

    for (unsigned round = 0; round < ROUNDS; round++) {
        struct cuda_ops_repack p = {.first_blocks = 0};
        unsigned char *sources[2], *targets[2], *got[2];
        const unsigned n = 1 + (unsigned)below(2);
        uint64_t bytes[2];

        for (unsigned i = 0; i < n; i++) {
            const bool aligned = pieces || below(2);

            sources[i] = guarded_new(BYTES);
            for (unsigned k = 0; k < BYTES / 4; k++)
                ((float *)(void *)sources[i])[k] = any_float();
            p.parts[i] = random_part(sources[i], size, pieces > 0);
            bytes[i] = give_target(&p.parts[i], aligned, pieces) * to_size;
            bytes[i] = (bytes[i] + 15) / 16 * 16 + (aligned ? 0 : to_size * below(9));
            targets[i] = guarded_new(bytes[i]);
            got[i] = malloc(bytes[i]);
            memset(targets[i], POISON, bytes[i]);
            p.parts[i].to = (uint64_t)(uintptr_t)targets[i];
        }
        run(kind, &p);
        for (unsigned i = 0; i < n; i++) {
            memcpy(got[i], targets[i], bytes[i]);
            memset(targets[i], POISON, bytes[i]);
        }
        repack_run((unsigned)size, pieces, &p);
        for (unsigned i = 0; i < n; i++) {
            assert_memory_equal(got[i], targets[i], bytes[i]);
            free(got[i]);
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
