/* Matrix product of 16-bit elements with sums in f32, for sm_90a. One warpgroup of a block is the producer: it makes
 * TMA load panels of a and b to a ring in shared memory. Two warpgroups are consumers: they multiply the panels by
 * wgmma, each half of the tile's rows. Each block of a cluster loads a part of the shared panels for all. Blocks are
 * persistent and take one tile after the other, so the producer loads the next tile while the consumers write.
 *
 * The design is that of CUTLASS's warp-specialised persistent cooperative kernels, as NVIDIA has described them. */
#ifndef KOPS_CUDA_OPS_GEMM_HOPPER_CUH
#define KOPS_CUDA_OPS_GEMM_HOPPER_CUH

#include "dtypes.cuh"
#include "gemm_epilogue.cuh"
#include "hopper.cuh"
#include "stamp.cuh"
#include "wgmma.cuh"

enum {
    HOPPER_GROUP = 128 /* threads of a warpgroup */,
    HOPPER_CONSUMERS = 2,
    HOPPER_THREADS = CUDA_OPS_MAPPED_THREADS
};

/* A tile's first row and column, and its batch. */
struct hopper_tile {
    int row, column, batch;
};

/* X_ACROSS: the operand does not lie along k. M × N: the tile of a block. CLUSTER_M × CLUSTER_N: blocks of a cluster,
 * which are neighbours in out. LEAD: panels by which the first consumer is ahead of the second, so that one multiplies
 * while the other writes. LINEAR: with a bias and an activation, in place of beta. */
template <typename T, int A_ACROSS, int B_ACROSS, int M, int N, int STAGES, int CLUSTER_M, int CLUSTER_N, int LEAD,
          bool LINEAR = false>
struct gemm_hopper {
    static constexpr int PARTS = M / HOPPER_CONSUMERS / 64; /* products of 64 rows of a consumer */
    static constexpr int A_BYTES = M * 128, B_BYTES = N * 128, STAGE_BYTES = A_BYTES + B_BYTES;
    static constexpr int OUT_BYTES = 64 * 128, OUT_BUFFERS = 2; /* buffers of 64 × 64 elements of out */
    static constexpr int RING_BYTES = STAGES * STAGE_BYTES;
    static constexpr int BARRIERS = RING_BYTES + HOPPER_CONSUMERS * OUT_BUFFERS * OUT_BYTES;
    static_assert(BARRIERS + STAGES * 16 + 1024 <= CUDA_OPS_MAPPED_SHARED_MAX, "it fits, wherever its begin is");
    static_assert(BARRIERS - RING_BYTES + STAGES * 16 + 1024 <= CUDA_OPS_MAPPED_SHARED, "as the launcher has it");
    static constexpr int A_SHARE = M / CLUSTER_N, B_SHARE = N / CLUSTER_M; /* rows and columns that a block loads */
    static constexpr int NEIGHBOURS = CLUSTER_M + CLUSTER_N - 1; /* blocks that share panels with a block, and itself */
    static_assert(M % (HOPPER_CONSUMERS * 64) == 0 && A_SHARE % 64 == 0 && B_SHARE % 64 == 0, "whole pieces");

    const cuda_ops_gemm_mapped &p;
    uint32_t ring; /* address in shared memory */
    uint32_t rank, rank_m, rank_n;

    __device__ __forceinline__ uint32_t full(int stage) const
    {
        return ring + BARRIERS + stage * 16;
    }

    __device__ __forceinline__ uint32_t empty(int stage) const
    {
        return ring + BARRIERS + stage * 16 + 8;
    }

    __device__ __forceinline__ uint32_t panel_a(int stage) const
    {
        return ring + stage * STAGE_BYTES;
    }

    __device__ __forceinline__ uint32_t panel_b(int stage) const
    {
        return ring + stage * STAGE_BYTES + A_BYTES;
    }

