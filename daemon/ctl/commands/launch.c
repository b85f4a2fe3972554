/* kopsctl launch: the command line and the parameters, the launch, and its outcome. */
#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/output.h"
#include "commands.h"
#include "compile.h"
#include "data/data.h"
#include "proto/generated/kernels.h"
#include "run.h"

static const char usage[] =
    "Usage: kopsctl launch FILE ENTRY --param PARAM... --grid SIZES --block SIZES [OPTION]...\n\n"
    "Compiles ENTRY of FILE unless the daemon has it, makes tensors, launches, and prints the time and the written\n"
    "tensors. Example:\n\n"
    "  kopsctl launch add2.cu add2_kernel -p 'float* c[n]' -p 'const float* a[n]' -p 'const float* b[n]=arange' \\\n"
    "      -p 'int n=1000' --grid 'ceil_div(n, 256)' --block 256\n\n"
    "  -p, --param PARAM      one a parameter, in order: TYPE NAME=NUMBER, or TYPE* NAME[SHAPE]=DATA. A pointer to "
    "const is\n"
    "                         read; another one is written, and with DATA also read. SHAPE: 640x333, or numbers and\n"
    "                         names of integer parameters with commas: n,4. DATA: random (the default of tensors that\n"
    "                         are read), zeros, arange, a number, null, or @FILE with the elements' bytes. TYPE: C's,\n"
    "                         or f32, i64, bf16 ... For a tensor map: tma TYPE* NAME[SHAPE] box[64,64] swizzle 128\n"
    "  -g, --grid SIZES       blocks, up to three numbers or expressions with commas: 'ceil_div(n, 256), 2'\n"
    "  -b, --block SIZES      threads of a block\n"
    "      --cluster SIZES    blocks of a cluster\n"
    "      --cooperative      all blocks run at one time, as grid.sync() needs\n"
    "      --shared BYTES     dynamic shared memory of a block, a number or an expression\n" SOURCE_USAGE
    "  -n, --repeat N         timed executions (default 1); 1 where a tensor is both read and written\n"
    "  -w, --warmup N         untimed executions before them (default 0)\n"
    "  -m, --memory WHERE     `shared` (default): shared memory, copied where a GPU runs it; `device`: memory on the "
    "device\n"
    "      --show N           elements of each written tensor that are printed (default 8)\n"
    "      --save NAME=FILE   the bytes of a written tensor; may be repeated\n"
    "      --counters         in place of times, what the GPU's counters say while it runs alone on copies;\n"
    "                         docs/profiling.md explains the figures\n"
    "      --cache CACHES     with --counters: `cold` (default) or `warm`\n"
    "      --seed N           other random data\n"
    "      --json             print JSON\n";

enum { LAUNCH_TEXT = 256, LAUNCH_MAX_SAVES = 16 };

/* A --param, such as "const float* a[n]=random" or "int n=1000". */
struct launch_param {
    char text[LAUNCH_TEXT]; /* cut into the parts below */
    char name[64];
    const char *dims, *value; /* dims: "640x333", "n,4"; NULL: a scalar. value: NULL: none */
    struct kops_param declared;
    struct kops_tensor_map map; /* map of `declared`, where it is a tensor map */
    struct operand operand;
    struct kops_argument argument;
};

struct launch_sizes {
    const char *option, **into; /* "--grid"; three of kops_geometry */
    char text[LAUNCH_TEXT];
};

struct launch {
    struct source source;
    const char *path, *entry;
    struct launch_param params[KOPS_MAX_PARAMS];
    size_t n_params;
    struct kops_geometry geometry;
    const char *saves[LAUNCH_MAX_SAVES];
    size_t n_saves;
    uint64_t repeat, warmup, seed, show;
    unsigned device_memory;
    bool cooperative;
    struct conditions_pair conditions; /* around several launches */
    bool counters;                     /* count on the GPU, with these caches, in place of times and results */
    enum kops_counter_caches caches;
};

static bool is_written(const struct launch_param *p)
{
    return p->declared.kind == KOPS_PARAM_OUT || p->declared.kind == KOPS_PARAM_INOUT;
}

static bool is_tensor(const struct launch_param *p)
{
    return p->argument.kind == KOPS_ARG_TENSOR;
}

static bool is_output(const struct launch_param *p)
{
    return is_written(p) && is_tensor(p);
}

/* ---- a --param: tensor maps ---- */

static char *skip(char *text)
{
    return text + strspn(text, " \t");
}

