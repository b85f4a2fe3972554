// c = a b, all row-major: a is n × k, b is k × m, c is n × m.
//
// A block of SIDE × SIDE threads computes a tile of TILE × TILE elements of c, each thread EACH × EACH of them. The
// block walks along k in steps of DEPTH, with what it needs of a and b in shared memory. What lies outside the matrices
// counts as zero. Threads and blocks have one number each: the tiles of c are counted row by row.
#define TILE  64
#define DEPTH 16
#define SIDE  16 // of a block, in threads
#define EACH  (TILE / SIDE)

extern "C" __global__ void gemm_kernel(float *c, const float *a, const float *b, int n, int m, int k)
{
    __shared__ float a_tile[DEPTH][TILE + 1]; // transposed; the odd width spreads its columns over the banks
    __shared__ float b_tile[DEPTH][TILE];
    int thread = threadIdx.x, x0 = thread % SIDE, y0 = thread / SIDE;
    int tiles = (m + TILE - 1) / TILE; // side by side in c
    int row = blockIdx.x / tiles * TILE, column = blockIdx.x % tiles * TILE;
    float sum[EACH][EACH] = {};

    for (int step = 0; step < k; step += DEPTH) {
        for (int i = thread; i < TILE * DEPTH; i += SIDE * SIDE) {
            int y = i / DEPTH, x = i % DEPTH;
            bool inside = row + y < n && step + x < k;
            a_tile[x][y] = inside ? a[(size_t)(row + y) * k + step + x] : 0.0f;
        }
        for (int i = thread; i < DEPTH * TILE; i += SIDE * SIDE) {
            int y = i / TILE, x = i % TILE;
            bool inside = step + y < k && column + x < m;
            b_tile[y][x] = inside ? b[(size_t)(step + y) * m + column + x] : 0.0f;
        }
        __syncthreads();
        for (int d = 0; d < DEPTH; d++) {
            float from_a[EACH], from_b[EACH];

            for (int i = 0; i < EACH; i++) {
                from_a[i] = a_tile[d][y0 + i * SIDE];
                from_b[i] = b_tile[d][x0 + i * SIDE];
            }
            for (int i = 0; i < EACH; i++)
                for (int j = 0; j < EACH; j++)
                    sum[i][j] += from_a[i] * from_b[j];
        }
        __syncthreads(); // before the next step overwrites the tiles
    }
    for (int i = 0; i < EACH; i++)
        for (int j = 0; j < EACH; j++) {
            int y = row + y0 + i * SIDE, x = column + x0 + j * SIDE;
            if (y < n && x < m)
                c[(size_t)y * m + x] = sum[i][j];
        }
}
