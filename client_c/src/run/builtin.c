/* The built-in ops by name. */
#include "base/fail.h"
#include "run.h"

static enum kops_code run_op(kops_client *client, const char *op, const struct kops_tensor *inputs, size_t n_inputs,
                             const struct kops_tensor *out, const struct kops_attr *attrs, size_t n_attrs,
                             const struct kops_options *options, struct kops_result *ret_result,
                             struct kops_error *ret_error)
{
    struct kops_request request = {.op = op,
                                   .inputs = inputs,
                                   .n_inputs = n_inputs,
                                   .outputs = out,
                                   .n_outputs = 1,
                                   .attrs = attrs,
                                   .n_attrs = n_attrs};

    if (options)
        request.options = *options;
    return run_request(client, &request, &(struct dispatch){DISPATCH_RUN, .ret_result = ret_result}, ret_error);
}

enum kops_code kops_add(kops_client *client, const struct kops_tensor *a, const struct kops_tensor *b,
                        const struct kops_tensor *out, const struct kops_options *options,
                        struct kops_result *ret_result, struct kops_error *ret_error)
{
    const struct kops_tensor inputs[2] = {*a, *b};

    return run_op(client, "add", inputs, 2, out, NULL, 0, options, ret_result, ret_error);
}

enum kops_code kops_copy(kops_client *client, const struct kops_tensor *a, const struct kops_tensor *out,
                         const struct kops_options *options, struct kops_result *ret_result,
                         struct kops_error *ret_error)
{
    return run_op(client, "copy", a, 1, out, NULL, 0, options, ret_result, ret_error);
}

enum kops_code kops_square(kops_client *client, const struct kops_tensor *a, const struct kops_tensor *out,
                           const struct kops_options *options, struct kops_result *ret_result,
                           struct kops_error *ret_error)
{
    return run_op(client, "square", a, 1, out, NULL, 0, options, ret_result, ret_error);
}

enum kops_code kops_gemm(kops_client *client, const struct kops_tensor *a, const struct kops_tensor *b,
                         const struct kops_tensor *out, const struct kops_gemm_params *params,
                         const struct kops_options *options, struct kops_result *ret_result,
                         struct kops_error *ret_error)
{
    static const struct kops_gemm_params defaults = KOPS_GEMM_INIT;
    const struct kops_gemm_params *p = params ? params : &defaults;
    const struct kops_tensor inputs[2] = {*a, *b};
    struct kops_attr attrs[5];
    size_t n = 0;

    if (p->trans_a)
        attrs[n++] = kops_attr_bool("trans_a", true);
    if (p->trans_b)
        attrs[n++] = kops_attr_bool("trans_b", true);
    if (p->alpha != 1.0)
        attrs[n++] = kops_attr_float("alpha", p->alpha);
    if (p->beta != 0.0)
        attrs[n++] = kops_attr_float("beta", p->beta);
    if (p->high || p->medium)
        attrs[n++] = kops_attr_text("precision", p->medium ? "medium" : "high");
    return run_op(client, "gemm", inputs, 2, out, attrs, n, options, ret_result, ret_error);
}

enum kops_code kops_linear(kops_client *client, const struct kops_tensor *a, const struct kops_tensor *b,
                           const struct kops_tensor *bias, const struct kops_tensor *out,
                           const struct kops_linear_params *params, const struct kops_options *options,
                           struct kops_result *ret_result, struct kops_error *ret_error)
{
    static const struct kops_linear_params defaults = KOPS_LINEAR_INIT;
    static const char *const activations[] = {[KOPS_ACTIVATION_NONE] = "none",
                                              [KOPS_ACTIVATION_RELU] = "relu",
                                              [KOPS_ACTIVATION_GELU] = "gelu",
                                              [KOPS_ACTIVATION_GELU_TANH] = "gelu_tanh"};
    const struct kops_linear_params *p = params ? params : &defaults;
    const struct kops_tensor inputs[3] = {*a, *b, *bias};
    struct kops_attr attrs[5];
    size_t n = 0;

    if (p->trans_a)
        attrs[n++] = kops_attr_bool("trans_a", true);
    if (p->trans_b)
        attrs[n++] = kops_attr_bool("trans_b", true);
    if (p->alpha != 1.0)
        attrs[n++] = kops_attr_float("alpha", p->alpha);
    if ((unsigned)p->activation > KOPS_ACTIVATION_GELU_TANH)
        return fail(ret_error, KOPS_ERR_BAD_ARGUMENT, "params->activation is %d, which is none", (int)p->activation);
    if (p->activation != KOPS_ACTIVATION_NONE)
        attrs[n++] = kops_attr_text("activation", activations[p->activation]);
    if (p->high || p->medium)
        attrs[n++] = kops_attr_text("precision", p->medium ? "medium" : "high");
    return run_op(client, "linear", inputs, 3, out, attrs, n, options, ret_result, ret_error);
}

enum kops_code kops_scaled_gemm(kops_client *client, const struct kops_tensor *a, const struct kops_tensor *b,
                                const struct kops_tensor *scale_a, const struct kops_tensor *scale_b,
                                const struct kops_tensor *out, const struct kops_scaled_gemm_params *params,
                                const struct kops_options *options, struct kops_result *ret_result,
                                struct kops_error *ret_error)
{
    static const struct kops_scaled_gemm_params defaults = KOPS_SCALED_GEMM_INIT;
    static const char *const precisions[] = {
        [KOPS_SUMS_HIGH] = "high", [KOPS_SUMS_HIGHEST] = "highest", [KOPS_SUMS_MEDIUM] = "medium"};
    const struct kops_scaled_gemm_params *p = params ? params : &defaults;
    const struct kops_tensor inputs[4] = {*a, *b, *scale_a, *scale_b};
    struct kops_attr attrs[3];
    size_t n = 0;

    if (p->trans_a)
        attrs[n++] = kops_attr_bool("trans_a", true);
    if (p->trans_b)
        attrs[n++] = kops_attr_bool("trans_b", true);
    if ((unsigned)p->sums > KOPS_SUMS_MEDIUM)
        return fail(ret_error, KOPS_ERR_BAD_ARGUMENT, "params->sums is %d, which is none of enum kops_sums",
                    (int)p->sums);
    if (p->sums != KOPS_SUMS_HIGH)
        attrs[n++] = kops_attr_text("precision", precisions[p->sums]);
    return run_op(client, "scaled_gemm", inputs, 4, out, attrs, n, options, ret_result, ret_error);
}
