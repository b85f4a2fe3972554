/* A --param of `kopsctl launch`: parsed, its shape and value found, its data made. */
#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/complain.h"
#include "base/options.h"
#include "data/data.h"
#include "launch.h"
#include "proto/generated/kernels.h"

static char *trim(char *text)
{
    size_t length;

    text += strspn(text, " \t");
    length = strlen(text);
    while (length && isspace((unsigned char)text[length - 1]))
        text[--length] = 0;
    return text;
}

static bool is_scalar(const struct launch_param *p)
{
    return p->declared.kind == KOPS_PARAM_SCALAR;
}

static bool is_float(enum kops_dtype dtype)
{
    return dtype <= KOPS_BF16 || dtype == KOPS_F8_E4M3 || dtype == KOPS_F8_E5M2;
}

/* What lies between the type and the value: cuts "[dims]" off, and the name. False: there is no name. */
static bool cut_name(struct launch_param *p, char *text)
{
    char *bracket = strchr(text, '['), *end;

    if (bracket) {
        end = strrchr(bracket, ']');
        if (!end || *trim(end + 1))
            return false;
        *end = *bracket = 0;
        p->dims = trim(bracket + 1);
        text = trim(text);
    }
    end = text + strlen(text);
    while (end > text && (isalnum((unsigned char)end[-1]) || end[-1] == '_'))
        end--;
    if (strlen(end) >= sizeof(p->name))
        return false;
    memcpy(p->name, end, strlen(end) + 1);
    p->declared.name = p->name;
    *end = 0;
    return *p->name && !isdigit((unsigned char)*p->name);
}

static bool is_qualifier(const char *text)
{
#define X(word) !strcmp(text, word) ||
    return KERNELS_QUALIFIERS(X) false;
#undef X
}

/* Words of a type with one space between them, without qualifiers and stars. */
static bool cut_type(char *text, char *ret, size_t size, bool *ret_const, bool *ret_pointer)
{
    char *next = text, *word;
    size_t n = 0;

    *ret = 0;
    for (char *c = text; *c; c++) {
        *ret_pointer |= *c == '*';
        if (*c == '*')
            *c = ' ';
    }
    while ((word = strsep(&next, " \t"))) {
        *ret_const |= !strcmp(word, "const");
        if (*word && !is_qualifier(word))
            n += (size_t)snprintf(ret + n, n < size ? size - n : 0, "%s%s", n ? " " : "", word);
        if (n >= size)
            return false;
    }
    return true;
}

enum ctl_exit launch_param_parse(struct launch_param *p, const char *text)
{
    bool is_const = false, pointer = false;
    char type[64], *head, *equals;

    if (strlen(text) >= sizeof(p->text))
        return ctl_usage("--param is longer than %zu characters", sizeof(p->text));
    memcpy(p->text, text, strlen(text) + 1);
    equals = strchr(p->text, '=');
    if (equals) {
        *equals = 0;
        p->value = trim(equals + 1);
    }
    head = launch_map_cut(p, trim(p->text));
    if (!head)
        return ctl_usage("--param takes tma TYPE* NAME[SHAPE] box[SIZES] with swizzle, interleave, l2 and a number of "
                         "bytes, steps[SIZES], fill nan, as tf32, not `%s`",
                         text);
    if (!cut_name(p, head) || !cut_type(head, type, sizeof(type), &is_const, &pointer))
        return ctl_usage("--param takes TYPE NAME=NUMBER or TYPE* NAME[SHAPE], not `%s`", text);
    if (!kops_dtype_parse(type, &p->declared.dtype))
        return ctl_usage("--param %s: no type `%s` is known here; f32, i64, bf16 ... will do as well", text, type);
    p->declared.kind = !pointer   ? KOPS_PARAM_SCALAR
                       : is_const ? KOPS_PARAM_IN
                       : p->value ? KOPS_PARAM_INOUT
                                  : KOPS_PARAM_OUT;
    if (!pointer && (p->dims || !p->value))
        return ctl_usage("--param %s: a number is TYPE NAME=NUMBER", text);
    if (pointer && !p->dims && (!p->value || strcmp(p->value, "null") != 0))
        return ctl_usage("--param %s: a tensor has a shape in brackets", text);
    return CTL_OK;
}

/* ---- scalars and shapes ---- */