    /* Finds this block's tile of the cluster's tile number `work`. Clusters that run together are `group` rows high, so
     * that they share panels in the L2 cache. */
    __device__ __forceinline__ hopper_tile locate(uint32_t work) const
    {
        const uint32_t tiles = p.tiles_m * p.tiles_n, batch = work / tiles, tile = work - batch * tiles;
        const uint32_t group = tile / (p.group * p.tiles_n), in_group = tile - group * p.group * p.tiles_n;
        const uint32_t first = group * p.group;
        const uint32_t height = p.tiles_m - first < p.group ? p.tiles_m - first : p.group;
        hopper_tile t;
        t.row = ((first + in_group % height) * CLUSTER_M + rank_m) * M;
        t.column = (in_group / height * CLUSTER_N + rank_n) * N;
        t.batch = batch;
        return t;
    }

    __device__ __forceinline__ uint32_t works() const
    {
        return p.tiles_m * p.tiles_n * p.batch_count;
    }

    __device__ __forceinline__ int steps() const
    {
        return (p.k + PANEL_STEPS - 1) / PANEL_STEPS;
    }

    /* ---- the producer: one thread ---- */

    template <int ACROSS, int SHARE, int CLUSTER>
    __device__ __forceinline__ void load(uint32_t panel, const cuda_ops_map &map, int x, int k, int batch, int share,
                                         uint16_t blocks, uint32_t barrier) const
    {
        constexpr int ROWS = ACROSS ? 64 : SHARE; /* rows of a box */
#pragma unroll
        for (int i = 0; i < SHARE; i += ROWS) {
            const uint32_t to = panel + (share * SHARE + i) * 128;
            const int at = x + share * SHARE + i;
            if (CLUSTER == 1)
                map_load(to, map, ACROSS ? at : k, ACROSS ? k : at, batch, barrier);
            else
                map_load(to, map, ACROSS ? at : k, ACROSS ? k : at, batch, barrier, blocks);
        }
    }

    __device__ __forceinline__ void produce() const
    {
        const uint32_t count = works(), clusters = gridDim.x / (CLUSTER_M * CLUSTER_N);
        const int n_steps = steps();
        uint16_t row_blocks = 0, column_blocks = 0; /* bits of blocks with this block's rows, and columns */
        int stage = 0;
        uint32_t parity = 1; /* the phase before the first one has ended */

        for (int i = 0; i < CLUSTER_N; i++)
            row_blocks |= (uint16_t)(1 << (rank_m * CLUSTER_N + i));
        for (int i = 0; i < CLUSTER_M; i++)
            column_blocks |= (uint16_t)(1 << (i * CLUSTER_N + rank_n));
        for (uint32_t work = blockIdx.x / (CLUSTER_M * CLUSTER_N); work < count; work += clusters) {
            const hopper_tile t = locate(work);
            for (int step = 0; step < n_steps; step++) {
                barrier_wait(empty(stage), parity);
                barrier_expect(full(stage), STAGE_BYTES);
                load<A_ACROSS, A_SHARE, CLUSTER_N>(panel_a(stage), p.a, t.row, step * PANEL_STEPS, t.batch * p.a_batch,
                                                   rank_n, row_blocks, full(stage));
                load<B_ACROSS, B_SHARE, CLUSTER_M>(panel_b(stage), p.b, t.column, step * PANEL_STEPS,
                                                   t.batch * p.b_batch, rank_m, column_blocks, full(stage));
                if (++stage == STAGES) {
                    stage = 0;
                    parity ^= 1;
                }
            }
        }
    }

    /* ---- the consumers ---- */

    /* Tells the blocks that load to this block's stage that this warpgroup has read it. */
    __device__ __forceinline__ void release(int stage) const
    {
        const uint32_t other = threadIdx.x % HOPPER_GROUP;
        if (other < CLUSTER_M * CLUSTER_N && (other / CLUSTER_N == rank_m || other % CLUSTER_N == rank_n))
            barrier_arrive(empty(stage), other);
    }

