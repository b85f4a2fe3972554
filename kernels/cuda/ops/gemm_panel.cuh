/* Loads panels of a and b from global memory to registers.
 *
 * A panel is X × K elements: X rows of a or columns of b ("x"), K steps along the sum ("k"). All threads of the block
 * hold equally many elements. A WIDE kernel loads 16-byte pieces along k or along x; other kernels load single elements
 * with any strides. The launch decides whether neighbouring threads lie along k or along x, so branches on that are
 * uniform. Elements outside the matrix are read as 0. */
#ifndef KOPS_CUDA_OPS_GEMM_PANEL_CUH
#define KOPS_CUDA_OPS_GEMM_PANEL_CUH

#include "dtypes.cuh"
#include "params.h"

enum { GEMM_THREADS = 256 };

/* The elements of an X × K panel that a thread holds: pieces of W elements along k (ALONG) or along x. Neighbouring
 * threads hold neighbouring pieces in that direction. */
template <int X, int K, bool ALONG, int W> struct gemm_share {
    static constexpr int IN_ROW = (ALONG ? K : X) / W;
    static constexpr int STEP_X = ALONG ? GEMM_THREADS / IN_ROW : 0, STEP_K = ALONG ? 0 : GEMM_THREADS / IN_ROW;
    static constexpr int PIECES = X * K / GEMM_THREADS / W;
    static_assert(PIECES * W * GEMM_THREADS == X * K && GEMM_THREADS % IN_ROW == 0, "equal shares for all threads");

    static __device__ __forceinline__ int x()
    {
        return ALONG ? threadIdx.x / IN_ROW : threadIdx.x % IN_ROW * W;
    }

    static __device__ __forceinline__ int k()
    {
        return ALONG ? threadIdx.x % IN_ROW * W : threadIdx.x / IN_ROW;
    }
};

/* A thread's share of an operand's panels. */
template <typename T, int X, int K, bool WIDE> struct gemm_panel {
    static constexpr int WIDTH = WIDE ? pack<T>::WIDTH : 1; /* elements of a piece */
    static constexpr int ELEMENTS = X * K / GEMM_THREADS, PACKS = ELEMENTS / pack<T>::WIDTH;
    using share_along = gemm_share<X, K, true, WIDTH>;
    using share_across = gemm_share<X, K, false, WIDTH>;

    union {
        pack<T> packs[PACKS];
        T e[ELEMENTS];
    };
    const T *next;         /* the thread's first element of the next panel */
    uint64_t piece, panel; /* elements from piece to piece, from panel to panel */
    bool along;            /* pieces and neighbouring threads lie along k */

    __device__ __forceinline__ gemm_panel() : packs()
    {
    }

    template <typename Share>
    __device__ __forceinline__ void start_share(const T *first, uint64_t stride_x, uint64_t stride_k)
    {
        next = first + Share::x() * stride_x + Share::k() * stride_k;
        piece = Share::STEP_X * stride_x + Share::STEP_K * stride_k;
    }

    __device__ __forceinline__ void start(const T *first, uint64_t stride_x, uint64_t stride_k, uint32_t access)
    {
        along = access == CUDA_OPS_ACCESS_ALONG_K;
        panel = K * stride_k;
        if (along)
            start_share<share_along>(first, stride_x, stride_k);
        else
            start_share<share_across>(first, stride_x, stride_k);
    }

    /* Loads the next panel, of which x_left rows and k_left steps exist. */
    __device__ __forceinline__ void fetch(int x_left, int k_left)
    {
        if (WIDE && x_left >= X && k_left >= K) {
#pragma unroll
            for (int i = 0; i < PACKS; i++)
                packs[i].bits = *reinterpret_cast<const uint4 *>(next + i * piece);
        } else if (along) {
            fetch_guarded<share_along, true>(x_left, k_left);
        } else {
            fetch_guarded<share_across, false>(x_left, k_left);
        }
        next += panel;
    }

    template <typename Share, bool ALONG> __device__ __forceinline__ void fetch_guarded(int x_left, int k_left)
    {
#pragma unroll
        for (int i = 0; i < Share::PIECES; i++) {
            const T *from = next + i * piece;
            const int x_here = x_left - (Share::x() + i * Share::STEP_X);
            const int k_here = k_left - (Share::k() + i * Share::STEP_K);
            const int here = x_here <= 0 || k_here <= 0 ? 0 : ALONG ? k_here : x_here;
            if (WIDE && here >= WIDTH) {
                packs[i % PACKS].bits = *reinterpret_cast<const uint4 *>(from);
            } else {
#pragma unroll
                for (int v = 0; v < WIDTH; v++)
                    e[i * WIDTH + v] = v < here ? from[v] : T(0.0f);
            }
        }
    }
};

#endif
