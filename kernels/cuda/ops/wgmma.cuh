/* wgmma.mma_async, "Asynchronous Warpgroup Level Matrix Instructions" in NVIDIA's PTX ISA document: sum += a · b, for
 * 64 × 16 elements of a and 16 × N of b, both in shared memory, by the four warps of a warpgroup. Warp w holds rows 16w
 * to 16w + 15 of the sums. For every 8 columns j, lane l has sum[4j] and sum[4j + 1] in row l / 4 of these, columns 8j
 * + 2(l mod 4) and the next, and sum[4j + 2] and sum[4j + 3] eight rows below. */
#ifndef KOPS_CUDA_OPS_WGMMA_CUH
#define KOPS_CUDA_OPS_WGMMA_CUH

#include <stdint.h>

#include <cuda_bf16.h>
#include <cuda_fp16.h>

/* Lists of registers, which the preprocessor cannot compute. */

#define WGMMA_REGISTERS_64                                                                                             \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, "        \
    "%23, %24, %25, %26, %27, %28, %29, %30, %31"
#define WGMMA_REGISTERS_128                                                                                            \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, "        \
    "%23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, "        \
    "%44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define WGMMA_REGISTERS_256                                                                                            \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, "        \
    "%23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, "        \
    "%44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, %64, "        \
    "%65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, %80, %81, %82, %83, %84, %85, "        \
    "%86, %87, %88, %89, %90, %91, %92, %93, %94, %95, %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, "       \
    "%106, %107, %108, %109, %110, %111, %112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, "     \
    "%124, %125, %126, %127"

#define WGMMA_SUMS_64                                                                                                  \
    "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3]), "+f"(sum[4]), "+f"(sum[5]), "+f"(sum[6]), "+f"(sum[7]),    \
        "+f"(sum[8]), "+f"(sum[9]), "+f"(sum[10]), "+f"(sum[11]), "+f"(sum[12]), "+f"(sum[13]), "+f"(sum[14]),         \
        "+f"(sum[15]), "+f"(sum[16]), "+f"(sum[17]), "+f"(sum[18]), "+f"(sum[19]), "+f"(sum[20]), "+f"(sum[21]),       \
        "+f"(sum[22]), "+f"(sum[23]), "+f"(sum[24]), "+f"(sum[25]), "+f"(sum[26]), "+f"(sum[27]), "+f"(sum[28]),       \
        "+f"(sum[29]), "+f"(sum[30]), "+f"(sum[31])
#define WGMMA_SUMS_128                                                                                                 \
    "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3]), "+f"(sum[4]), "+f"(sum[5]), "+f"(sum[6]), "+f"(sum[7]),    \
        "+f"(sum[8]), "+f"(sum[9]), "+f"(sum[10]), "+f"(sum[11]), "+f"(sum[12]), "+f"(sum[13]), "+f"(sum[14]),         \
        "+f"(sum[15]), "+f"(sum[16]), "+f"(sum[17]), "+f"(sum[18]), "+f"(sum[19]), "+f"(sum[20]), "+f"(sum[21]),       \
        "+f"(sum[22]), "+f"(sum[23]), "+f"(sum[24]), "+f"(sum[25]), "+f"(sum[26]), "+f"(sum[27]), "+f"(sum[28]),       \
        "+f"(sum[29]), "+f"(sum[30]), "+f"(sum[31]), "+f"(sum[32]), "+f"(sum[33]), "+f"(sum[34]), "+f"(sum[35]),       \
        "+f"(sum[36]), "+f"(sum[37]), "+f"(sum[38]), "+f"(sum[39]), "+f"(sum[40]), "+f"(sum[41]), "+f"(sum[42]),       \
        "+f"(sum[43]), "+f"(sum[44]), "+f"(sum[45]), "+f"(sum[46]), "+f"(sum[47]), "+f"(sum[48]), "+f"(sum[49]),       \
        "+f"(sum[50]), "+f"(sum[51]), "+f"(sum[52]), "+f"(sum[53]), "+f"(sum[54]), "+f"(sum[55]), "+f"(sum[56]),       \
        "+f"(sum[57]), "+f"(sum[58]), "+f"(sum[59]), "+f"(sum[60]), "+f"(sum[61]), "+f"(sum[62]), "+f"(sum[63])
