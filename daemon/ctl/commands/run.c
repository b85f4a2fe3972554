/* kopsctl run: the command line and its meaning for the op, the run, its check and its outcome. */
#include "run.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/output.h"
#include "commands.h"
#include "data/data.h"

static const char usage[] =
    "Usage: kopsctl run OP [--shape SHAPES] [--dtype DTYPE] [OPTION]...\n\n"
    "Makes random data, runs the op, and prints how long it took.\n\n"
    "  -s, --shape SHAPES     the inputs' shapes, such as 640x640,640x333; one shape is that of all inputs\n"
    "                         (`scalar`: no dimensions), but for scales, which are scalars then. Default: 1048576,\n"
    "                         for products 1024x1024\n"
    "  -t, --dtype DTYPE      f32 (default, where the op takes it), f64, f16, bf16, f8_e4m3, f8_e5m2, or integers: "
    "i8,\n"
    "                         u8 to i64, u64\n"
    "  -d, --device DEVICE    UUID, or index of `kopsctl info`; default: the daemon's own\n"
    "  -n, --repeat N         timed executions (default 1)\n"
    "  -w, --warmup N         untimed executions before them (default 0)\n"
    "  -v, --variant NAME     force one kernel; `kopsctl ops OP` lists them\n"
    "  -a, --attr NAME=VALUE  an attribute of the op; may be repeated\n"
    "  -m, --memory WHERE     `shared` (default): shared memory, copied where a GPU runs the op; `device`: memory on\n"
    "                         the device (filled and checked through this machine's CUDA driver)\n"
    "  -c, --check            compare with a float64 reference, within the op's declared tolerance\n"
    "      --counters         in place of times, what the GPU's counters say while it runs alone on copies;\n"
    "                         docs/profiling.md explains the figures\n"
    "      --cache CACHES     with --counters: `cold` (default) or `warm`\n"
    "      --seed N           other random data\n"
    "      --out-shape SHAPE  the output's shape, for an op that kopsctl does not know\n"
    "      --json             print JSON, with every execution's time\n\n"
    "GB/s counts the bytes of all tensors once. Exit status 1: the run failed, or a result is wrong.\n";

enum ctl_exit run_take_dtype(void *into, const char *value)
{
    if (kops_dtype_parse(value, into))
        return CTL_OK;
    return ctl_usage("no dtype `%s`: f32, f64, f16, bf16, f8_e4m3, f8_e5m2, i8, u8, i16, u16, i32, u32, i64 or u64",
                     value);
}

enum ctl_exit run_take_attr(void *args, const char *value)
{
    struct run_args *a = args;

    if (a->n_attrs == RUN_MAX_ATTRS || !strchr(value, '='))
        return ctl_usage("--attr takes NAME=VALUE, not `%s` (and at most %d of them)", value, RUN_MAX_ATTRS);
    a->attr_texts[a->n_attrs++] = value;
    return CTL_OK;
}

enum ctl_exit run_take_op(struct run_args *a, int argc, char **argv)
{
    if (optind == argc)
        return ctl_usage("%s takes an op; `kopsctl ops` lists them", argv[0]);
    if (optind + 1 < argc)
        return ctl_usage("%s takes one op; `%s` is too much", argv[0], argv[optind + 1]);
    a->op_name = argv[optind];
    return CTL_OK;
}

/* ---- operands ---- */

bool operand_measure(struct operand *o)
{
    const size_t size = kops_dtype_size(o->tensor.dtype);
    const int64_t count = kops_tensor_count(&o->tensor);

    if (count < 0 || (uint64_t)count > (SIZE_MAX >> 1) / size)
        return false;
    o->bytes = (size_t)count * size;
    return true;
}

enum ctl_exit operand_make(struct ctl *ctl, struct operand *o, bool device_memory, const char *device)
{
    enum kops_code code;

