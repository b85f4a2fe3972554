/* The devices of all backends. */
#include "backend/backend.h"

#include <string.h>
#include <strings.h>

#include "util/log.h"

int devices_open(struct device_set *set, const struct backend *const *backends, unsigned n_backends,
                 const struct backend_config *config, const struct backend_host *host, struct error *e)
{
    set->count = 0;
    for (unsigned b = 0; b < n_backends; b++) {
        unsigned n = 0;

        if (backends[b]->abi != BACKEND_ABI) {
            error_set(e, ERROR_INTERNAL, "backend %s was built for another interface version", backends[b]->name);
            goto close_devices;
        }
        if (backends[b]->open(config, host, set->all + set->count, BACKEND_MAX_DEVICES - set->count, &n, e) < 0)
            goto close_devices;
        for (unsigned i = 0; i < n; i++) {
            struct backend_device *d = set->all[set->count];

            d->index = set->count++;
            log_info("device", "index=%u backend=%s uuid=%s arch=%s name=\"%s\"", d->index, d->backend->name,
                     d->info.uuid, d->info.arch, d->info.name);
        }
    }
    if (!set->count) {
        error_set(e, ERROR_UNKNOWN_DEVICE, "no device to serve: no GPU was found and the host backend is off");
        goto close_devices;
    }
    set->fallback = set->all[0];
    return 0;

close_devices:
    devices_close(set);
    return -1;
}

void devices_close(struct device_set *set)
{
    while (set->count)
        if (set->all[--set->count])
            set->all[set->count]->backend->close(set->all[set->count]);
}

struct backend_device *devices_find_uuid(const struct device_set *set, const char *uuid, size_t length)
{
    for (unsigned i = 0; i < set->count; i++)
        if (strlen(set->all[i]->info.uuid) == length && !strncasecmp(set->all[i]->info.uuid, uuid, length))
            return set->all[i];
    return NULL;
}

struct backend_device *devices_find_index(const struct device_set *set, uint64_t index)
{
    return index < set->count ? set->all[index] : NULL;
}
