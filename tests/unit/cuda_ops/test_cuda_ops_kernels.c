/* Random requests on the emulated kernels: results, and that nothing outside of the tensors is touched. */
#include <math.h>

#include "emulator.h"
#include "guarded.h"
#include "lab/cases.h"
#include "ops/params_scaled.h"
#include "ops/plan_launch.h"
#include "tests/support/unit.h"

enum { WARP = 32 };

static const enum dtype dtypes[] = {DTYPE_F32, DTYPE_F64, DTYPE_F16, DTYPE_BF16, DTYPE_I8,  DTYPE_U8,
                                    DTYPE_I16, DTYPE_U16, DTYPE_I32, DTYPE_U32,  DTYPE_I64, DTYPE_U64};

/* As close to the end of its memory as its alignment allows. */
static size_t rounded(size_t size)
{
    return (size + 15) / 16 * 16;
}

static uint64_t machine_alloc(void *context, size_t size)
{
    return (uint64_t)(uintptr_t)guarded_new(rounded(size));
}

static void machine_free(void *context, uint64_t address, size_t size)
{
    guarded_free((unsigned char *)(uintptr_t)address, rounded(size));
}

static int machine_write(void *context, uint64_t to, const void *from, size_t size)
{
    memcpy((void *)(uintptr_t)to, from, size);
    return 0;
}

static int machine_read(void *context, void *to, uint64_t from, size_t size)
{
    memcpy(to, (const void *)(uintptr_t)from, size);
    return 0;
}

/* Every kernel also writes its times, whatever number of its blocks count. */
static int machine_launch(void *context, const struct cuda_launch *launch)
{
    static unsigned launches;
    const unsigned grid = launch->grid[0];
    uint64_t times[2] = {0, 0};
    uint32_t count = 0;
    struct cuda_launch stamped = *launch;
    const struct cuda_ops_stamps stamps = {.times = (uint64_t)(uintptr_t)times,
                                           .count = (uint64_t)(uintptr_t)&count,
                                           .counting = launches++ % 2 ? 1 + launches % grid : grid};
    int r;

    memcpy(stamped.params, &stamps, sizeof(stamps));
    r = emulate(*(const enum emulated_arch *)context, launch->kernel, grid, launch->block[0], stamped.params,
                launch->params_size);
    assert_int_equal(r, 0);
    assert_int_equal(count, 0);
    assert_true(times[0] > 0 && times[1] > times[0]);
    return r;
}

static struct lab_machine machine_of(enum emulated_arch *arch)
{
    return (struct lab_machine){
        .device = {.multiprocessors = 2, .level = *arch == EMULATED_SM_80 ? CUDA_OPS_SM80 : CUDA_OPS_ANY},
        .context = arch,
        .alloc = machine_alloc,
        .free = machine_free,
        .write = machine_write,
        .read = machine_read,
        .launch = machine_launch,
    };
}

/* Its operands are nowhere. */
TEST(a_launch_of_nothing_touches_no_memory)
{
    struct cuda_launch launch;

    cuda_ops_nothing(&launch);
    for (unsigned arch = 0; arch < EMULATED_ARCHS; arch++)
        assert_int_equal(emulate((enum emulated_arch)arch, launch.kernel, launch.grid[0], launch.block[0],
                                 launch.params, launch.params_size),
                         0);
}

/* The clock of emulated kernels ticks whenever it is read, and a block has whole warps. */
TEST(a_gate_opens_by_the_hosts_word_or_by_itself)
{
    const uint64_t given = 7;
    uint64_t took[2];

    for (unsigned i = 0; i < 2; i++) {
        uint64_t times[2] = {0, 0};
        uint32_t count = 0;
        const struct cuda_ops_gate gate = {
            .stamps = {.times = (uint64_t)(uintptr_t)times, .count = (uint64_t)(uintptr_t)&count, .counting = 1},
            .go = (uint64_t)(uintptr_t)&given,
            .value = given + i,
            .most_ns = 1000};

        assert_int_equal(emulate(EMULATED_SM_80, "kops_gate", 1, WARP, &gate, sizeof(gate)), 0);
        took[i] = times[1] - times[0];
    }
    assert_in_range(took[0], 1, 999);
    assert_in_range(took[1], 1000, WARP * 2000);
}

/* The i-th piece of a move, whose `bytes` begin `shift` behind a 16-byte boundary, and at the end of accessible memory.
 */