    if (!o->bytes)
        return CTL_OK;
    if (device_memory)
        code = kops_buffer_alloc(ctl->client, o->bytes, device, &o->buffer, &ctl->error);
    else
        code = kops_buffer_alloc_shared(ctl->client, o->bytes, &o->buffer, &ctl->error);
    if (code)
        return ctl_failed("making a buffer", &ctl->error);
    o->tensor.buffer = o->buffer;
    o->host = kops_buffer_data(o->buffer);
    if (!o->host)
        o->host = o->copy = calloc(1, o->bytes);
    return o->host ? CTL_OK : ctl_no_memory(o->bytes);
}

void operand_free(struct operand *o)
{
    free(o->copy);
    kops_buffer_release(o->buffer);
}

enum kops_code operand_push(struct operand *o, struct kops_error *error)
{
    return o->copy ? kops_buffer_write(o->buffer, 0, o->copy, o->bytes, error) : KOPS_OK;
}

enum kops_code operand_pull(struct operand *o, struct kops_error *error)
{
    return o->copy ? kops_buffer_read(o->buffer, 0, o->copy, o->bytes, error) : KOPS_OK;
}

/* ---- shapes ---- */

/* "640x640" or "scalar". */
static bool parse_shape(const char *text, size_t length, struct kops_tensor *ret)
{
    char part[256];
    char *next = part;

    ret->rank = 0;
    if (length >= sizeof(part))
        return false;
    memcpy(part, text, length);
    part[length] = 0;
    if (!strcmp(part, "scalar"))
        return true;
    while (next) {
        char *dimension = strsep(&next, "x");
        uint64_t size;

        if (ret->rank == KOPS_MAX_RANK || !ctl_parse_uint(dimension, 0, INT64_MAX, &size))
            return false;
        ret->shape[ret->rank++] = (int64_t)size;
    }
    return true;
}

static bool has_name(const char *const *names, const char *name)
{
    while (*names && strcmp(*names, name) != 0)
        names++;
    return *names != NULL;
}

/* Sets the dtype of an input; true: the input has a dtype of its own, as scales have. */
static bool set_own_dtype(const struct run *r, size_t input, struct kops_tensor *t)
{
    const struct kops_op_in_dtypes *const *own = r->op->in_dtypes;

    t->dtype = r->c.dtype;
    while (own && *own && strcmp((*own)->input, r->op->inputs[input]) != 0)
        own++;
    if (!own || !*own || has_name((*own)->names, kops_dtype_name(t->dtype)))
        return false;
    return kops_dtype_parse((*own)->names[0], &t->dtype);
}

static enum ctl_exit parse_input_shapes(struct run *r, const char *text)
{
    size_t n = 0;

    for (const char *at = text; at; n++) {
        const size_t length = strcspn(at, ",");

        if (n == r->n_inputs)
            return ctl_usage("%s takes %zu inputs, --shape has more", r->op->name, r->n_inputs);
        set_own_dtype(r, n, &r->operands[n].tensor);
        if (!parse_shape(at, length, &r->operands[n].tensor))
            return ctl_usage("`%.*s` is no shape such as 640x640 (at most %d dimensions)", (int)length, at,
                             KOPS_MAX_RANK);
        at = at[length] ? at + length + 1 : NULL;
    }
    if (n == 1)
        for (; n < r->n_inputs; n++) {
            r->operands[n].tensor = r->operands[0].tensor;
            if (set_own_dtype(r, n, &r->operands[n].tensor))
                r->operands[n].tensor.rank = 0;
        }
    if (n < r->n_inputs)
        return ctl_usage("%s takes %zu inputs, --shape has %zu", r->op->name, r->n_inputs, n);
    return CTL_OK;
}

static enum ctl_exit resolve_shapes(struct run *r)
{
    const char *text = r->args->shapes ? r->args->shapes : r->reference ? r->reference->default_shape : NULL;
    struct kops_tensor *out = &r->operands[r->n_inputs].tensor;
    const char *why = NULL;
    enum ctl_exit status;