/* Cuts expressions with commas between them, which are in no parentheses, up to `end`. Returns what follows; NULL:
 * there are more than `max`, or no `end`. */
static char *cut_list(char *text, char end, const char **into, unsigned max, unsigned *ret_n)
{
    unsigned depth = 0;

    *ret_n = 0;
    for (char *c = text, *begin = text;; c++) {
        depth += *c == '(';
        depth -= *c == ')' && depth;
        if (*c != end && (*c != ',' || depth)) {
            if (*c)
                continue;
            return NULL;
        }
        if (*ret_n == max)
            return NULL;
        into[(*ret_n)++] = skip(begin);
        begin = c + 1;
        if (*c == end) {
            *c = 0;
            return end ? begin : c;
        }
        *c = 0;
    }
}

static char *take_steps(struct kops_tensor_map *m, char *rest)
{
    const char *steps[KOPS_MAX_MAP_RANK];
    unsigned n = 0;

    rest = *rest == '[' ? cut_list(rest + 1, ']', steps, KOPS_MAX_MAP_RANK, &n) : NULL;
    for (unsigned i = 0; rest && i < n; i++) {
        uint64_t value;

        if (!ctl_parse_uint(steps[i], 1, UINT32_MAX, &value))
            return NULL;
        m->steps[i] = (unsigned)value;
    }
    return rest;
}

/* Reads one property of the map; returns the rest of the text, NULL where the property is not understood. */
static char *take(struct kops_tensor_map *m, char *text)
{
    const struct {
        const char *word;
        unsigned *number; /* follows the word; */
        bool *flag;       /* or this text does */
        const char *flag_text;
    } words[] = {{"swizzle", &m->swizzle},
                 {"interleave", &m->interleave},
                 {"l2", &m->l2},
                 {"fill", NULL, &m->nan, "nan"},
                 {"as", NULL, &m->tf32, "tf32"}};
    const size_t length = strspn(text, "abcdefghijklmnopqrstuvwxyz2");
    char *rest = skip(text + length);
    const char *value;
    uint64_t number;

    if (length == 3 && !memcmp(text, "box", 3))
        return *rest == '[' ? cut_list(rest + 1, ']', m->box, KOPS_MAX_MAP_RANK, &m->rank) : NULL;
    if (length == 5 && !memcmp(text, "steps", 5))
        return take_steps(m, rest);
    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++) {
        if (strlen(words[i].word) != length || memcmp(text, words[i].word, length) != 0)
            continue;
        value = rest;
        rest += strcspn(rest, " \t");
        if (*rest)
            *rest++ = 0;
        if (words[i].flag) {
            *words[i].flag = true;
            return strcmp(value, words[i].flag_text) != 0 ? NULL : rest;
        }
        if (!ctl_parse_uint(value, 0, UINT32_MAX, &number))
            return NULL;
        *words[i].number = (unsigned)number;
        return rest;
    }
    return NULL;
}

/* Takes "tma" and what follows the shape from a --param's text: "tma const half* a[m,k] box[64,64] swizzle 128".
 * Returns what is left, which is the text itself for any other parameter; NULL: the text is not understood. */
static char *cut_map(struct launch_param *p, char *text)
{
    char *end;

    if (strncmp(text, "tma", 3) != 0 || !isspace((unsigned char)text[3]))
        return text;
    text = skip(text + 3);
    end = strchr(text, ']');
    if (!end)
        return NULL;
    p->declared.map = &p->map;
    for (char *rest = skip(end + 1); *rest; rest = skip(rest)) {
        rest = take(&p->map, rest);
        if (!rest)
            return NULL;
    }
    end[1] = 0;
    return p->map.rank ? text : NULL;
}

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

/* Cuts "[dims]" and the name off what lies before the value. False: there is no name. */
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
#define X(qualifier) &&strcmp(word, qualifier) != 0
        if (*word KERNELS_QUALIFIERS(X))
#undef X
            n += (size_t)snprintf(ret + n, n < size ? size - n : 0, "%s%s", n ? " " : "", word);
        if (n >= size)
            return false;
    }
    return true;
}

/* Takes one --param apart. */
static enum ctl_exit parse_param(struct launch_param *p, const char *text)
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
    head = cut_map(p, trim(p->text));
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

