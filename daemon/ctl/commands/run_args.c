/* The command line of `kopsctl run`, and its meaning for the op. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/complain.h"
#include "base/options.h"
#include "run.h"
#include "view/counters.h"

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

static bool parse_memory(const char *text, bool *ret_device)
{
    *ret_device = !strcmp(text, "device");
    return *ret_device || !strcmp(text, "shared");
}

int run_take_option(struct run_args *a, int option)
{
    switch (option) {
    case 's':
        a->shapes = optarg;
        return -1;
    case 'O':
        a->out_shape = optarg;
        return -1;
    case 't':
        if (kops_dtype_parse(optarg, &a->dtype))
            return -1;
        return (int)ctl_usage(
            "no dtype `%s`: f32, f64, f16, bf16, f8_e4m3, f8_e5m2, i8, u8, i16, u16, i32, u32, i64 or u64", optarg);
    case 'd':
        a->device = optarg;
        return -1;
    case 'n':
        if (ctl_parse_uint(optarg, 1, UINT32_MAX, &a->repeat))
            return -1;
        return (int)ctl_usage("--repeat takes a number from 1 on, not `%s`", optarg);
    case 'w':
        if (ctl_parse_uint(optarg, 0, UINT32_MAX, &a->warmup))
            return -1;
        return (int)ctl_usage("--warmup takes a number, not `%s`", optarg);
    case 'v':
        a->variant = optarg;
        return -1;
    case 'a':
        if (a->n_attrs == RUN_MAX_ATTRS || !strchr(optarg, '='))
            return (int)ctl_usage("--attr takes NAME=VALUE, not `%s` (and at most %d of them)", optarg, RUN_MAX_ATTRS);
        a->attr_texts[a->n_attrs++] = optarg;
        return -1;
    case 'm':
        if (parse_memory(optarg, &a->device_memory))
            return -1;
        return (int)ctl_usage("--memory is `shared` or `device`, not `%s`", optarg);
    case 'c':
        a->check = true;
        return -1;
    case 'C':
        a->counters = true;
        return -1;
    case 'H':
        if (counters_parse(optarg, &a->caches))
            return -1;
        return (int)ctl_usage("--cache is `cold` or `warm`, not `%s`", optarg);
    default: /* 'e' */
        if (ctl_parse_uint(optarg, 0, UINT64_MAX, &a->seed))
            return -1;
        return (int)ctl_usage("--seed takes a number, not `%s`", optarg);
    }
}

int run_take_op(struct run_args *a, int argc, char **argv)
{
    if (optind == argc)
        return (int)ctl_usage("%s takes an op; `kopsctl ops` lists them", argv[0]);
    if (optind + 1 < argc)
        return (int)ctl_usage("%s takes one op; `%s` is too much", argv[0], argv[optind + 1]);
    a->op_name = argv[optind];
    return -1;
}