    __device__ __forceinline__ void multiply(float (&sum)[PARTS][N / 2], int consumer, bool first, int &stage,
                                             uint32_t &parity) const
    {
        const int n_steps = steps(), lead = LEAD < n_steps ? LEAD : n_steps;
        int before = 0;

        if (LEAD && first && consumer == 1)
            named_barrier(1 + HOPPER_CONSUMERS, 2 * HOPPER_GROUP);

        for (int step = 0; step < n_steps; step++) {
            const uint64_t b = panel_descriptor<B_ACROSS>(panel_b(stage));
            const uint64_t a = panel_descriptor<A_ACROSS>(panel_a(stage) + consumer * PARTS * PANEL_PIECE_BYTES);
            barrier_wait(full(stage), parity);
            wgmma_begin();
#pragma unroll
            for (int k = 0; k < PANEL_STEPS / 16; k++) {
#pragma unroll
                for (int i = 0; i < PARTS; i++)
                    wgmma<A_ACROSS, B_ACROSS>(sum[i], a + k * panel_advance<A_ACROSS> + i * (PANEL_PIECE_BYTES / 16),
                                              b + k * panel_advance<B_ACROSS>, step | k, T());
            }
            wgmma_commit();
            if (LEAD && first && consumer == 0 && step == lead - 1)
                named_barrier_arrive(1 + HOPPER_CONSUMERS, 2 * HOPPER_GROUP);
            wgmma_wait<1>();
            if (step)
                release(before);
            before = stage;
            if (++stage == STAGES) {
                stage = 0;
                parity ^= 1;
            }
        }
        wgmma_wait<0>();
        release(before);
#pragma unroll
        for (int i = 0; i < PARTS; i++)
            wgmma_settle(sum[i]);
    }

    /* Row and column of a thread's sum number n, within the 64 × N elements of a warpgroup's product. */
    static __device__ __forceinline__ int row_of(int n)
    {
        return threadIdx.x % HOPPER_GROUP / 32 * 16 + threadIdx.x % 32 / 4 + n / 2 % 2 * 8;
    }

    static __device__ __forceinline__ int column_of(int n)
    {
        return n / 4 * 8 + threadIdx.x % 4 * 2 + n % 2;
    }

    /* Returns the bias of columns x and x + 1, if all rows share one bias; 0 beyond the last column. */
    __device__ __forceinline__ pair<T> bias_of(const T *bias, int x) const
    {
        pair<T> y = {{T(0.0f), T(0.0f)}};

        if (p.bias_pairs && (uint32_t)x + 1 < p.n)
            return pair<T>::load(bias + x);
        if ((uint32_t)x < p.n)
            y.e[0] = bias[x * p.bias_column];
        if ((uint32_t)x + 1 < p.n)
            y.e[1] = bias[(x + 1) * p.bias_column];
        return y;
    }

    /* Scales the sums and adds the bias. */
    __device__ __forceinline__ void add_bias(float (&sum)[PARTS][N / 2], const hopper_tile &t, int consumer) const
    {
        const T *bias = reinterpret_cast<const T *>(p.bias_address) + t.batch * p.bias_batch;

        if (p.bias_row == 0) {
#pragma unroll
            for (int n = 0; n < N / 2; n += 4) {
                const pair<T> y = bias_of(bias, t.column + column_of(n));
#pragma unroll
                for (int i = 0; i < PARTS * 4; i++)
                    sum[i / 4][n + i % 4] = fmaf(p.alpha, sum[i / 4][n + i % 4], widen(y.e[i % 2]));
            }
            return;
        }
#pragma unroll
        for (int i = 0; i < PARTS; i++) {
#pragma unroll
            for (int n = 0; n < N / 2; n++) {
                const uint32_t row = t.row + (consumer * PARTS + i) * 64 + row_of(n), column = t.column + column_of(n);
                const bool inside = row < p.m && column < p.n;
                const float y = inside ? widen(bias[row * p.bias_row + column * p.bias_column]) : 0.0f;
                sum[i][n] = fmaf(p.alpha, sum[i][n], y);
            }
        }
    }

