/* The outcome of `kopsctl run`, as a table or as JSON. */
#include <math.h>
#include <stdio.h>

#include "base/json.h"
#include "base/table.h"
#include "run.h"
#include "view/result.h"

static double bytes(const struct run *r)
{
    double sum = 0;

    for (size_t i = 0; i <= r->n_inputs; i++)
        sum += (double)r->operands[i].bytes;
    return sum;
}

static double gb_per_s(const struct run *r, double us)
{
    return us > 0 ? bytes(r) / us * 1e-3 : (double)NAN;
}

static double gflop_per_s(const struct run *r, double us)
{
    return r->reference && r->reference->flops && us > 0 ? r->reference->flops(&r->c) / us * 1e-3 : (double)NAN;
}

static const char *verdict(const struct report *report)
{
    return !report ? "-" : report->wrong ? "WRONG" : "ok";
}

static void print_text(const struct run *r, const struct kops_result *result, const struct report *report)
{
    const double us = result_kernel_us(result);
    const bool by_bytes = !r->reference || r->reference->counts_bytes;
    const double rate = by_bytes ? gb_per_s(r, us) : gflop_per_s(r, us);
    char shapes[TABLE_CELL], out[TABLE_CELL];
    size_t n = 0;
    struct table t;

    for (size_t i = 0; i < r->n_inputs && n < sizeof(shapes); i++) {
        result_shape(&r->operands[i].tensor, out, sizeof(out));
        n += (size_t)snprintf(shapes + n, sizeof(shapes) - n, "%s%s", i ? "," : "", out);
    }
    table_init(&t, "lllllrrrl",
               (const char *const[]){"op", "shapes", "dtype", "variant", "device", "kernel us", "total us",
                                     by_bytes ? "GB/s" : "GFLOP/s", "check"});
    table_cell(&t, "%s", r->op->name);
    table_cell(&t, "%s", shapes);
    table_cell(&t, "%s", kops_dtype_name(r->c.dtype));
    table_cell(&t, "%s", *result->variant ? result->variant : "-");
    table_cell(&t, "%.12s", result->device);
    table_us(&t, us);
    table_us(&t, result->total_us);
    if (isnan(rate))
        table_cell(&t, "-");
    else
        table_cell(&t, "%.1f", rate);
    table_cell(&t, "%s", verdict(report));
    table_print(&t);
    result_print_more(result);
    conditions_pair_print(&r->conditions);
    if (report && report->wrong)
        printf("%llu of %llu elements are wrong; element %llu is %.17g, not %.17g (worst error %.3g x the tolerance)\n",
               (unsigned long long)report->wrong, (unsigned long long)report->checked, (unsigned long long)report->at,
               report->got, report->expected, report->worst);
    else if (report && report->checked < report->total)
        printf("checked a sample: %llu of %llu elements\n", (unsigned long long)report->checked,
               (unsigned long long)report->total);
}

static void print_json(const struct run *r, const struct kops_result *result, const double *samples,
                       const struct report *report)
{
    const double us = result_kernel_us(result);

    json_begin(NULL, '{');
    json_text("op", r->op->name);
    json_text("dtype", kops_dtype_name(r->c.dtype));
    json_begin("shapes", '[');
    for (size_t i = 0; i <= r->n_inputs; i++)
        json_ints(NULL, r->operands[i].tensor.shape, r->operands[i].tensor.rank);
    json_end(']');
    json_text("device", result->device);
    json_text("variant", result->variant);
    json_text("memory", r->args->device_memory ? "device" : "shared");
    json_number("gb_per_s", gb_per_s(r, us));
    json_number("gflop_per_s", gflop_per_s(r, us));
    result_json_timings(result, samples, r->args->repeat);
    conditions_pair_json(&r->conditions);
    if (report) {
        json_begin("check", '{');
        json_bool("ok", !report->wrong);
        json_uint("checked", report->checked);
        json_uint("elements", report->total);
        json_uint("wrong", report->wrong);
        json_number("worst", report->worst);
        json_end('}');
    }
    json_end('}');
}

void run_print(const struct ctl *ctl, const struct run *r, const struct kops_result *result, const double *samples,
               const struct report *report)
{
    if (ctl->json)
        print_json(r, result, samples, report);
    else
        print_text(r, result, report);
}
