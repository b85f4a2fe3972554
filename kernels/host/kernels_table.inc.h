/* The table of one instruction set; included last by kernels_<set>.c. */
#define FLOATS_OF(op) [DTYPE_F32] = op##_f32, [DTYPE_F64] = op##_f64, [DTYPE_F16] = op##_f16, [DTYPE_BF16] = op##_bf16

/* Sums and products of signed integers have the bits of the unsigned ones. */
#define NUMBERS_OF(op)                                                                                                 \
    FLOATS_OF(op), [DTYPE_I8] = op##_u8, [DTYPE_U8] = op##_u8, [DTYPE_I16] = op##_u16, [DTYPE_U16] = op##_u16,         \
                   [DTYPE_I32] = op##_u32, [DTYPE_U32] = op##_u32, [DTYPE_I64] = op##_u64, [DTYPE_U64] = op##_u64

const struct kernels KERNELS = {
    .name = KERNELS_NAME,
    .elementwise =
        {
#define X(WITH, NAME, name, inputs, dtypes) [OP_##NAME] = {dtypes##_OF(name)},
            OP_ARITHMETIC(X, )
#undef X
                [OP_COPY] = {[DTYPE_F32] = copy_32,
                             [DTYPE_F64] = copy_64,
                             [DTYPE_F16] = copy_16,
                             [DTYPE_BF16] = copy_16,
                             [DTYPE_I8] = copy_8,
                             [DTYPE_U8] = copy_8,
                             [DTYPE_I16] = copy_16,
                             [DTYPE_U16] = copy_16,
                             [DTYPE_I32] = copy_32,
                             [DTYPE_U32] = copy_32,
                             [DTYPE_I64] = copy_64,
                             [DTYPE_U64] = copy_64,
                             [DTYPE_BOOL] = copy_8,
                             [DTYPE_F8_E4M3] = copy_8,
                             [DTYPE_F8_E5M2] = copy_8},
        },
    .load = {[DTYPE_F32] = load_f32, [DTYPE_F64] = load_f64, [DTYPE_F16] = load_f16, [DTYPE_BF16] = load_bf16},
    .store = {[DTYPE_F32] = store_f32, [DTYPE_F64] = store_f64, [DTYPE_F16] = store_f16, [DTYPE_BF16] = store_bf16},
    .gemm = {[DTYPE_F32] = {.mr = MICRO_ROWS,
                            .nr = MICRO_VECTORS * LANES_F32,
                            .mr_step = MICRO_STEP,
                            .pair = 1,
                            .run = 1,
                            .micro = MICRO(f32)},
             [DTYPE_F64] = {.mr = MICRO_ROWS,
                            .nr = MICRO_VECTORS * LANES_F64,
                            .mr_step = MICRO_STEP,
                            .pair = 1,
                            .run = 1,
                            .micro = MICRO(f64)}},
};