    __device__ __forceinline__ void finish_linear(float (&sum)[PARTS][N / 2], const hopper_tile &t, int consumer) const
    {
        add_bias(sum, t, consumer);
#define HOPPER_ACTIVATE(function)                                                                                      \
    _Pragma("unroll") for (int i = 0; i < PARTS * N / 2; i++) sum[i / (N / 2)][i % (N / 2)] =                          \
        function(sum[i / (N / 2)][i % (N / 2)])
        switch (p.activation) {
        case CUDA_OPS_RELU:
            HOPPER_ACTIVATE(gemm_relu);
            break;
        case CUDA_OPS_GELU:
            HOPPER_ACTIVATE(gemm_gelu_quick);
            break;
        case CUDA_OPS_GELU_TANH:
            HOPPER_ACTIVATE(gemm_gelu_tanh_quick);
            break;
        default:
            break;
        }
#undef HOPPER_ACTIVATE
    }

    /* Returns two neighbouring elements of out. */
    template <bool BETA>
    __device__ __forceinline__ uint32_t finish(float low, float high, const hopper_tile &t, int row, int column) const
    {
        union {
            uint32_t bits;
            T e[2];
        } y = {0};

        if (!LINEAR) {
            low *= p.alpha;
            high *= p.alpha;
        }
        if (BETA && (uint32_t)row < p.m && (uint32_t)column < p.n) {
            const T *place =
                reinterpret_cast<const T *>(p.out_address) + t.batch * p.out_batch + row * p.out_row + column;
            if ((uint32_t)column + 1 < p.n)
                y.bits = *reinterpret_cast<const uint32_t *>(place);
            else
                y.e[0] = *place;
            low += p.beta * widen(y.e[0]);
            high += p.beta * widen(y.e[1]);
        }
        y.e[0] = element<T>::narrow(low);
        y.e[1] = element<T>::narrow(high);
        return y.bits;
    }

    /* Writes columns behind the last whole 16 bytes of a row, which TMA cannot store and the map leaves out. */
    __device__ __forceinline__ void write_rest(uint32_t bits, const hopper_tile &t, int row, int column) const
    {
        union {
            uint32_t bits;
            T e[2];
        } y = {bits};
        T *place = reinterpret_cast<T *>(p.out_address) + t.batch * p.out_batch + row * p.out_row + column;

        if ((uint32_t)row >= p.m || (uint32_t)column < p.n / 8 * 8)
            return;
        if ((uint32_t)column < p.n)
            place[0] = y.e[0];
        if ((uint32_t)column + 1 < p.n)
            place[1] = y.e[1];
    }

    /* Writes the sums, 64 × 64 elements at a time, through two buffers. `turn` counts uses of buffers. */
    template <bool BETA>
    __device__ __forceinline__ void write(const float (&sum)[PARTS][N / 2], const hopper_tile &t, int consumer,
                                          int &turn) const
    {
        const int thread = threadIdx.x % HOPPER_GROUP, warp = thread / 32, lane = thread % 32;
        const uint32_t buffers = ring + RING_BYTES + consumer * OUT_BUFFERS * OUT_BYTES;
        const uint32_t row_here = warp * 16 + lane % 16, swizzle = lane % 8;

#pragma unroll
        for (int i = 0; i < PARTS; i++) {
            const int row = t.row + (consumer * PARTS + i) * 64;
#pragma unroll
            for (int c = 0; c < N / 64; c++, turn++) {
                const uint32_t buffer = buffers + turn % OUT_BUFFERS * OUT_BYTES;
                if (thread == 0)
                    store_wait_read<OUT_BUFFERS - 1>();
                named_barrier(1 + consumer, HOPPER_GROUP);
#pragma unroll
                for (int j = 0; j < 4; j++) { /* 16 columns each */
                    const float *s = &sum[i][(c * 4 + j) * 8];
                    const int r = row + warp * 16 + lane / 4, x = t.column + c * 64 + j * 16 + lane % 4 * 2;
                    uint32_t y[4];
#pragma unroll
                    for (int q = 0; q < 4; q++)
                        y[q] = finish<BETA>(s[q * 2], s[q * 2 + 1], t, r + q % 2 * 8, x + q / 2 * 8);
                    store_blocks(buffer + row_here * 128 + (((j * 2 + lane / 16) ^ swizzle) << 4), y[0], y[1], y[2],
                                 y[3]);
                    if (p.n % 8 && t.column + c * 64 + 64 > (int)p.n) {
#pragma unroll
                        for (int q = 0; q < 4; q++)
                            write_rest(y[q], t, r + q % 2 * 8, x + q / 2 * 8);
                    }
                }
                store_prepare();
                named_barrier(1 + consumer, HOPPER_GROUP);
                if (thread == 0) {
                    map_store(p.out, buffer, t.column + c * 64, row, t.batch);
                    store_commit();
                }
            }
        }
    }

