#include "names.h"

#include <string.h>

#include "client.h"

const char *names_keep(struct kops_client *c, const char *kernel)
{
    char *kept;

    for (unsigned i = 0; i < c->names.n_kernels; i++)
        if (!strcmp(c->names.kernels[i], kernel))
            return c->names.kernels[i];
    kept = c->names.n_kernels < NAMES_MAX_KERNELS ? arena_text(&c->info.arena, kernel, strlen(kernel)) : NULL;
    if (!kept)
        return "a kernel";
    c->names.kernels[c->names.n_kernels++] = kept;
    return kept;
}

unsigned char names_place(const struct kops_client *c, const char *name)
{
    unsigned n_ops = 0;

    for (; c->info.info.ops[n_ops]; n_ops++)
        if (n_ops < NAMES_NONE && !strcmp(c->info.info.ops[n_ops]->name, name))
            return (unsigned char)n_ops;
    for (unsigned i = 0; i < c->names.n_kernels && n_ops + i < NAMES_NONE; i++)
        if (!strcmp(c->names.kernels[i], name))
            return (unsigned char)(n_ops + i);
    return NAMES_NONE;
}

const char *names_at(const struct kops_client *c, unsigned char place)
{
    unsigned n_ops = 0;

    for (; c->info.info.ops[n_ops]; n_ops++)
        if (n_ops == place)
            return c->info.info.ops[n_ops]->name;
    return place != NAMES_NONE && place - n_ops < c->names.n_kernels ? c->names.kernels[place - n_ops] : NULL;
}