struct piece {
    uint64_t bytes, shift;
    uint64_t from, to;
};

static uint64_t at_end(const struct lab_machine *m, const struct piece *piece, bool poisoned)
{
    const size_t size = rounded(piece->shift + piece->bytes);
    const uint64_t at = m->alloc(m->context, size);

    for (size_t i = 0; i < size; i++)
        ((unsigned char *)(uintptr_t)at)[i] = poisoned ? 0xa5 : (unsigned char)(i * 31 + piece->bytes);
    return at;
}

static void check_piece(const struct lab_machine *m, const struct piece *piece)
{
    const size_t size = rounded(piece->shift + piece->bytes);

    for (uint64_t i = 0; i < size; i++) {
        const unsigned char *to = (const unsigned char *)(uintptr_t)piece->to;

        if (i >= piece->shift && i < piece->shift + piece->bytes)
            assert_int_equal(to[i], ((const unsigned char *)(uintptr_t)piece->from)[i]);
        else
            assert_int_equal(to[i], 0xa5);
    }
    m->free(m->context, piece->from, size);
    m->free(m->context, piece->to, size);
}

TEST(pieces_of_memory_are_moved)
{
    static const uint64_t shifts[] = {0, 1, 2, 4, 8, 0};
    enum emulated_arch arch = EMULATED_SM_80;
    const struct lab_machine m = machine_of(&arch);
    struct lab_random r = {21};

    for (unsigned n = 1; n <= CUDA_OPS_MOVE_PIECES; n++) {
        struct piece pieces[CUDA_OPS_MOVE_PIECES];
        struct cuda_ops_range ranges[CUDA_OPS_MOVE_PIECES];
        struct cuda_launch launch;

        for (unsigned i = 0; i < n; i++) {
            struct piece *p = &pieces[i];

            *p = (struct piece){.bytes = 1 + lab_random(&r) % 9000, .shift = shifts[lab_random(&r) % 6]};
            if (i % 2)
                p->bytes = (p->bytes + 15) / 16 * 16;
            p->from = at_end(&m, p, false);
            p->to = at_end(&m, p, true);
            ranges[i] = (struct cuda_ops_range){p->from + p->shift, p->to + p->shift, p->bytes};
        }
        cuda_ops_move(ranges, n, &launch);
        for (unsigned blocks = 1; blocks <= 2; blocks++) { /* too few loop */
            launch.grid[0] = blocks == 1 ? launch.grid[0] : 2;
            assert_int_equal(m.launch(m.context, &launch), 0);
        }
        for (unsigned i = 0; i < n; i++)
            check_piece(&m, &pieces[i]);
    }
}

TEST(elementwise_equals_the_reference)
{
    static const struct {
        enum op_id op;
        uint64_t seed;
    } ops[] = {{OP_ADD, 1}, {OP_SQUARE, 2}, {OP_ADD_SQUARE, 10}, {OP_SUB_SQUARE, 11}, {OP_COPY, 9}};
    enum emulated_arch arch = EMULATED_SM_80;
    const struct lab_machine m = machine_of(&arch);

    for (unsigned o = 0; o < sizeof(ops) / sizeof(ops[0]); o++) {
        struct lab_random r = {ops[o].seed};

        for (unsigned i = 0; i < 60; i++)
            for (unsigned d = 0; d < sizeof(dtypes) / sizeof(dtypes[0]); d++) {
                struct lab_case c;

                case_elementwise(&c, &r, ops[o].op, dtypes[d], i % 8 ? 40 : 150);
                if (case_check_elementwise(&c, &m) <= 0)
                    fail_msg("%s", c.text);
                case_free(&c);
            }
    }
}

TEST(copies_move_bits_unchanged)
{
    enum emulated_arch arch = EMULATED_SM_80;
    const struct lab_machine m = machine_of(&arch);
    struct lab_random r = {3};

    for (unsigned i = 0; i < 40; i++) {
        char text[CASE_TEXT_MAX];

        if (case_check_copy(&r, &m, dtypes[i % 3], 60, text) < 0)
            fail_msg("%s", text);
    }
}

