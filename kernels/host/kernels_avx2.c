/* The inner loops for x86-64-v3: AVX2, FMA, F16C. */
#define KERNELS       kernels_avx2
#define KERNELS_NAME  "avx2"
#define VECTOR_BYTES  32
#define MICRO_ROWS    6
#define MICRO_STEP    2
#define MICRO_VECTORS 2
#include "kernels_elementwise.inc.h"
#include "kernels_gemm.inc.h"
#include "kernels_table.inc.h"