static bool parse_scalar(struct launch_param *p)
{
    char *end = NULL;

    errno = 0;
    if (p->declared.dtype == KOPS_BOOL) {
        const bool yes = !strcmp(p->value, "true") || !strcmp(p->value, "1");

        p->argument = kops_arg_bool(yes);
        return yes || !strcmp(p->value, "false") || !strcmp(p->value, "0");
    }
    if (is_float(p->declared.dtype))
        p->argument = kops_arg_float(strtod(p->value, &end));
    else if (p->declared.dtype == KOPS_U64 && *p->value != '-')
        p->argument = kops_arg_uint(strtoull(p->value, &end, 0));
    else
        p->argument = kops_arg_int(strtoll(p->value, &end, 0));
    return *p->value && !*end && !errno;
}

/* A number, or the name of a scalar parameter that is an integer. */
static bool dimension(const struct launch *l, const char *text, int64_t *ret)
{
    uint64_t value;

    if (ctl_parse_uint(text, 0, INT64_MAX, &value)) {
        *ret = (int64_t)value;
        return true;
    }
    for (size_t i = 0; i < l->n_params; i++) {
        const struct launch_param *p = &l->params[i];

        if (is_scalar(p) && !is_float(p->declared.dtype) && !strcmp(p->name, text)) {
            *ret = p->argument.value.integer;
            return *ret >= 0;
        }
    }
    return false;
}

static bool parse_shape(const struct launch *l, struct launch_param *p)
{
    struct kops_tensor *t = &p->operand.tensor;
    const char *separator = strspn(p->dims, "0123456789x") == strlen(p->dims) ? "x" : ",";
    char copy[LAUNCH_TEXT], *next = copy, *part;

    t->dtype = p->declared.dtype;
    memcpy(copy, p->dims, strlen(p->dims) + 1);
    if (!strcmp(copy, "scalar"))
        return true;
    while ((part = strsep(&next, separator)))
        if (t->rank == KOPS_MAX_RANK || !dimension(l, trim(part), &t->shape[t->rank++]))
            return false;
    return true;
}

enum ctl_exit launch_params_resolve(struct launch *l)
{
    for (size_t i = 0; i < l->n_params; i++)
        if (is_scalar(&l->params[i]) && !parse_scalar(&l->params[i]))
            return ctl_usage("--param %s: `%s` is no such number", l->params[i].name, l->params[i].value);
    for (size_t i = 0; i < l->n_params; i++) {
        struct launch_param *p = &l->params[i];

        if (is_scalar(p))
            continue;
        if (p->value && !strcmp(p->value, "null")) {
            p->argument = kops_arg_null();
            continue;
        }
        if (!parse_shape(l, p))
            return ctl_usage("--param %s: `%s` is no shape such as 640x333, or n,4 with integer parameters", p->name,
                             p->dims);
        if (!operand_measure(&p->operand))
            return ctl_usage("--param %s: too many elements", p->name);
        p->argument = kops_arg_tensor(&p->operand.tensor);
    }
    return CTL_OK;
}

/* ---- data ---- */

static enum ctl_exit fill_from_file(struct launch_param *p, const char *path)
{
    size_t size;
    char *data = source_read_file(path, &size);
    enum ctl_exit status = CTL_OK;

    if (!data)
        return CTL_FAILED;
    if (size == p->operand.bytes)
        memcpy(p->operand.host, data, size);
    else
        status = ctl_usage("--param %s: %s has %zu bytes, not %zu", p->name, path, size, p->operand.bytes);
    free(data);
    return status;
}

enum ctl_exit launch_param_fill(struct launch_param *p, uint64_t seed)
{
    const size_t count = p->operand.bytes / kops_dtype_size(p->declared.dtype);
    const char *how = p->value ? p->value : p->declared.kind == KOPS_PARAM_IN ? "random" : "zeros";
    const bool arange = !strcmp(how, "arange");
    double value = 0;
    char *end;

    if (*how == '@')
        return fill_from_file(p, how + 1);
    if (!strcmp(how, "random")) {
        data_fill(p->operand.host, count, p->declared.dtype, seed);
        return CTL_OK;
    }
    if (!arange && strcmp(how, "zeros") != 0) {
        value = strtod(how, &end);
        if (!*how || *end)
            return ctl_usage("--param %s: `%s` is none of random, zeros, arange, a number, null, @FILE", p->name, how);
    }
    for (size_t i = 0; i < count; i++)
        data_set(p->operand.host, i, p->declared.dtype, arange ? (double)i : value);
    return CTL_OK;
}
