// Vector types and dimensions, aligned as on the device.
#ifndef KOPS_HOST_VECTORS_H
#define KOPS_HOST_VECTORS_H

#define KOPS_HOST_VECTOR(NAME, T, ALIGN1, ALIGN2, ALIGN4)                                                              \
    struct alignas(ALIGN1) NAME##1                                                                                     \
    {                                                                                                                  \
        T x;                                                                                                           \
    };                                                                                                                 \
    struct alignas(ALIGN2) NAME##2                                                                                     \
    {                                                                                                                  \
        T x, y;                                                                                                        \
    };                                                                                                                 \
    struct alignas(ALIGN1) NAME##3                                                                                     \
    {                                                                                                                  \
        T x, y, z;                                                                                                     \
    };                                                                                                                 \
    struct alignas(ALIGN4) NAME##4                                                                                     \
    {                                                                                                                  \
        T x, y, z, w;                                                                                                  \
    };                                                                                                                 \
    KOPS_HOST NAME##1 make_##NAME##1(T x)                                                                              \
    {                                                                                                                  \
        return {x};                                                                                                    \
    }                                                                                                                  \
    KOPS_HOST NAME##2 make_##NAME##2(T x, T y)                                                                         \
    {                                                                                                                  \
        return {x, y};                                                                                                 \
    }                                                                                                                  \
    KOPS_HOST NAME##3 make_##NAME##3(T x, T y, T z)                                                                    \
    {                                                                                                                  \
        return {x, y, z};                                                                                              \
    }                                                                                                                  \
    KOPS_HOST NAME##4 make_##NAME##4(T x, T y, T z, T w)                                                               \
    {                                                                                                                  \
        return {x, y, z, w};                                                                                           \
    }

KOPS_HOST_VECTOR(char, signed char, 1, 2, 4)
KOPS_HOST_VECTOR(uchar, unsigned char, 1, 2, 4)
KOPS_HOST_VECTOR(short, short, 2, 4, 8)
KOPS_HOST_VECTOR(ushort, unsigned short, 2, 4, 8)
KOPS_HOST_VECTOR(int, int, 4, 8, 16)
KOPS_HOST_VECTOR(uint, unsigned int, 4, 8, 16)
KOPS_HOST_VECTOR(long, long, 8, 16, 16)
KOPS_HOST_VECTOR(ulong, unsigned long, 8, 16, 16)
KOPS_HOST_VECTOR(longlong, long long, 8, 16, 16)
KOPS_HOST_VECTOR(ulonglong, unsigned long long, 8, 16, 16)
KOPS_HOST_VECTOR(float, float, 4, 8, 16)
KOPS_HOST_VECTOR(double, double, 8, 16, 16)

#undef KOPS_HOST_VECTOR

struct dim3 {
    unsigned x, y, z;

    constexpr dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_)
    {
    }

    constexpr dim3(uint3 v) : x(v.x), y(v.y), z(v.z)
    {
    }

    constexpr operator uint3() const
    {
        return {x, y, z};
    }
};

// Constant for a thread, which is all that a function sees of them.
extern "C" {
extern const uint3 threadIdx, blockIdx;
extern const uint3 blockDim __asm__("kops_host_block_size");
extern const uint3 gridDim __asm__("kops_host_grid_size");
}

constexpr int warpSize = 32;

#endif
