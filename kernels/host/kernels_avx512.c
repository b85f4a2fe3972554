/* The inner loops for x86-64-v4: AVX-512 F, BW, CD, DQ, VL. */
#define KERNELS       kernels_avx512
#define KERNELS_NAME  "avx512"
#define VECTOR_BYTES  64
#define MICRO_ROWS    12
#define MICRO_STEP    4
#define MICRO_VECTORS 2
#include "kernels_elementwise.inc.h"
#include "kernels_gemm.inc.h"
#include "kernels_table.inc.h"