    if (!text)
        return ctl_usage("--shape is needed for %s", r->op->name);
    r->c.dtype = r->args->dtype;
    if (r->c.dtype == KOPS_F32 && !has_name(r->op->dtypes, "f32")) /* then the first that the op takes */
        kops_dtype_parse(r->op->dtypes[0], &r->c.dtype);
    if (r->op->in_dtypes && *r->op->in_dtypes && !has_name(r->op->dtypes, kops_dtype_name(r->c.dtype)))
        return ctl_usage("--dtype: %s does not take %s; `kopsctl ops %s` lists what it takes", r->op->name,
                         kops_dtype_name(r->c.dtype), r->op->name);
    status = parse_input_shapes(r, text);
    if (status)
        return status;
    out->dtype = r->c.dtype;
    for (const struct kops_op_out_dtypes *const *d = r->op->out_dtypes; *d; d++)
        if (!strcmp((*d)->dtype, kops_dtype_name(r->c.dtype)) && !has_name((*d)->names, (*d)->dtype))
            kops_dtype_parse((*d)->names[0], &out->dtype); /* the first that it may have beside the inputs' */
    r->c.n_inputs = r->n_inputs;
    for (size_t i = 0; i < r->n_inputs; i++)
        r->c.inputs[i] = r->operands[i].tensor;
    if (r->args->out_shape) {
        if (!parse_shape(r->args->out_shape, strlen(r->args->out_shape), out))
            return ctl_usage("`%s` is no shape such as 640x640", r->args->out_shape);
    } else if (!r->reference) {
        return ctl_usage("--out-shape is needed for %s, which this kopsctl does not know", r->op->name);
    } else if (!r->reference->shape(&r->c, &why)) {
        return ctl_usage("--shape %s: %s", text, why);
    } else {
        out->rank = r->c.out.rank;
        memcpy(out->shape, r->c.out.shape, sizeof(out->shape));
    }
    r->c.out = *out;
    for (size_t i = 0; i <= r->n_inputs; i++)
        if (!operand_measure(&r->operands[i]))
            return ctl_usage("--shape %s: too many elements", text);
    return CTL_OK;
}

static bool parse_value(const char *text, struct kops_attr *a)
{
    char *end = NULL;

    switch (a->type) {
    case KOPS_ATTR_BOOL:
        return ctl_parse_bool(text, &a->value.boolean);
    case KOPS_ATTR_TEXT:
        a->value.text = text;
        return true;
    case KOPS_ATTR_INT:
        a->value.integer = strtoll(text, &end, 10);
        break;
    case KOPS_ATTR_FLOAT:
        a->value.real = strtod(text, &end);
        break;
    }
    return *text && !*end;
}

/* Tells the reference what it needs to know. */
static void note_attr(struct reference_case *c, const struct kops_attr *a)
{
    if (!strcmp(a->name, "trans_a"))
        c->trans_a = a->value.boolean;
    else if (!strcmp(a->name, "trans_b"))
        c->trans_b = a->value.boolean;
    else if (!strcmp(a->name, "alpha"))
        c->alpha = a->value.real;
    else if (!strcmp(a->name, "beta"))
        c->beta = a->value.real;
    else if (!strcmp(a->name, "precision"))
        c->precision = a->value.text;
    else if (!strcmp(a->name, "activation"))
        c->activation = a->value.text;
}

static enum ctl_exit resolve_attrs(struct run *r)
{
    r->c.alpha = 1;
    r->c.precision = "";
    for (size_t i = 0; i < r->args->n_attrs; i++) {
        const char *text = r->args->attr_texts[i], *equals = strchr(text, '=');
        const struct kops_op_attr *const *declared = r->op->attrs;

        snprintf(r->names[i], sizeof(r->names[i]), "%.*s", (int)(equals - text), text);
        while (*declared && strcmp((*declared)->name, r->names[i]) != 0)
            declared++;
        if (!*declared)
            return ctl_usage("%s has no attribute `%s`; `kopsctl ops %s` lists them", r->op->name, r->names[i],
                             r->op->name);
        r->attrs[i] = (struct kops_attr){.name = r->names[i], .type = (*declared)->fallback.type};
        if (!parse_value(equals + 1, &r->attrs[i]))
            return ctl_usage("--attr %s: no such value", text);
        note_attr(&r->c, &r->attrs[i]);
    }
    return CTL_OK;
}

