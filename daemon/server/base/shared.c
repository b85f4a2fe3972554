#include "server/base/shared.h"

const char *const server_state_names[STATE_COUNT] = {
    [STATE_SERVING] = "serving",
    [STATE_DRAINING] = "draining",
    [STATE_STOPPING] = "stopping",
};

void server_wake(void *context)
{
    struct server *s = context;

    uv_async_send(&s->wake);
}

struct backend_device *server_device(const struct server *s, const struct rpc_arg *arg, struct error *e)
{
    struct backend_device *d;

    if (!arg->present)
        return s->devices.fallback;
    d = arg->text ? devices_find_uuid(&s->devices, arg->text, arg->length) : devices_find_index(&s->devices, arg->u);
    if (!d) {
        if (s->devices.count == 1)
            error_set(e, ERROR_UNKNOWN_DEVICE, "this daemon has no such device; its only one is 0, %s",
                      s->devices.all[0]->info.uuid);
        else
            error_set(e, ERROR_UNKNOWN_DEVICE, "this daemon has no such device; it has %u, numbered from 0",
                      s->devices.count);
        error_detail_text(e, "key", "device");
    }
    return d;
}
