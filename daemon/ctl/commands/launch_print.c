/* The outcome of `kopsctl launch`, as tables or as JSON. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>

#include "base/json.h"
#include "base/table.h"
#include "data/data.h"
#include "launch.h"
#include "view/module.h"
#include "view/result.h"

/* What a written tensor holds: the sum, and a number that differs when any bit does (FNV-1a). */
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

static bool is_output(const struct launch_param *p)
{
    return launch_is_written(p) && p->argument.kind == KOPS_ARG_TENSOR;
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

    table_init(&t, "lllrrrrr",
               (const char *const[]){"kernel", "device", "found", "compile ms", "registers", "local", "kernel us",
                                     "total us"});
    table_cell(&t, "%s", l->entry);
    table_cell(&t, "%.12s", result->device);
    table_cell(&t, "%s", info->cached);
    table_cell(&t, "%.1f", info->compile_us * 1e-3);
    table_cell(&t, "%u", entry ? entry->registers : 0);
    table_cell(&t, "%u", entry ? entry->local_bytes : 0);
    table_us(&t, result_kernel_us(result));
    table_us(&t, result->total_us);
    table_print(&t);
    result_print_more(result);
    conditions_pair_print(&l->conditions);
    for (size_t i = 0; i < l->n_params; i++) {
        const struct launch_param *p = &l->params[i];
        char shape[TABLE_CELL];
        uint64_t hash;
        double sum;

        if (!is_output(p))
            continue;
        sum = sum_of(p, &hash);
        result_shape(&p->operand.tensor, shape, sizeof(shape));
        printf("%s %s %s: sum %.9g, hash %016" PRIx64 "%s", p->name, kops_dtype_name(p->declared.dtype), shape, sum,
               hash, shown(l, p) ? ", begins" : "");
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
    char text[17];

    json_begin(NULL, '{');
    json_text("entry", l->entry);
    json_begin("module", '{');
    module_json(kops_module_info(module));
    json_end('}');
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
        snprintf(text, sizeof(text), "%016" PRIx64, hash);
        json_text("hash", text);
        json_begin("begins", '[');
        for (size_t k = 0; k < shown(l, p); k++)
            json_number(NULL, data_get(p->operand.host, k, p->declared.dtype));
        json_end(']');
        json_end('}');
    }
    json_end(']');
    json_end('}');
}

void launch_print(const struct ctl *ctl, const struct launch *l, const kops_module *module,
                  const struct kops_result *result, const double *samples)
{
    if (ctl->json)
        print_json(l, module, result, samples);
    else
        print_text(l, module, result);
}