enum ctl_exit run_resolve(struct ctl *ctl, struct run *r)
{
    enum ctl_exit status;

    r->op = kops_info_op(ctl->client, r->args->op_name);
    if (!r->op)
        return ctl_usage("the daemon has no op `%s`; `kopsctl ops` lists them", r->args->op_name);
    r->reference = reference_find(r->args->op_name);
    while (r->op->inputs[r->n_inputs])
        r->n_inputs++;
    if (r->n_inputs > CASE_MAX_INPUTS || !r->op->outputs[0] || r->op->outputs[1])
        return ctl_usage("kopsctl runs ops with up to %d inputs and one output", CASE_MAX_INPUTS);
    if (r->args->check && !r->reference)
        return ctl_usage("--check: this kopsctl has no reference for %s", r->args->op_name);
    status = resolve_attrs(r);
    return status ? status : resolve_shapes(r);
}

struct kops_request run_make_request(const struct run *r, double *samples)
{
    return (struct kops_request){
        .op = r->op->name,
        .inputs = r->c.inputs,
        .n_inputs = r->n_inputs,
        .outputs = &r->operands[r->n_inputs].tensor,
        .n_outputs = 1,
        .attrs = r->attrs,
        .n_attrs = r->args->n_attrs,
        .options = {.device = r->args->device_memory ? NULL : r->args->device,
                    .variant = r->args->variant,
                    .warmup = (uint32_t)r->args->warmup,
                    .repeat = (uint32_t)r->args->repeat,
                    .samples = samples,
                    .samples_room = r->args->repeat},
    };
}

/* Writes random data to the operand's memory and `host`. Device memory that cannot be written here stays zero, which is
 * good enough to measure. */
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

static enum ctl_exit make_operands(struct ctl *ctl, struct run *r)
{
    struct operand *out = &r->operands[r->n_inputs];

    for (size_t i = 0; i <= r->n_inputs; i++) {
        struct operand *o = &r->operands[i];
        enum ctl_exit status = operand_make(ctl, o, r->args->device_memory, r->args->device);

        if (!status && o->bytes)
            status = fill(r, o, r->args->seed * 1000 + i);
        if (status)
            return status;
        if (i < r->n_inputs) {
            r->c.inputs[i] = o->tensor;
            r->c.data[i] = o->host;
        }
    }
    if (r->args->check && r->c.beta != 0 && out->bytes) {
        r->before = malloc(out->bytes);
        if (!r->before)
            return ctl_no_memory(out->bytes);
        memcpy(r->before, out->host, out->bytes);
    }
    return CTL_OK;
}

/* ---- running and checking ---- */

static enum ctl_exit execute(struct ctl *ctl, struct run *r, double *samples, struct kops_result *ret)
{
    const struct kops_request request = run_make_request(r, samples);

    if (r->args->repeat > 1)
        conditions_read(ctl->client, r->args->device, &r->conditions.before);
    if (kops_run(ctl->client, &request, ret, &ctl->error))
        return ctl_failed(r->op->name, &ctl->error);
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
    r->c.before = r->before;
    r->c.after = out->host;
    reference_check(r->reference, &r->c, &tolerance, ret);
    return CTL_OK;
}

/* ---- the outcome ---- */

/* In GB/s, or GFLOP/s; NAN: not known. */
static double rate_of(const struct run *r, double us, bool by_bytes)
{
    double amount = 0;

    for (size_t i = 0; by_bytes && i <= r->n_inputs; i++)
        amount += (double)r->operands[i].bytes;
    if (!by_bytes)
        amount = r->reference && r->reference->flops ? r->reference->flops(&r->c) : (double)NAN;
    return us > 0 ? amount / us * 1e-3 : (double)NAN;
}

