// cuRAND on the host: calls go to the real library.
#pragma once
#include <kops/device.h>

typedef struct curandGenerator_st *curandGenerator_t;
typedef enum {
    CURAND_STATUS_SUCCESS = 0,
    CURAND_STATUS_VERSION_MISMATCH = 100,
    CURAND_STATUS_NOT_INITIALIZED = 101,
    CURAND_STATUS_ALLOCATION_FAILED = 102,
    CURAND_STATUS_TYPE_ERROR = 103,
    CURAND_STATUS_OUT_OF_RANGE = 104,
    CURAND_STATUS_LENGTH_NOT_MULTIPLE = 105,
    CURAND_STATUS_DOUBLE_PRECISION_REQUIRED = 106,
    CURAND_STATUS_LAUNCH_FAILURE = 201,
    CURAND_STATUS_PREEXISTING_FAILURE = 202,
    CURAND_STATUS_INITIALIZATION_FAILED = 203,
    CURAND_STATUS_ARCH_MISMATCH = 204,
    CURAND_STATUS_INTERNAL_ERROR = 999
} curandStatus_t;
typedef enum {
    CURAND_RNG_TEST = 0,
    CURAND_RNG_PSEUDO_DEFAULT = 100,
    CURAND_RNG_PSEUDO_XORWOW = 101,
    CURAND_RNG_PSEUDO_MRG32K3A = 121,
    CURAND_RNG_PSEUDO_MTGP32 = 141,
    CURAND_RNG_PSEUDO_MT19937 = 142,
    CURAND_RNG_PSEUDO_PHILOX4_32_10 = 161,
    CURAND_RNG_QUASI_DEFAULT = 200,
    CURAND_RNG_QUASI_SOBOL32 = 201,
    CURAND_RNG_QUASI_SCRAMBLED_SOBOL32 = 202,
    CURAND_RNG_QUASI_SOBOL64 = 203,
    CURAND_RNG_QUASI_SCRAMBLED_SOBOL64 = 204
} curandRngType_t;
typedef enum {
    CURAND_ORDERING_PSEUDO_BEST = 100,
    CURAND_ORDERING_PSEUDO_DEFAULT = 101,
    CURAND_ORDERING_PSEUDO_SEEDED = 102,
    CURAND_ORDERING_PSEUDO_LEGACY = 103,
    CURAND_ORDERING_PSEUDO_DYNAMIC = 104,
    CURAND_ORDERING_QUASI_DEFAULT = 201
} curandOrdering_t;

#define KOPS_FUNCTION(NAME, ...)                                                                                       \
    inline constexpr kops::LibraryFunction<curandStatus_t(__VA_ARGS__)> NAME{"curand", #NAME};
KOPS_FUNCTION(curandCreateGenerator, curandGenerator_t *, curandRngType_t)
KOPS_FUNCTION(curandCreateGeneratorHost, curandGenerator_t *, curandRngType_t)
KOPS_FUNCTION(curandDestroyGenerator, curandGenerator_t)
KOPS_FUNCTION(curandSetStream, curandGenerator_t, cudaStream_t)
KOPS_FUNCTION(curandSetPseudoRandomGeneratorSeed, curandGenerator_t, unsigned long long)
KOPS_FUNCTION(curandSetGeneratorOffset, curandGenerator_t, unsigned long long)
KOPS_FUNCTION(curandSetGeneratorOrdering, curandGenerator_t, curandOrdering_t)
KOPS_FUNCTION(curandSetQuasiRandomGeneratorDimensions, curandGenerator_t, unsigned int)
KOPS_FUNCTION(curandGenerate, curandGenerator_t, unsigned int *, size_t)
KOPS_FUNCTION(curandGenerateLongLong, curandGenerator_t, unsigned long long *, size_t)
KOPS_FUNCTION(curandGenerateUniform, curandGenerator_t, float *, size_t)
KOPS_FUNCTION(curandGenerateUniformDouble, curandGenerator_t, double *, size_t)
KOPS_FUNCTION(curandGenerateNormal, curandGenerator_t, float *, size_t, float, float)
KOPS_FUNCTION(curandGenerateNormalDouble, curandGenerator_t, double *, size_t, double, double)
KOPS_FUNCTION(curandGenerateLogNormal, curandGenerator_t, float *, size_t, float, float)
KOPS_FUNCTION(curandGenerateLogNormalDouble, curandGenerator_t, double *, size_t, double, double)
KOPS_FUNCTION(curandGeneratePoisson, curandGenerator_t, unsigned int *, size_t, double)
KOPS_FUNCTION(curandGenerateSeeds, curandGenerator_t)
#undef KOPS_FUNCTION
