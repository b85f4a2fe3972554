/* The table of one instruction set; included last by kernels_<set>.c. */
const struct kernels KERNELS = {
    .name = KERNELS_NAME,
    .elementwise =
        {
            [OP_ADD] = {[DTYPE_F32] = add_f32, [DTYPE_F64] = add_f64, [DTYPE_F16] = add_f16, [DTYPE_BF16] = add_bf16},
            [OP_SQUARE] = {[DTYPE_F32] = square_f32,
                           [DTYPE_F64] = square_f64,
                           [DTYPE_F16] = square_f16,
                           [DTYPE_BF16] = square_bf16},
        },
    .load = {[DTYPE_F32] = load_f32, [DTYPE_F64] = load_f64, [DTYPE_F16] = load_f16, [DTYPE_BF16] = load_bf16},
    .store = {[DTYPE_F32] = store_f32, [DTYPE_F64] = store_f64, [DTYPE_F16] = store_f16, [DTYPE_BF16] = store_bf16},
    .gemm = {[DTYPE_F32] = {MICRO_ROWS, MICRO_VECTORS *LANES_F32, micro_f32},
             [DTYPE_F64] = {MICRO_ROWS, MICRO_VECTORS *LANES_F64, micro_f64}},
};