static void print_text(const struct run *r, const struct kops_result *result, const struct report *report)
{
    const double us = result_kernel_us(result);
    const bool by_bytes = !r->reference || r->reference->counts_bytes;
    const double rate = rate_of(r, us, by_bytes);
    const char *shapes = "";
    struct table t;

    for (size_t i = 0; i < r->n_inputs; i++)
        shapes = text_format("%s%s%s", shapes, i ? "," : "",
                             text_shape(r->operands[i].tensor.shape, r->operands[i].tensor.rank));
    table_init(&t, by_bytes ? "op\tshapes\tdtype\tvariant\tdevice\t>kernel us\t>total us\t>GB/s\tcheck"
                            : "op\tshapes\tdtype\tvariant\tdevice\t>kernel us\t>total us\t>GFLOP/s\tcheck");
    table_row(&t, "%s\t%s\t%s\t%s\t%.12s\t%s\t%s\t%s\t%s", r->op->name, shapes, kops_dtype_name(r->c.dtype),
              *result->variant ? result->variant : "-", result->device, text_us(us), text_us(result->total_us),
              isnan(rate) ? "-" : text_format("%.1f", rate),
              !report         ? "-"
              : report->wrong ? "WRONG"
                              : "ok");
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
    json_number("gb_per_s", rate_of(r, us, true));
    json_number("gflop_per_s", rate_of(r, us, false));
    result_json_timings(result, samples, r->args->repeat);
    conditions_pair_json(&r->conditions);
    if (report)
        JSON_MAP("check", json_bool("ok", !report->wrong), json_uint("checked", report->checked),
                 json_uint("elements", report->total), json_uint("wrong", report->wrong),
                 json_number("worst", report->worst));
    json_end('}');
}

/* ---- the command ---- */

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
    if (!status && ctl->json)
        print_json(r, &result, samples, r->args->check ? &report : NULL);
    else if (!status)
        print_text(r, &result, r->args->check ? &report : NULL);
    free(samples);
    return !status && report.wrong ? CTL_FAILED : status;
}

enum ctl_exit ctl_run(struct ctl *ctl, int argc, char **argv)
{
    struct run_args args = {.dtype = KOPS_F32, .repeat = 1, .seed = 1};
    const struct ctl_option options[] = {
        RUN_PROBLEM_OPTIONS(&args),
        {"--repeat", 'n', OPTION_NUMBER, &args.repeat, "takes a number from 1 on", 1, UINT32_MAX},
        {"--warmup", 'w', OPTION_NUMBER, &args.warmup, "takes a number", 0, UINT32_MAX},
        {"--variant", 'v', OPTION_TEXT, &args.variant},
        {"--memory", 'm', OPTION_WORD, &args.device_memory, RUN_MEMORY},
        {"--check", 'c', OPTION_FLAG, &args.check},
        {"--seed", 0, OPTION_NUMBER, &args.seed, "takes a number"},
        {"--counters", 0, OPTION_FLAG, &args.counters},
        {"--cache", 0, OPTION_WORD, &args.caches, COUNTERS_CACHES},
        {0}};
    struct run r = {.args = &args};
    struct kops_counters *counters = NULL;
    struct kops_request request;
    enum ctl_exit status;
    enum kops_code code;

    if (!ctl_parse(ctl, argc, argv, usage, options, argc, &status))
        return status;
    status = run_take_op(&args, argc, argv);
    if (!status)
        status = ctl_connect(ctl);
    if (status)
        return status;
    status = run_resolve(ctl, &r);
    if (!status)
        status = make_operands(ctl, &r);
    if (!status && !args.counters)
        status = measure(ctl, &r);
    else if (!status) {
        request = run_make_request(&r, NULL);
        code = kops_counters_run(ctl->client, &request, args.caches, &counters, &ctl->error);
        status = counters_show(ctl, r.op->name, code, counters, &ctl->error);
    }
    for (size_t i = 0; i <= r.n_inputs; i++)
        operand_free(&r.operands[i]);
    free(r.before);
    conditions_pair_free(&r.conditions);
    return status;
}
