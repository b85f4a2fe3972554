/* The inner loops for the instruction set of every processor of the target. */
#define KERNELS       kernels_generic
#define KERNELS_NAME  "generic"
#define VECTOR_BYTES  16
#define MICRO_ROWS    4
#define MICRO_STEP    2 /* the second and third heights are one */
#define MICRO_VECTORS 2
#include "kernels_elementwise.inc.h"
#include "kernels_gemm.inc.h"
#include "kernels_table.inc.h"
