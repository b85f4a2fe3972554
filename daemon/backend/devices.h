/* The devices of all backends, opened once at the start, in hello's order: GPUs first, the host last. Thread: loop; the
 * set does not change while the daemon runs. */
#ifndef KOPS_BACKEND_DEVICES_H
#define KOPS_BACKEND_DEVICES_H

#include "backend/backend.h"

struct device_set {
    struct backend_device *all[BACKEND_MAX_DEVICES];
    unsigned count;
    struct backend_device *fallback; /* runs requests whose tensors are all memfds */
};

/* Opens every backend in turn. Having no device at all is an error. */
int devices_open(struct device_set *set, const struct backend *const *backends, unsigned n_backends,
                 const struct backend_config *config, const struct backend_host *host, struct error *e);
void devices_close(struct device_set *set);

/* NULL: no such device. */
struct backend_device *devices_find_uuid(const struct device_set *set, const char *uuid, size_t length);
struct backend_device *devices_find_index(const struct device_set *set, uint64_t index);

#endif