static bool parse_scalar(struct launch_param *p)
{
    char *end = NULL;
    bool yes;

    errno = 0;
    if (p->declared.dtype == KOPS_BOOL) {
        if (!ctl_parse_bool(p->value, &yes))
            return false;
        p->argument = kops_arg_bool(yes);
        return true;
    }
    if (data_is_float(p->declared.dtype))
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

        if (is_scalar(p) && !data_is_float(p->declared.dtype) && !strcmp(p->name, text)) {
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

/* Finds shapes and scalars, once all parameters are known. */
static enum ctl_exit resolve_params(struct launch *l)
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

/* Writes a tensor's data, as its value says. */
static enum ctl_exit fill_param(struct launch_param *p, uint64_t seed)
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

/* ---- running ---- */

static enum ctl_exit make_tensors(struct ctl *ctl, struct launch *l)
{
    for (size_t i = 0; i < l->n_params; i++) {
        struct launch_param *p = &l->params[i];
        enum ctl_exit status;

        if (!is_tensor(p))
            continue;
        status = operand_make(ctl, &p->operand, l->device_memory, l->source.s.device);
        if (!status && p->operand.bytes)
            status = fill_param(p, l->seed * 1000 + i);
        if (status)
            return status;
        if (operand_push(&p->operand, &ctl->error))
            return ctl_failed("filling device memory", &ctl->error);
    }
    return CTL_OK;
}

static enum ctl_exit save(const struct launch_param *p, const char *path)
{
    FILE *file = fopen(path, "we");
    bool written = file && fwrite(p->operand.host, 1, p->operand.bytes, file) == p->operand.bytes;

    if (file)
        written &= fclose(file) == 0;
    if (written)
        return CTL_OK;
    return ctl_complain("os_error", "writing %s: %s", path, strerror(errno));
}

/* Brings what was written here and into the files that were asked for. */
static enum ctl_exit collect(struct launch *l)
{
    enum ctl_exit status = CTL_OK;
    struct kops_error error;

    for (size_t i = 0; i < l->n_params && !status; i++) {
        struct launch_param *p = &l->params[i];

        if (!is_output(p))
            continue;
        if (operand_pull(&p->operand, &error))
            return ctl_failed("reading device memory", &error);
        for (size_t s = 0; s < l->n_saves && !status; s++) {
            const size_t length = strlen(p->name);

            if (!strncmp(l->saves[s], p->name, length) && l->saves[s][length] == '=')
                status = save(p, l->saves[s] + length + 1);
        }
    }
    return status;
}

/* The sum of a written tensor, and a hash (FNV-1a), which differs when any bit does. */
static double sum_of(const struct launch_param *p, uint64_t *ret_hash)
{
    const size_t size = kops_dtype_size(p->declared.dtype);
    const unsigned char *bytes = p->operand.host;
    uint64_t hash = UINT64_C(0xcbf29ce484222325);
    double sum = 0;

    for (size_t i = 0; i < p->operand.bytes; i++)
        hash = (hash ^ bytes[i]) * UINT64_C(0x100000001b3);
    for (size_t i = 0; i < p->operand.bytes / size; i++)
        sum += data_get(p->operand.host, i, p->declared.dtype);
    *ret_hash = hash;
    return sum;
}

static size_t shown(const struct launch *l, const struct launch_param *p)
{
    const size_t count = p->operand.bytes / kops_dtype_size(p->declared.dtype);

    return l->show < count ? (size_t)l->show : count;
}

static void print_text(const struct launch *l, const kops_module *module, const struct kops_result *result)
{
    const struct kops_entry *entry = kops_module_entry(module, l->entry);
    const struct kops_module_info *info = kops_module_info(module);
    struct table t;

    table_init(&t, "kernel\tdevice\tfound\t>compile ms\t>registers\t>local\t>kernel us\t>total us");
    table_row(&t, "%s\t%.12s\t%s\t%.1f\t%u\t%u\t%s\t%s", l->entry, result->device, info->cached,
              info->compile_us * 1e-3, entry ? entry->registers : 0, entry ? entry->local_bytes : 0,
              text_us(result_kernel_us(result)), text_us(result->total_us));
    table_print(&t);
    result_print_more(result);
    conditions_pair_print(&l->conditions);
    for (size_t i = 0; i < l->n_params; i++) {
        const struct launch_param *p = &l->params[i];
        uint64_t hash;
        double sum;

        if (!is_output(p))
            continue;
        sum = sum_of(p, &hash);
        printf("%s %s %s: sum %.9g, hash %016" PRIx64 "%s", p->name, kops_dtype_name(p->declared.dtype),
               text_shape(p->operand.tensor.shape, p->operand.tensor.rank), sum, hash, shown(l, p) ? ", begins" : "");
        for (size_t k = 0; k < shown(l, p); k++)
            printf(" %.7g", data_get(p->operand.host, k, p->declared.dtype));
        printf("\n");
    }
    if (*info->log)
        printf("\n%s\n", info->log);
}

static void print_json(const struct launch *l, const kops_module *module, const struct kops_result *result,
                       const double *samples)
{
    json_begin(NULL, '{');
    json_text("entry", l->entry);
    module_json("module", kops_module_info(module));
    json_text("device", result->device);
    json_text("memory", l->device_memory ? "device" : "shared");
    result_json_timings(result, samples, (size_t)l->repeat);
    conditions_pair_json(&l->conditions);
    json_begin("outputs", '[');
    for (size_t i = 0; i < l->n_params; i++) {
        const struct launch_param *p = &l->params[i];
        uint64_t hash;

        if (!is_output(p))
            continue;
        json_begin(NULL, '{');
        json_text("name", p->name);
        json_text("dtype", kops_dtype_name(p->declared.dtype));
        json_ints("shape", p->operand.tensor.shape, p->operand.tensor.rank);
        json_number("sum", sum_of(p, &hash));
        json_text("hash", text_format("%016" PRIx64, hash));
        json_begin("begins", '[');
        for (size_t k = 0; k < shown(l, p); k++)
            json_number(NULL, data_get(p->operand.host, k, p->declared.dtype));
        json_end(']');
        json_end('}');
    }
    json_end(']');
    json_end('}');
}

static enum ctl_exit run(struct ctl *ctl, struct launch *l, kops_kernel *kernel, const struct kops_argument *args)
{
    double *samples = malloc(l->repeat * sizeof(*samples));
    const struct kops_launch_options how = {.options = {.warmup = (uint32_t)l->warmup,
                                                        .repeat = (uint32_t)l->repeat,
                                                        .samples = samples,
                                                        .samples_room = (size_t)l->repeat}};
    struct kops_result result;
    enum ctl_exit status;

    if (!samples)
        return ctl_no_memory(l->repeat * sizeof(*samples));
    if (l->repeat > 1)
        conditions_read(ctl->client, l->source.s.device, &l->conditions.before);
    if (kops_kernel_launch(kernel, args, l->n_params, &how, &result, &ctl->error))
        status = ctl_failed(l->entry, &ctl->error);
    else
        status = collect(l);
    if (!status && l->repeat > 1)
        conditions_read(ctl->client, result.device, &l->conditions.after);
    if (!status && ctl->json)
        print_json(l, kops_kernel_module(kernel), &result, samples);
    else if (!status)
        print_text(l, kops_kernel_module(kernel), &result);
    free(samples);
    return status;
}

/* Makes the kernel and its tensors, and runs it or counts. */
static enum ctl_exit execute(struct ctl *ctl, struct launch *l, kops_module *module, kops_kernel **ret_kernel)
{
    struct kops_param params[KOPS_MAX_PARAMS];
    struct kops_argument args[KOPS_MAX_PARAMS];
    const struct kops_signature signature = {.entry = l->entry,
                                             .params = params,
                                             .n_params = l->n_params,
                                             .geometry = l->geometry,
                                             .cooperative = l->cooperative};
    struct kops_counters *counters = NULL;
    enum ctl_exit status;
    enum kops_code code;

    for (size_t i = 0; i < l->n_params; i++) {
        params[i] = l->params[i].declared;
        args[i] = l->params[i].argument;
    }
    if (kops_kernel_define(module, &signature, ret_kernel, &ctl->error))
        return ctl_failed(l->entry, &ctl->error);
    status = make_tensors(ctl, l);
    if (status || !l->counters)
        return status ? status : run(ctl, l, *ret_kernel, args);
    code = kops_counters_launch(*ret_kernel, args, l->n_params, NULL, l->caches, &counters, &ctl->error);
    return counters_show(ctl, l->entry, code, counters, &ctl->error);
}

static enum ctl_exit launch(struct ctl *ctl, struct launch *l)
{
    kops_module *module = NULL;
    kops_kernel *kernel = NULL;
    enum ctl_exit status = resolve_params(l);

    if (!status)
        status = source_read(&l->source, l->path);
    if (!status)
        status = source_add_entry(&l->source, l->entry);
    if (!status)
        status = ctl_connect(ctl);
    if (!status)
        status = source_compile(ctl, &l->source, &module);
    if (!status)
        status = execute(ctl, l, module, &kernel);
    for (size_t i = 0; i < l->n_params; i++)
        operand_free(&l->params[i].operand);
    conditions_pair_free(&l->conditions);
    kops_kernel_free(kernel);
    kops_module_free(module);
    return status;
}

/* ---- the command ---- */

/* The sizes of --grid, --block or --cluster. */
static enum ctl_exit take_sizes(void *into, const char *value)
{
    struct launch_sizes *sizes = into;
    unsigned n;

    if (strlen(value) >= LAUNCH_TEXT)
        return ctl_usage("%s is longer than %d characters", sizes->option, LAUNCH_TEXT);
    memcpy(sizes->text, value, strlen(value) + 1);
    memset(sizes->into, 0, 3 * sizeof(*sizes->into));
    if (!cut_list(sizes->text, 0, sizes->into, 3, &n))
        return ctl_usage("%s takes up to three sizes, not `%s`", sizes->option, value);
    return CTL_OK;
}

static enum ctl_exit take_param(void *launch, const char *value)
{
    struct launch *l = launch;

    if (l->n_params == KOPS_MAX_PARAMS)
        return ctl_usage("a kernel has at most %d parameters", KOPS_MAX_PARAMS);
    return parse_param(&l->params[l->n_params++], value);
}

static enum ctl_exit take_save(void *launch, const char *value)
{
    struct launch *l = launch;

    if (!strchr(value, '=') || l->n_saves == LAUNCH_MAX_SAVES)
        return ctl_usage("--save takes NAME=FILE, not `%s` (and at most %d of them)", value, LAUNCH_MAX_SAVES);
    l->saves[l->n_saves++] = value;
    return CTL_OK;
}

/* Only tensors that the launch writes can be saved. */
static enum ctl_exit check_saves(const struct launch *l)
{
    for (size_t i = 0; i < l->n_saves; i++) {
        const size_t length = strcspn(l->saves[i], "=");
        bool found = false;

        for (size_t p = 0; p < l->n_params; p++)
            found |= is_written(&l->params[p]) && strlen(l->params[p].name) == length &&
                     !memcmp(l->params[p].name, l->saves[i], length);
        if (!found)
            return ctl_usage("--save %s: no written tensor has that name", l->saves[i]);
    }
    return CTL_OK;
}

enum ctl_exit ctl_launch(struct ctl *ctl, int argc, char **argv)
{
    static struct launch l = {.repeat = 1, .seed = 1, .show = 8}; /* too large for a stack */
    struct launch_sizes grid = {"--grid", l.geometry.grid}, block = {"--block", l.geometry.block};
    struct launch_sizes cluster = {"--cluster", l.geometry.cluster};
    const struct ctl_option options[] = {
        {"--param", 'p', OPTION_TAKE, &l, .take = take_param},
        {"--grid", 'g', OPTION_TAKE, &grid, .take = take_sizes},
        {"--block", 'b', OPTION_TAKE, &block, .take = take_sizes},
        {"--cluster", 0, OPTION_TAKE, &cluster, .take = take_sizes},
        {"--cooperative", 0, OPTION_FLAG, &l.cooperative},
        {"--shared", 0, OPTION_TEXT, &l.geometry.shared},
        {"--repeat", 'n', OPTION_NUMBER, &l.repeat, "takes a number from 1 on", 1, UINT32_MAX},
        {"--warmup", 'w', OPTION_NUMBER, &l.warmup, "takes a number from 0 on", 0, UINT32_MAX},
        {"--memory", 'm', OPTION_WORD, &l.device_memory, RUN_MEMORY},
        {"--show", 0, OPTION_NUMBER, &l.show, "takes a number from 0 on", 0, UINT32_MAX},
        {"--save", 0, OPTION_TAKE, &l, .take = take_save},
        {"--seed", 0, OPTION_NUMBER, &l.seed, "takes a number from 0 on", 0, UINT32_MAX},
        {"--counters", 0, OPTION_FLAG, &l.counters},
        {"--cache", 0, OPTION_WORD, &l.caches, COUNTERS_CACHES},
        SOURCE_OPTIONS(&l.source),
        {0}};
    enum ctl_exit status;

    if (!ctl_parse(ctl, argc, argv, usage, options, argc, &status))
        return status;
    if (optind + 2 != argc)
        return ctl_usage("launch takes a file and an entry; `kopsctl launch --help` has an example");
    if (!l.geometry.grid[0] || !l.geometry.block[0])
        return ctl_usage("launch needs --grid and --block");
    l.path = argv[optind];
    l.entry = argv[optind + 1];
    status = check_saves(&l);
    return status ? status : launch(ctl, &l);
}
