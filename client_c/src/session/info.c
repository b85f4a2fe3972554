/* What the daemon said of itself. */
#include <stdlib.h>
#include <string.h>

#include "client.h"

const struct kops_info *kops_info(const kops_client *client)
{
    return &client->info.info;
}

const struct kops_device *kops_info_device(const kops_client *client, const char *device)
{
    char *end = NULL;
    unsigned long index = device ? strtoul(device, &end, 10) : 0;
    bool is_index = device && *device && !*end;

    for (const struct kops_device *const *d = client->info.info.devices; *d; d++)
        if (!device ? (*d)->is_default : is_index ? (*d)->index == index : !strcmp((*d)->uuid, device))
            return *d;
    return NULL;
}

const struct kops_op *kops_info_op(const kops_client *client, const char *name)
{
    for (const struct kops_op *const *op = client->info.info.ops; *op; op++)
        if (!strcmp((*op)->name, name))
            return *op;
    return NULL;
}

bool kops_info_feature(const kops_client *client, const char *feature)
{
    for (const char *const *f = client->info.info.features; *f; f++)
        if (!strcmp(*f, feature))
            return true;
    return false;
}

const char *client_priority(const struct kops_client *c, const struct kops_options *options)
{
    static const char *const names[] = {[KOPS_PRIORITY_HIGH] = "high", [KOPS_PRIORITY_LOW] = "low"};

    return c->features & FEATURE_PRIORITY && options ? names[options->priority] : NULL;
}

struct wire_how client_how(const struct kops_client *c, const struct kops_options *options)
{
    return (struct wire_how){.options = options,
                             .stream = options ? options->stream : 0,
                             .no_timing = options && options->no_timing,
                             .exact = options && options->exact && c->features & FEATURE_EXACT,
                             .exclusive = options && options->exclusive,
                             .priority = client_priority(c, options)};
}

const char *client_op_name(const struct kops_client *c, const char *op)
{
    const struct kops_op *known = kops_info_op(c, op);

    return known ? known->name : NULL;
}
