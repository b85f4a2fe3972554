/**
 * @file ops.h
 * @brief The built-in ops as functions. <kops/kops.h> includes it.
 */
#ifndef KOPS_OPS_H
#define KOPS_OPS_H

#include <kops/kops.h>

#ifdef __cplusplus
extern "C" {
#endif

/** out = a + b, with NumPy's broadcasting; out may be exactly a or b. `options` and `ret_result` may be NULL. */
KOPS_API enum kops_code kops_add(kops_client *client, const struct kops_tensor *a, const struct kops_tensor *b,
                                 const struct kops_tensor *out, const struct kops_options *options,
                                 struct kops_result *ret_result, struct kops_error *ret_error);

/** out = a, bits unchanged, for every dtype; out may be exactly a. One of the two may be in shared memory and the other
 * one on a GPU: where both lie in memory in the same order without gaps, that is one transfer by the GPU's copy
 * engines. */
KOPS_API enum kops_code kops_copy(kops_client *client, const struct kops_tensor *a, const struct kops_tensor *out,
                                  const struct kops_options *options, struct kops_result *ret_result,
                                  struct kops_error *ret_error);

/** out = a · a, element by element; out may be exactly a. */
KOPS_API enum kops_code kops_square(kops_client *client, const struct kops_tensor *a, const struct kops_tensor *out,
                                    const struct kops_options *options, struct kops_result *ret_result,
                                    struct kops_error *ret_error);

/** How to multiply. Start from KOPS_GEMM_INIT. */
struct kops_gemm_params {
    bool trans_a, trans_b; /**< Swap the last two dimensions of an operand first. */
    double alpha, beta;    /**< beta = 0: out is not read. */
    bool high;             /**< precision "high": f32 may be multiplied as pieces of bf16, with 16 bits in all. */
    bool medium;           /**< precision "medium": f32 operands may be rounded to tf32, which has 11 bits. */
};

#define KOPS_GEMM_INIT                                                                                                 \
    {                                                                                                                  \
        false, false, 1.0, 0.0, false, false                                                                           \
    }

/** out = alpha · op(a) · op(b) + beta · out over the last two dimensions: [.., m, k] · [.., k, n] = [.., m, n]; leading
 * ones are batch dimensions and broadcast. Beside inputs of f16 or bf16 out may be f32. `params` may be NULL:
 * KOPS_GEMM_INIT. */
KOPS_API enum kops_code kops_gemm(kops_client *client, const struct kops_tensor *a, const struct kops_tensor *b,
                                  const struct kops_tensor *out, const struct kops_gemm_params *params,
                                  const struct kops_options *options, struct kops_result *ret_result,
                                  struct kops_error *ret_error);

/** Function applied to each element of a product with its bias. */
enum kops_activation {
    KOPS_ACTIVATION_NONE,
    KOPS_ACTIVATION_RELU,
    KOPS_ACTIVATION_GELU,      /**< x/2 · (1 + erf(x/√2)) */
    KOPS_ACTIVATION_GELU_TANH, /**< the approximation of gelu by tanh */
};

/** How to multiply, and what follows. Start from KOPS_LINEAR_INIT. */
struct kops_linear_params {
    bool trans_a, trans_b; /**< Swap the last two dimensions of an operand first. */
    double alpha;          /**< Scales the product, before bias is added. */
    enum kops_activation activation;
    bool high, medium; /**< precision, as of kops_gemm(). */
};

#define KOPS_LINEAR_INIT                                                                                               \
    {                                                                                                                  \
        false, false, 1.0, KOPS_ACTIVATION_NONE, false, false                                                          \
    }

/** out = activation(alpha · op(a) · op(b) + bias), in one pass: the product is that of kops_gemm(), bias broadcasts to
 * it. `params` may be NULL: KOPS_LINEAR_INIT. */
KOPS_API enum kops_code kops_linear(kops_client *client, const struct kops_tensor *a, const struct kops_tensor *b,
                                    const struct kops_tensor *bias, const struct kops_tensor *out,
                                    const struct kops_linear_params *params, const struct kops_options *options,
                                    struct kops_result *ret_result, struct kops_error *ret_error);

/** How exact the sums of kops_scaled_gemm() are. */
enum kops_sums {
    KOPS_SUMS_HIGH, /**< Groups of up to 128 products are added as a GPU's tensor cores for f8 do, the groups in f32. */
    KOPS_SUMS_HIGHEST, /**< Every product is added in f32. */
    KOPS_SUMS_MEDIUM   /**< All products may be added as tensor cores for f8 do, which keep 14 bits. */
};

/** How to multiply. Start from KOPS_SCALED_GEMM_INIT. */
struct kops_scaled_gemm_params {
    bool trans_a, trans_b; /**< Swap the last two dimensions of an operand first. */
    enum kops_sums sums;   /**< The attribute `precision`. */
};

#define KOPS_SCALED_GEMM_INIT                                                                                          \
    {                                                                                                                  \
        false, false, KOPS_SUMS_HIGH                                                                                   \
    }

/** out = scale_a · scale_b · op(a) · op(b). a and b are KOPS_F8_E4M3 or KOPS_F8_E5M2, independently. The scales are
 * KOPS_F32: scale_a broadcasts to [.., m, 1], scale_b to [.., 1, n]. out is KOPS_BF16, KOPS_F16 or KOPS_F32. `params`
 * may be NULL: KOPS_SCALED_GEMM_INIT. */
KOPS_API enum kops_code kops_scaled_gemm(kops_client *client, const struct kops_tensor *a, const struct kops_tensor *b,
                                         const struct kops_tensor *scale_a, const struct kops_tensor *scale_b,
                                         const struct kops_tensor *out, const struct kops_scaled_gemm_params *params,
                                         const struct kops_options *options, struct kops_result *ret_result,
                                         struct kops_error *ret_error);

#ifdef __cplusplus
}
#endif

#endif