#define WGMMA_SUMS_256                                                                                                 \
    "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3]), "+f"(sum[4]), "+f"(sum[5]), "+f"(sum[6]), "+f"(sum[7]),    \
        "+f"(sum[8]), "+f"(sum[9]), "+f"(sum[10]), "+f"(sum[11]), "+f"(sum[12]), "+f"(sum[13]), "+f"(sum[14]),         \
        "+f"(sum[15]), "+f"(sum[16]), "+f"(sum[17]), "+f"(sum[18]), "+f"(sum[19]), "+f"(sum[20]), "+f"(sum[21]),       \
        "+f"(sum[22]), "+f"(sum[23]), "+f"(sum[24]), "+f"(sum[25]), "+f"(sum[26]), "+f"(sum[27]), "+f"(sum[28]),       \
        "+f"(sum[29]), "+f"(sum[30]), "+f"(sum[31]), "+f"(sum[32]), "+f"(sum[33]), "+f"(sum[34]), "+f"(sum[35]),       \
        "+f"(sum[36]), "+f"(sum[37]), "+f"(sum[38]), "+f"(sum[39]), "+f"(sum[40]), "+f"(sum[41]), "+f"(sum[42]),       \
        "+f"(sum[43]), "+f"(sum[44]), "+f"(sum[45]), "+f"(sum[46]), "+f"(sum[47]), "+f"(sum[48]), "+f"(sum[49]),       \
        "+f"(sum[50]), "+f"(sum[51]), "+f"(sum[52]), "+f"(sum[53]), "+f"(sum[54]), "+f"(sum[55]), "+f"(sum[56]),       \
        "+f"(sum[57]), "+f"(sum[58]), "+f"(sum[59]), "+f"(sum[60]), "+f"(sum[61]), "+f"(sum[62]), "+f"(sum[63]),       \
        "+f"(sum[64]), "+f"(sum[65]), "+f"(sum[66]), "+f"(sum[67]), "+f"(sum[68]), "+f"(sum[69]), "+f"(sum[70]),       \
        "+f"(sum[71]), "+f"(sum[72]), "+f"(sum[73]), "+f"(sum[74]), "+f"(sum[75]), "+f"(sum[76]), "+f"(sum[77]),       \
        "+f"(sum[78]), "+f"(sum[79]), "+f"(sum[80]), "+f"(sum[81]), "+f"(sum[82]), "+f"(sum[83]), "+f"(sum[84]),       \
        "+f"(sum[85]), "+f"(sum[86]), "+f"(sum[87]), "+f"(sum[88]), "+f"(sum[89]), "+f"(sum[90]), "+f"(sum[91]),       \
        "+f"(sum[92]), "+f"(sum[93]), "+f"(sum[94]), "+f"(sum[95]), "+f"(sum[96]), "+f"(sum[97]), "+f"(sum[98]),       \
        "+f"(sum[99]), "+f"(sum[100]), "+f"(sum[101]), "+f"(sum[102]), "+f"(sum[103]), "+f"(sum[104]), "+f"(sum[105]), \
        "+f"(sum[106]), "+f"(sum[107]), "+f"(sum[108]), "+f"(sum[109]), "+f"(sum[110]), "+f"(sum[111]),                \
        "+f"(sum[112]), "+f"(sum[113]), "+f"(sum[114]), "+f"(sum[115]), "+f"(sum[116]), "+f"(sum[117]),                \
        "+f"(sum[118]), "+f"(sum[119]), "+f"(sum[120]), "+f"(sum[121]), "+f"(sum[122]), "+f"(sum[123]),                \
        "+f"(sum[124]), "+f"(sum[125]), "+f"(sum[126]), "+f"(sum[127])

/* Operands: the sums, %0 to %(N/2 − 1); a; b; whether to add to the sums; whether a and b lie along their rows. */
#define WGMMA(n, dtype, pa, pb, padd, ta, tb)                                                                          \
    asm volatile("{\n.reg .pred add;\nsetp.ne.b32 add, " padd ", 0;\n"                                                 \
                 "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32." dtype "." dtype " {" WGMMA_REGISTERS_##n            \
                 "}, " pa ", " pb ", add, 1, 1, " ta ", " tb ";\n}\n"                                                  \
                 : WGMMA_SUMS_##n                                                                                      \
                 : "l"(a), "l"(b), "r"(add), "n"(A_ACROSS), "n"(B_ACROSS))

/* a and b are descriptors (hopper.cuh). X_ACROSS: the operand does not lie along k. `add` 0 starts from 0. */
#define WGMMA_FUNCTIONS(T, dtype)                                                                                      \
    template <int A_ACROSS, int B_ACROSS>                                                                              \
    __device__ __forceinline__ void wgmma(float(&sum)[32], uint64_t a, uint64_t b, int add, T)                         \
    {                                                                                                                  \
        WGMMA(64, dtype, "%32", "%33", "%34", "%35", "%36");                                                           \
    }                                                                                                                  \
    template <int A_ACROSS, int B_ACROSS>                                                                              \
    __device__ __forceinline__ void wgmma(float(&sum)[64], uint64_t a, uint64_t b, int add, T)                         \
    {                                                                                                                  \
        WGMMA(128, dtype, "%64", "%65", "%66", "%67", "%68");                                                          \
    }                                                                                                                  \
    template <int A_ACROSS, int B_ACROSS>                                                                              \
    __device__ __forceinline__ void wgmma(float(&sum)[128], uint64_t a, uint64_t b, int add, T)                        \
    {                                                                                                                  \
        WGMMA(256, dtype, "%128", "%129", "%130", "%131", "%132");                                                     \
    }

WGMMA_FUNCTIONS(__half, "f16")
WGMMA_FUNCTIONS(__nv_bfloat16, "bf16")

/* Call before the first wgmma of a series, so that it sees the program's writes to the registers of the sums. */
__device__ __forceinline__ void wgmma_begin()
{
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

__device__ __forceinline__ void wgmma_commit()
{
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

/* Waits until at most PENDING series of this warpgroup are in flight. */
template <int PENDING> __device__ __forceinline__ void wgmma_wait()
{
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
}

/* Keeps the compiler from reading the sums before a wait, which it does not know to change them. */
template <int N> __device__ __forceinline__ void wgmma_settle(float (&sum)[N])
{
#pragma unroll
    for (int i = 0; i < N; i++)
        asm volatile("" : "+f"(sum[i])::"memory");
}

#endif