TEST(gemm_meets_the_tolerance)
{
    static const struct {
        enum dtype dtype;
        enum emulated_arch arch;
        uint64_t seed;
        unsigned cases;
    } rows[] = {{DTYPE_F32, EMULATED_SM_80, 4, 60},      {DTYPE_F64, EMULATED_SM_80, 5, 60},
                {DTYPE_F16, EMULATED_SM_80, 6, 40},      {DTYPE_F8_E4M3, EMULATED_SM_80, 12, 40},
                {DTYPE_F8_E5M2, EMULATED_SM_80, 13, 40}, {DTYPE_BF16, EMULATED_SM_80, 7, 20},
                {DTYPE_BF16, EMULATED_SM_75, 8, 60}}; /* without tensor cores */

    for (unsigned row = 0; row < sizeof(rows) / sizeof(rows[0]); row++) {
        enum emulated_arch arch = rows[row].arch;
        const struct lab_machine m = machine_of(&arch);
        struct lab_random r = {rows[row].seed};

        for (unsigned i = 0; i < rows[row].cases; i++) {
            struct lab_case c;

            case_gemm(&c, &r, rows[row].dtype, i % 8 ? 40 : 140);
            if (case_check_gemm(&c, &m) <= 0)
                fail_msg("%s", c.text);
            case_free(&c);
        }
    }
}

/* The value of a byte by the definition of its dtype. */
static double value_of(unsigned byte, bool e4m3)
{
    const unsigned mantissa = e4m3 ? 3 : 2, bias = e4m3 ? 7 : 15, fraction = byte & ((1U << mantissa) - 1);
    const unsigned exponent = (byte & 0x7f) >> mantissa;
    const double sign = byte & 0x80 ? -1 : 1;

    if (e4m3 ? (byte & 0x7f) == 0x7f : exponent == 31)
        return e4m3 || fraction ? (double)NAN : sign * (double)INFINITY;
    return sign * ldexp(exponent ? fraction + (1U << mantissa) : fraction,
                        (int)(exponent ? exponent : 1) - (int)bias - (int)mantissa);
}

/* A column of all bytes times one, read byte by byte (k = 1) and in pieces of 16. */
TEST(every_byte_has_its_value)
{
    static unsigned char a[256][16], b[2][16]; /* b: one, of both dtypes, and zeros */
    static float out[256];
    const float one = 1;
    const struct cuda_ops_device device = {.multiprocessors = 2, .level = CUDA_OPS_SM80};

    b[0][0] = 0x38;
    b[1][0] = 0x3c;
    for (unsigned i = 0; i < 256; i++)
        a[i][0] = (unsigned char)i;
    for (unsigned way = 0; way < 8; way++) {
        const enum dtype of_a = way & 1 ? DTYPE_F8_E5M2 : DTYPE_F8_E4M3, of_b = way & 2 ? DTYPE_F8_E5M2 : DTYPE_F8_E4M3;
        const bool wide = way & 4;
        struct plan plan = {.kind = PLAN_GEMM, .dtype = of_a, .out_dtype = DTYPE_F32};
        const uint64_t addresses[] = {(uint64_t)(uintptr_t)a, (uint64_t)(uintptr_t)b[way >> 1 & 1],
                                      (uint64_t)(uintptr_t)&one, (uint64_t)(uintptr_t)&one, (uint64_t)(uintptr_t)out};
        struct cuda_launch launch;

        plan.gemm = (struct plan_gemm){.m = 256,
                                       .n = 1,
                                       .k = wide ? 16 : 1,
                                       .batch_count = 1,
                                       .a = {.row = 16, .column = 1},
                                       .b = {.row = 1, .column = 17},
                                       .out = {.row = 1, .column = 256},
                                       .alpha = 1,
                                       .has_scales = true,
                                       .b_dtype = of_b};
        memset(out, 0x55, sizeof(out));
        MUST(cuda_ops_launch(OP_SCALED_GEMM, &plan, addresses, NULL, &device, &launch, &e));
        if (!wide) { /* also where pieces could be read */
            struct cuda_ops_gemm_scaled p;

            memcpy(&p, launch.params, sizeof(p));
            cuda_ops_set_scaled(&launch, &p, &cuda_ops_scaled_configs()[1], false);
        }
        assert_int_equal(strstr(launch.kernel, "_any") == NULL, wide);
        assert_int_equal(
            emulate(EMULATED_SM_80, launch.kernel, launch.grid[0], launch.block[0], launch.params, launch.params_size),
            0);
        for (unsigned i = 0; i < 256; i++) {
            const double want = value_of(i, of_a == DTYPE_F8_E4M3);

            assert_true(isnan(want) ? isnan(out[i]) : (double)out[i] == want);
        }
    }
}
