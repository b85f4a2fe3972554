/* kopsctl run */
#include "run.h"

#include <stdlib.h>
#include <string.h>

#include "base/complain.h"
#include "commands.h"
#include "data/data.h"
#include "view/counters.h"

/* ---- memory ---- */

/* Random data in the operand's memory; `host` afterwards has them, too. Device memory that cannot be written here stays
 * zero, which is good enough to measure. */
static enum ctl_exit fill(struct run *r, struct operand *o, uint64_t seed)
{
    struct kops_error error;
    enum kops_code code;

    data_fill(o->host, (size_t)kops_tensor_count(&o->tensor), o->tensor.dtype, seed);
    code = operand_push(o, &error);
    if (code == KOPS_ERR_NO_CUDA && !r->args->check) {
        if (!r->zeros)
            ctl_note("the data are zeros (%s)", error.message);
        r->zeros = true;
        memset(o->host, 0, o->bytes);
        return CTL_OK;
    }
    return code ? ctl_failed("filling device memory", &error) : CTL_OK;
}

static enum ctl_exit make_operand(struct ctl *ctl, struct run *r, size_t i)
{
    struct operand *o = &r->operands[i];
    enum ctl_exit status = operand_make(ctl, o, r->args->device_memory, r->args->device);

    return status || !o->bytes ? status : fill(r, o, r->args->seed * 1000 + i);
}

static enum ctl_exit make_operands(struct ctl *ctl, struct run *r)
{
    struct operand *out = &r->operands[r->n_inputs];

    for (size_t i = 0; i <= r->n_inputs; i++) {
        enum ctl_exit status = make_operand(ctl, r, i);

        if (status)
            return status;
    }
    if (r->args->check && r->c.beta != 0 && out->bytes) {
        r->before = malloc(out->bytes);
        if (!r->before)
            return ctl_no_memory(out->bytes);
        memcpy(r->before, out->host, out->bytes);
    }
    return CTL_OK;
}

static void release_operands(struct run *r)
{
    for (size_t i = 0; i <= r->n_inputs; i++)
        operand_free(&r->operands[i]);
    free(r->before);
    conditions_pair_free(&r->conditions);
}

/* ---- running and checking ---- */

static enum ctl_exit count(struct ctl *ctl, const struct run *r)
{
    struct kops_tensor inputs[CASE_MAX_INPUTS];
    const struct kops_request request = run_make_request(r, inputs, NULL);
    struct kops_counters *counters;
    struct kops_error error;

    if (kops_counters_run(ctl->client, &request, r->args->caches, &counters, &error))
        return ctl_failed(r->op->name, &error);
    if (ctl->json)
        counters_json(NULL, counters);
    else
        counters_print(counters);
    kops_counters_free(counters);
    return CTL_OK;
}

static enum ctl_exit execute(struct ctl *ctl, struct run *r, double *samples, struct kops_result *ret)
{
    struct kops_tensor inputs[CASE_MAX_INPUTS];
    const struct kops_request request = run_make_request(r, inputs, samples);
    struct kops_error error;

    if (r->args->repeat > 1)
        conditions_read(ctl->client, r->args->device, &r->conditions.before);
    if (kops_run(ctl->client, &request, ret, &error))
        return ctl_failed(r->op->name, &error);
    if (r->args->repeat > 1)
        conditions_read(ctl->client, ret->device, &r->conditions.after);
    return CTL_OK;
}

static enum ctl_exit check(struct run *r, struct report *ret)
{
    struct operand *out = &r->operands[r->n_inputs];
    struct tolerance tolerance;
    struct kops_error error;

    if (!reference_tolerance(r->op->name, out->tensor.dtype, r->c.precision, &tolerance))
        return ctl_usage("--check: %s declares no tolerance for %s", r->op->name, kops_dtype_name(out->tensor.dtype));
    if (operand_pull(out, &error))
        return ctl_failed("reading device memory", &error);
    for (size_t i = 0; i < r->n_inputs; i++)
        r->c.data[i] = r->operands[i].host;
    r->c.before = r->before;
    r->c.after = out->host;
    r->reference->check(&r->c, &tolerance, ret);
    return CTL_OK;
}

static enum ctl_exit measure(struct ctl *ctl, struct run *r)
{
    double *samples = malloc(r->args->repeat * sizeof(*samples));
    struct report report = {0};
    struct kops_result result;
    enum ctl_exit status;

    if (!samples)
        return ctl_no_memory(r->args->repeat * sizeof(*samples));
    status = execute(ctl, r, samples, &result);
    if (!status && r->args->check)
        status = check(r, &report);
    if (!status) {
        run_print(ctl, r, &result, samples, r->args->check ? &report : NULL);
        status = report.wrong ? CTL_FAILED : CTL_OK;
    }
    free(samples);
    return status;
}

enum ctl_exit ctl_run(struct ctl *ctl, int argc, char **argv)
{
    struct run_args args;
    struct run r = {.args = &args};
    enum ctl_exit status;
    int end = run_parse(ctl, argc, argv, &args);

    if (end >= 0)
        return (enum ctl_exit)end;
    status = ctl_connect(ctl);
    if (status)
        return status;
    status = run_resolve(ctl, &r);
    if (!status)
        status = make_operands(ctl, &r);
    if (!status)
        status = args.counters ? count(ctl, &r) : measure(ctl, &r);
    release_operands(&r);
    return status;
}
