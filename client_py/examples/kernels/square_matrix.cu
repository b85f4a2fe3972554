// out = in * in, element by element, of a row-major matrix: one thread a column, and every so many rows.
extern "C" __global__ void square_matrix_kernel(const float *in, float *out, int width, int height)
{
    unsigned column = blockIdx.x * blockDim.x + threadIdx.x;
    unsigned stride = gridDim.y * blockDim.y; // a grid has at most 65535 blocks in y

    if (column >= width)
        return;
    for (unsigned row = blockIdx.y * blockDim.y + threadIdx.y; row < height; row += stride) {
        size_t i = (size_t)row * width + column;
        out[i] = in[i] * in[i];
    }
}
