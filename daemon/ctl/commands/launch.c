/* kopsctl launch */
#include "launch.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/complain.h"
#include "commands.h"
#include "view/counters.h"

static bool has_memory(const struct launch_param *p)
{
    return p->argument.kind == KOPS_ARG_TENSOR;
}

static enum ctl_exit make_tensors(struct ctl *ctl, struct launch *l)
{
    struct kops_error error;

    for (size_t i = 0; i < l->n_params; i++) {
        struct launch_param *p = &l->params[i];
        enum ctl_exit status;

        if (!has_memory(p))
            continue;
        status = operand_make(ctl, &p->operand, l->device_memory, l->source.s.device);
        if (!status && p->operand.bytes)
            status = launch_param_fill(p, l->seed * 1000 + i);
        if (status)
            return status;
        if (operand_push(&p->operand, &error))
            return ctl_failed("filling device memory", &error);
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

/* What was written, brought here and into the files that were asked for. */
static enum ctl_exit collect(struct launch *l)
{
    enum ctl_exit status = CTL_OK;
    struct kops_error error;

    for (size_t i = 0; i < l->n_params && !status; i++) {
        struct launch_param *p = &l->params[i];

        if (!launch_is_written(p) || !has_memory(p))
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

static enum ctl_exit count(struct ctl *ctl, const struct launch *l, kops_kernel *kernel,
                           const struct kops_argument *args)
{
    struct kops_counters *counters;
    struct kops_error error;

    if (kops_counters_launch(kernel, args, l->n_params, NULL, l->caches, &counters, &error))
        return ctl_failed(l->entry, &error);
    if (ctl->json)
        counters_json(NULL, counters);
    else
        counters_print(counters);
    kops_counters_free(counters);
    return CTL_OK;
}

static enum ctl_exit run(struct ctl *ctl, struct launch *l, kops_kernel *kernel, const struct kops_argument *args)
{
    double *samples = malloc(l->repeat * sizeof(*samples));
    const struct kops_launch_options how = {.options = {.warmup = (uint32_t)l->warmup,
                                                        .repeat = (uint32_t)l->repeat,
                                                        .samples = samples,
                                                        .samples_room = (size_t)l->repeat}};
    struct kops_result result;
    struct kops_error error;
    enum ctl_exit status;

    if (!samples)
        return ctl_no_memory(l->repeat * sizeof(*samples));
    if (l->repeat > 1)
        conditions_read(ctl->client, l->source.s.device, &l->conditions.before);
    if (kops_kernel_launch(kernel, args, l->n_params, &how, &result, &error))
        status = ctl_failed(l->entry, &error);
    else
        status = collect(l);
    if (!status && l->repeat > 1)
        conditions_read(ctl->client, result.device, &l->conditions.after);
    if (!status)
        launch_print(ctl, l, kops_kernel_module(kernel), &result, samples);
    free(samples);
    return status;
}

static enum ctl_exit execute(struct ctl *ctl, struct launch *l, kops_kernel *kernel)
{
    struct kops_argument args[KOPS_MAX_PARAMS];

    for (size_t i = 0; i < l->n_params; i++)
        args[i] = l->params[i].argument;
    return l->counters ? count(ctl, l, kernel, args) : run(ctl, l, kernel, args);
}

static enum ctl_exit define(struct launch *l, kops_module *module, kops_kernel **ret_kernel)
{
    struct kops_param params[KOPS_MAX_PARAMS];
    const struct kops_signature signature = {.entry = l->entry,
                                             .params = params,
                                             .n_params = l->n_params,
                                             .geometry = l->geometry,
                                             .cooperative = l->cooperative};
    struct kops_error error;

    for (size_t i = 0; i < l->n_params; i++)
        params[i] = l->params[i].declared;
    if (kops_kernel_define(module, &signature, ret_kernel, &error))
        return ctl_failed(l->entry, &error);
    return CTL_OK;
}

static enum ctl_exit launch(struct ctl *ctl, struct launch *l)
{
    kops_module *module = NULL;
    kops_kernel *kernel = NULL;
    enum ctl_exit status = launch_params_resolve(l);

    if (!status)
        status = source_read(&l->source, l->path);
    if (!status)
        status = source_add_entry(&l->source, l->entry);
    if (!status)
        status = ctl_connect(ctl);
    if (!status)
        status = source_compile(ctl, &l->source, &module);
    if (!status)
        status = define(l, module, &kernel);
    if (!status)
        status = make_tensors(ctl, l);
    if (!status)
        status = execute(ctl, l, kernel);
    for (size_t i = 0; i < l->n_params; i++)
        operand_free(&l->params[i].operand);
    conditions_pair_free(&l->conditions);
    kops_kernel_free(kernel);
    kops_module_free(module);
    return status;
}

enum ctl_exit ctl_launch(struct ctl *ctl, int argc, char **argv)
{
    struct launch *l = calloc(1, sizeof(*l));
    enum ctl_exit status;
    int end;

    if (!l)
        return ctl_no_memory(sizeof(*l));
    end = launch_parse(ctl, argc, argv, l);
    status = end >= 0 ? (enum ctl_exit)end : launch(ctl, l);
    source_free(&l->source);
    free(l);
    return status;
}
