// Matrix fragments of a warp. Each lane holds every 32nd part of a matrix, in an order that is nobody's business but
// this header's; a product looks into the fragments of all lanes while they wait.
#ifndef KOPS_HOST_MMA_H
#define KOPS_HOST_MMA_H

#include "cuda_bf16.h"

#include "cuda_fp16.h"

namespace nvcuda
{
namespace wmma
{

struct matrix_a {
};
struct matrix_b {
};
struct accumulator {
};
struct row_major {
};
struct col_major {
};

enum layout_t { mem_row_major, mem_col_major };

namespace precision
{
struct tf32 {
};
} // namespace precision

template <typename T> struct kops_host_stored {
    typedef T type;
};

template <> struct kops_host_stored<precision::tf32> {
    typedef float type;
};

// Rows and columns of each kind of matrix in a product of M * K and K * N.
template <typename Use, int M, int N, int K> struct kops_host_shape;

template <int M, int N, int K> struct kops_host_shape<matrix_a, M, N, K> {
    static constexpr int rows = M, columns = K;
};

template <int M, int N, int K> struct kops_host_shape<matrix_b, M, N, K> {
    static constexpr int rows = K, columns = N;
};

template <int M, int N, int K> struct kops_host_shape<accumulator, M, N, K> {
    static constexpr int rows = M, columns = N;
};

template <typename Use, int M, int N, int K, typename T, typename Layout = void>
class fragment : public kops_host_shape<Use, M, N, K>
{
  public:
    typedef typename kops_host_stored<T>::type element_type;
    typedef element_type storage_element_type;
    static constexpr int num_elements = fragment::rows * fragment::columns / 32;
    static constexpr int num_storage_elements = num_elements;
    element_type x[num_elements];

    // The place in memory of this lane's i-th element.
    KOPS_HOST static size_t place(int i, unsigned leading, bool by_rows)
    {
        int at = i * 32 + int(kops_host_lane()), row = at / fragment::columns, column = at % fragment::columns;
        return by_rows ? size_t(row) * leading + size_t(column) : size_t(column) * leading + size_t(row);
    }
};

template <typename Fragment, typename V> KOPS_HOST void fill_fragment(Fragment &f, const V &value)
{
    for (int i = 0; i < Fragment::num_elements; i++)
        f.x[i] = typename Fragment::element_type(value);
}

template <typename Use, int M, int N, int K, typename T, typename Layout, typename P>
KOPS_HOST void load_matrix_sync(fragment<Use, M, N, K, T, Layout> &f, const P *from, unsigned leading, KOPS_HOST_PLACE)
{
    kops_host_collective(KOPS_HOST_SYNC, ~0u, 0, -1, "load_matrix_sync", kops_file, kops_line);
    for (int i = 0; i < f.num_elements; i++)
        f.x[i] = from[f.place(i, leading, std::is_same<Layout, row_major>::value)];
}

template <int M, int N, int K, typename T, typename P>
KOPS_HOST void load_matrix_sync(fragment<accumulator, M, N, K, T> &f, const P *from, unsigned leading, layout_t layout,
                                KOPS_HOST_PLACE)
{
    kops_host_collective(KOPS_HOST_SYNC, ~0u, 0, -1, "load_matrix_sync", kops_file, kops_line);
    for (int i = 0; i < f.num_elements; i++)
        f.x[i] = from[f.place(i, leading, layout == mem_row_major)];
}

template <int M, int N, int K, typename T, typename P>
KOPS_HOST void store_matrix_sync(P *to, const fragment<accumulator, M, N, K, T> &f, unsigned leading, layout_t layout,
                                 KOPS_HOST_PLACE)
{
    for (int i = 0; i < f.num_elements; i++)
        to[f.place(i, leading, layout == mem_row_major)] = f.x[i];
    kops_host_collective(KOPS_HOST_SYNC, ~0u, 0, -1, "store_matrix_sync", kops_file, kops_line);
}

// The matrix that the lanes hold together.
template <typename Fragment>
KOPS_HOST void kops_host_collect(const Fragment &f, float *matrix, const char *file, unsigned line)
{
    kops_host_show(f.x, "mma_sync", file, line);
    for (unsigned lane = 0; lane < 32; lane++) {
        typename Fragment::element_type part[Fragment::num_elements];
        kops_host_look(lane, part, sizeof part);
        for (int i = 0; i < Fragment::num_elements; i++)
            matrix[i * 32 + int(lane)] = float(part[i]);
    }
    kops_host_collective(KOPS_HOST_SYNC, ~0u, 0, -1, "mma_sync", file, line);
}

template <int M, int N, int K, typename T, typename A, typename B, typename LayoutA, typename LayoutB, typename C>
KOPS_HOST void mma_sync(fragment<accumulator, M, N, K, T> &d, const fragment<matrix_a, M, N, K, A, LayoutA> &a,
                        const fragment<matrix_b, M, N, K, B, LayoutB> &b, const fragment<accumulator, M, N, K, C> &c,
                        KOPS_HOST_PLACE)
{
    float left[M * K], right[K * N];
    kops_host_collect(a, left, kops_file, kops_line);
    kops_host_collect(b, right, kops_file, kops_line);
    for (int i = 0; i < d.num_elements; i++) {
        int at = i * 32 + int(kops_host_lane()), row = at / N, column = at % N;
        double sum = double(c.x[i]);
        for (int k = 0; k < K; k++)
            sum += double(left[row * K + k]) * double(right[k * N + column]);
        d.x[i] = T(sum);
    }
}

// Ten bits of digits, rounded to nearest with ties away from zero.
KOPS_HOST float __float_to_tf32(float value)
{
    unsigned bits = __float_as_uint(value);
    return (bits & 0x7f800000u) == 0x7f800000u ? value : __uint_as_float((bits + 0x1000u) & 0xffffe000u);
}

} // namespace wmma
} // namespace nvcuda

#endif