int run_parse(struct ctl *ctl, int argc, char **argv, struct run_args *ret)
{
    static const struct option options[] = {
        {"shape", required_argument, NULL, 's'},     {"dtype", required_argument, NULL, 't'},
        {"device", required_argument, NULL, 'd'},    {"repeat", required_argument, NULL, 'n'},
        {"warmup", required_argument, NULL, 'w'},    {"variant", required_argument, NULL, 'v'},
        {"attr", required_argument, NULL, 'a'},      {"memory", required_argument, NULL, 'm'},
        {"check", no_argument, NULL, 'c'},           {"seed", required_argument, NULL, 'e'},
        {"counters", no_argument, NULL, 'C'},        {"cache", required_argument, NULL, 'H'},
        {"out-shape", required_argument, NULL, 'O'}, CTL_COMMON_OPTIONS};
    int option;

    *ret = (struct run_args){.dtype = KOPS_F32, .repeat = 1, .seed = 1};
    while ((option = getopt_long(argc, argv, "s:t:d:n:w:v:a:m:ch", options, NULL)) != -1) {
        int end = strchr("stdnwvamcCHeO", option) ? run_take_option(ret, option) : ctl_common(ctl, option, usage);

        if (end >= 0)
            return end;
    }
    return run_take_op(ret, argc, argv);
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

/* The dtype of the inputs: as asked for, or f32, where the op takes it. */
static enum kops_dtype dtype_of(const struct run *r)
{
    enum kops_dtype first;

    if (r->args->dtype != KOPS_F32 || has_name(r->op->dtypes, "f32") || !kops_dtype_parse(r->op->dtypes[0], &first))
        return r->args->dtype;
    return first;
}

/* Sets the dtype of an input; true: it has one of its own, that of scales. */
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

/* The inputs' dtype, or the first one that the output may have beside it. */
static enum kops_dtype out_dtype_of(const struct run *r)
{
    enum kops_dtype dtype = r->c.dtype;

    for (const struct kops_op_out_dtypes *const *d = r->op->out_dtypes; *d; d++)
        if (!strcmp((*d)->dtype, kops_dtype_name(r->c.dtype)) && !has_name((*d)->names, (*d)->dtype))
            kops_dtype_parse((*d)->names[0], &dtype);
    return dtype;
}

static enum ctl_exit parse_input_shapes(struct run *r, const char *text)
{
    size_t n = 0;

    for (const char *at = text;;) {
        size_t length = strcspn(at, ",");

        if (n == r->n_inputs)
            return ctl_usage("%s takes %zu inputs, --shape has more", r->op->name, r->n_inputs);
        set_own_dtype(r, n, &r->operands[n].tensor);
        if (!parse_shape(at, length, &r->operands[n].tensor))
            return ctl_usage("`%.*s` is no shape such as 640x640 (at most %d dimensions)", (int)length, at,
                             KOPS_MAX_RANK);
        n++;
        if (!at[length])
            break;
        at += length + 1;
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
    r->c.dtype = dtype_of(r);
    if (r->op->in_dtypes && *r->op->in_dtypes && !has_name(r->op->dtypes, kops_dtype_name(r->c.dtype)))
        return ctl_usage("--dtype: %s does not take %s; `kopsctl ops %s` lists what it takes", r->op->name,
                         kops_dtype_name(r->c.dtype), r->op->name);
    status = parse_input_shapes(r, text);
    if (status)
        return status;
    out->dtype = out_dtype_of(r);
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

/* ---- attributes ---- */

static const struct kops_op_attr *find_attr(const struct kops_op *op, const char *name)
{
    for (const struct kops_op_attr *const *a = op->attrs; *a; a++)
        if (!strcmp((*a)->name, name))
            return *a;
    return NULL;
}

static bool parse_bool(const char *text, bool *ret)
{
    *ret = !strcmp(text, "true") || !strcmp(text, "1");
    return *ret || !strcmp(text, "false") || !strcmp(text, "0");
}

static bool parse_value(const struct kops_op_attr *declared, const char *name, const char *text, struct kops_attr *ret)
{
    char *end = NULL;
    bool boolean;

    switch (declared->fallback.type) {
    case KOPS_ATTR_BOOL:
        if (!parse_bool(text, &boolean))
            return false;
        *ret = kops_attr_bool(name, boolean);
        return true;
    case KOPS_ATTR_INT:
        *ret = kops_attr_int(name, strtoll(text, &end, 10));
        return *text && !*end;
    case KOPS_ATTR_FLOAT:
        *ret = kops_attr_float(name, strtod(text, &end));
        return *text && !*end;
    case KOPS_ATTR_TEXT:
        *ret = kops_attr_text(name, text);
        return true;
    }
    return false;
}

/* What the reference needs to know. */
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
        const struct kops_op_attr *declared;

        snprintf(r->names[i], sizeof(r->names[i]), "%.*s", (int)(equals - text), text);
        declared = find_attr(r->op, r->names[i]);
        if (!declared)
            return ctl_usage("%s has no attribute `%s`; `kopsctl ops %s` lists them", r->op->name, r->names[i],
                             r->op->name);
        if (!parse_value(declared, r->names[i], equals + 1, &r->attrs[i]))
            return ctl_usage("--attr %s: no such value", text);
        note_attr(&r->c, &r->attrs[i]);
    }
    return CTL_OK;
}

/* ---- both ---- */

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

struct kops_request run_make_request(const struct run *r, struct kops_tensor *inputs, double *samples)
{
    for (size_t i = 0; i < r->n_inputs; i++)
        inputs[i] = r->operands[i].tensor;
    return (struct kops_request){
        .op = r->op->name,
        .inputs = inputs,
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