    __device__ __forceinline__ void consume(int consumer) const
    {
        const uint32_t count = works(), clusters = gridDim.x / (CLUSTER_M * CLUSTER_N);
        int stage = 0, turn = 0;
        uint32_t parity = 0;

        for (uint32_t work = blockIdx.x / (CLUSTER_M * CLUSTER_N); work < count; work += clusters) {
            float sum[PARTS][N / 2];
            multiply(sum, consumer, work < clusters, stage, parity);
            if (LINEAR)
                finish_linear(sum, locate(work), consumer);
            if (!LINEAR && p.beta != 0)
                write<true>(sum, locate(work), consumer, turn);
            else
                write<false>(sum, locate(work), consumer, turn);
        }
        if (threadIdx.x % HOPPER_GROUP == 0)
            store_wait();
    }

    /* ---- both ---- */

    __device__ __forceinline__ void run()
    {
        /* The shuffle shows the compiler that `group` is uniform in a warp. */
        const int group = __shfl_sync(~0u, threadIdx.x / HOPPER_GROUP, 0);

        rank = CLUSTER_M * CLUSTER_N == 1 ? 0 : cluster_rank();
        rank_m = rank / CLUSTER_N;
        rank_n = rank % CLUSTER_N;
        if (threadIdx.x == 0) {
            map_prefetch(p.a);
            map_prefetch(p.b);
            map_prefetch(p.out);
            for (int s = 0; s < STAGES; s++) {
                barrier_init(full(s), 1);
                barrier_init(empty(s), HOPPER_CONSUMERS * NEIGHBOURS);
            }
            barrier_init_done();
        }
        __syncwarp();
        cluster_arrive();
        cluster_wait();
        if (group == 0) {
            registers_give<24>();
            if (threadIdx.x == 0)
                produce();
            __syncwarp();
        } else {
            registers_take<240>();
            consume(group - 1);
        }
        cluster_arrive(); /* no block may end while another one writes to it */
        cluster_wait();
    }
};

#define CUDA_OPS_HOPPER_KERNEL(symbol, cluster, ...)                                                                   \
    extern "C" __global__ void __cluster_dims__(cluster, 1, 1) __launch_bounds__(HOPPER_THREADS, 1)                    \
        symbol(const __grid_constant__ cuda_ops_gemm_mapped p)                                                         \
    {                                                                                                                  \
        extern __shared__ unsigned char memory[];                                                                      \
        stamp_start(p.stamps);                                                                                         \
        gemm_hopper<__VA_ARGS__> g{p, (shared_address(memory) + 1023) & ~1023u, 0, 0, 0};                              \
        g.run();                                                                                                       \
        stamp_end(p.stamps);                                                                                           \
    }
#define CUDA_OPS_GEMM_HOPPER(name, cluster, ...) CUDA_OPS_HOPPER_KERNEL(kops_gemm_##name, cluster, __VA_ARGS__)
#define CUDA_OPS_LINEAR_HOPPER(name, cluster, ...)                                                                     \
    CUDA_OPS_HOPPER_KERNEL(kops_linear_##name, cluster, __VA_ARGS__, true)

#endif
