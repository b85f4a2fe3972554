/* The built-in ops by name, and the small methods. */
#include <stdlib.h>

#include "base/fail.h"
#include "session/call.h"

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
    return kops_run(client, &request, ret_result, ret_error);
}

enum kops_code kops_add(kops_client *client, const struct kops_tensor *a, const struct kops_tensor *b,
                        const struct kops_tensor *out, const struct kops_options *options,
                        struct kops_result *ret_result, struct kops_error *ret_error)
{
    const struct kops_tensor inputs[2] = {*a, *b};

    return run_op(client, "add", inputs, 2, out, NULL, 0, options, ret_result, ret_error);
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
    if (p->high)
        attrs[n++] = kops_attr_text("precision", "high");
    return run_op(client, "gemm", inputs, 2, out, attrs, n, options, ret_result, ret_error);
}

enum kops_code kops_trim(kops_client *client, uint64_t *ret_bytes, struct kops_error *ret_error)
{
    struct kops_error unwanted, *e = ret_error ? ret_error : &unwanted;
    uint64_t bytes = 0;
    enum kops_code r;

    client_enter(client, e);
    r = session_call(client, wire_pack_trim, NULL, -1, wire_decode_trim, &bytes, client_deadline(client, 0),
                     SESSION_ATTEMPTS, e);
    client_leave(client);
    if (!r && ret_bytes)
        *ret_bytes = bytes;
    return r;
}

enum kops_code kops_stats_get(kops_client *client, const struct kops_stats_filter *filter,
                              struct kops_stats **ret_stats, struct kops_error *ret_error)
{
    static const struct kops_stats_filter everything;
    struct kops_error unwanted, *e = ret_error ? ret_error : &unwanted;
    struct wire_stats *s = calloc(1, sizeof(*s));
    enum kops_code r;

    if (!s)
        return fail(e, KOPS_ERR_NO_MEMORY, "there is no memory for statistics");
    client_enter(client, e);
    r = session_call(client, wire_pack_stats, filter ? filter : &everything, -1, wire_decode_stats, s,
                     client_deadline(client, 0), SESSION_ATTEMPTS, e);
    client_leave(client);
    if (r) {
        kops_stats_free(&s->stats);
        return r;
    }
    *ret_stats = &s->stats;
    return KOPS_OK;
}

struct kops_stats *kops_stats_free(struct kops_stats *stats)
{
    struct wire_stats *s = (struct wire_stats *)(void *)stats;

    if (s)
        arena_free(&s->arena);
    free(s);
    return NULL;
}
