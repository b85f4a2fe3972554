#include "names.h"

#include <string.h>

#include "session.h"

const char *names_keep(struct kops_client *c, const char *kernel)
{
    char *kept;

    for (unsigned i = 0; i < c->n_kernel_names; i++)
        if (!strcmp(c->kernel_names[i], kernel))
            return c->kernel_names[i];
    kept = c->n_kernel_names < NAMES_MAX_KERNELS ? arena_text(&c->info.arena, kernel, strlen(kernel)) : NULL;
    if (!kept)
        return "a kernel";
    c->kernel_names[c->n_kernel_names++] = kept;
    return kept;
}

unsigned char names_place(const struct kops_client *c, const char *name)
{
    unsigned n_ops = 0;

    for (; c->info.info.ops[n_ops]; n_ops++)
        if (n_ops < NAMES_NONE && !strcmp(c->info.info.ops[n_ops]->name, name))
            return (unsigned char)n_ops;
    for (unsigned i = 0; i < c->n_kernel_names && n_ops + i < NAMES_NONE; i++)
        if (!strcmp(c->kernel_names[i], name))
            return (unsigned char)(n_ops + i);
    return NAMES_NONE;
}

const char *names_at(const struct kops_client *c, unsigned char place)
{
    unsigned n_ops = 0;

    for (; c->info.info.ops[n_ops]; n_ops++)
        if (n_ops == place)
            return c->info.info.ops[n_ops]->name;
    return place != NAMES_NONE && place - n_ops < c->n_kernel_names ? c->kernel_names[place - n_ops] : NULL;
}
