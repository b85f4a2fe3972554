/* Launches in the caller's CUDA context: the code comes from the daemon once, everything else happens here. */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/fail.h"
#include "code_file.h"
#include "launch_here.h"
#include "session/call.h"
#include "wire/wire.h"

/* ---- the code ---- */

/* Asks until a connection has answered that knew the module. */
static enum kops_code hand_out(struct kops_kernel *k, struct here_code **ret_code, uint64_t deadline,
                               struct kops_error *e)
{
    const struct kops_module_info *info = &k->module->known.info;
    struct wire_code wire = {.fd = true};
    int fd = -1;
    enum kops_code r = code_file((size_t)info->image_bytes, &fd, e);

    if (r)
        return r;
    r = module_ensure(k->module, deadline, e);
    wire.module = k->module->remote.id;
    if (!r)
        r = session_call(k->client, wire_pack_code, &wire, fd, wire_decode_nothing, NULL, deadline, SESSION_HERE, e);
    if (!r)
        r = here_code_keep(info->key, fd, (size_t)info->image_bytes, ret_code, e);
    close(fd);
    return r;
}

enum kops_code kernel_ensure_here(struct kops_kernel *k, uint64_t deadline, struct kops_error *e)
{
    const struct kops_module_info *info = &k->module->known.info;
    const struct kops_entry *entry = kops_module_entry(k->module, k->signature.entry);
    const struct wire_kernel wire = {.signature = &k->signature};
    struct here_declaration d = {.code = here_code_find(info->key), .entry = k->signature.entry};
    struct here_kernel *made = NULL;
    struct bytes params = {.data = NULL};
    enum kops_code r = KOPS_OK;

    if (k->here)
        return KOPS_OK;
    if (!(k->client->features & FEATURE_CODE) || !entry || !entry->offsets)
        return fail(e, KOPS_ERR_UNSUPPORTED,
                    "this daemon hands out no code to this user (kernels.hand_out in its settings), or is older than "
                    "that: launch in the daemon");
    if (!d.code)
        r = hand_out(k, &d.code, deadline, e);
    if (r)
        return r;
    wire_pack_declaration(&params, &wire);
    if (params.failed)
        return fail(e, KOPS_ERR_NO_MEMORY, "there is no memory for a kernel");
    d.symbol = entry->lowered;
    d.n_params = (unsigned)entry->n_params;
    d.offsets = entry->offsets;
    d.sizes = entry->params;
    d.params = params.data;
    d.length = params.length;
    r = here_kernel_new(&d, &made, e);
    bytes_free(&params);
    if (r)
        return r;
    if (k->here) { /* another thread was faster */
        here_kernel_free(made);
        return KOPS_OK;
    }
    k->here = made;
    k->next_here = k->client->here;
    k->client->here = k;
    return KOPS_OK;
}

/* ---- a launch ---- */

static bool is_of_daemon_alone(const struct kops_options *o)
{
    return o->stream || o->warmup || o->repeat > 1 || o->deadline_ms || o->samples || o->priority || o->exact ||
           o->exclusive;
}

bool call_goes_here(const struct kops_client *c, const struct dispatch *d, const struct kops_options *options)
{
    const struct kops_options *o = options;

    return c->goes_here && (d->way == DISPATCH_RUN || d->way == DISPATCH_ENQUEUE) &&
           (!o || (o->where == KOPS_WHERE_DEFAULT && !o->device && !is_of_daemon_alone(o)));
}

enum kops_code launch_here_check(const struct dispatch *d, const struct kops_options *o, struct kops_error *e)
{
    if (d->way == DISPATCH_SUBMIT || d->way == DISPATCH_COUNT)
        return fail(e, KOPS_ERR_BAD_ARGUMENT,
                    "options.where: a launch here is made by a call that waits, or one that enqueues on a stream");
    if (o && is_of_daemon_alone(o))
        return fail(
            e, KOPS_ERR_BAD_ARGUMENT,
            "options.where: stream, warmup, repeat, deadline_ms, samples, priority, exact and exclusive are the "
            "daemon's; leave them zero for a launch here");
    return KOPS_OK;
}

enum kops_code here_tensors_map(const struct kops_tensor *t, struct kops_error *e)
{
    const struct cuda_driver *d = cuda_load(e);
    struct kops_buffer *b = t->buffer;
    enum kops_code r;

    if (!d)
        return KOPS_ERR_NO_CUDA;
    client_enter(b->client, e);
    r = cuda_map_pointer(d, b, e);
    client_leave(b->client);
    return r;
}

enum kops_code here_tensors_refuse(const struct here_tensors *h, const struct kops_tensor *t, struct kops_error *e)
{
    if (t->offset > t->buffer->size)
        return fail(e, KOPS_ERR_OUT_OF_BOUNDS, "a tensor begins behind the end of its buffer");
    return fail(e, KOPS_ERR_DEVICE_MISMATCH, "tensors live on %s and on %s: a launch here takes those of one GPU",
                h->with->device, t->buffer->device);
}

struct kops_result launch_here_result(double us, bool timed, const char *variant)
{
    const double unknown = (double)NAN;
    struct kops_result r = {.recv_to_start_us = unknown,
                            .map_us = unknown,
                            .queue_us = unknown,
                            .h2d_us = unknown,
                            .d2h_us = unknown,
                            .gpu_us = timed ? us : unknown,
                            .host_us = unknown,
                            .total_us = unknown,
                            .wait_us = unknown,
                            .end_us = unknown,
                            .wall_us = unknown,
                            .min_us = unknown,
                            .median_us = unknown,
                            .p90_us = unknown,
                            .max_us = unknown,
                            .send_us = unknown,
                            .reply_us = unknown};

    snprintf(r.variant, sizeof(r.variant), "%s", variant);
    if (timed)
        memcpy(r.timer, "events", sizeof("events"));
    return r;
}

void kernel_tell_here(struct kops_kernel *k)
{
    struct kops_client *c = k->client;
    struct bytes params = {.data = NULL};
    struct notice n;

    if (!k->here || !client_is_connected(c) || !remote_known(c, &k->module->remote) || session_is_behind(c))
        return;
    if (here_kernel_tell(k->here, k->module->remote.id, &params) && !params.failed) {
        n = session_notice(c);
        wire_pack_notification(n.out, "launched", params.data, params.length);
        session_notify(c, &n);
    }
    bytes_free(&params);
}

void kernels_tell_here(struct kops_client *c)
{
    for (struct kops_kernel *k = c->here; k; k = k->next_here)
        kernel_tell_here(k);
}

static enum kops_code enqueue_here(struct kops_kernel *k, const struct here_call *call, struct kops_error *e)
{
    bool due;
    enum kops_code r = here_launch(k->here, call, &due, e);

    if (due) {
        here_kernel_read(k->here);
        client_enter(k->client, NULL);
        kernel_tell_here(k);
        client_leave(k->client);
    }
    return r;
}

static enum kops_code await_here(struct kops_kernel *k, const struct here_call *call, struct kops_result *ret_result,
                                 const struct kops_options *o, struct kops_error *e)
{
    double us = 0;
    enum kops_code r = here_launch_timed(k->here, call, &us, e);

    if (r || !ret_result)
        return r;
    *ret_result = launch_here_result(us, !(o && o->no_timing), "user");
    return here_device(ret_result->device, e);
}

enum kops_code launch_here(struct kops_kernel *k, const struct here_call *call, const struct dispatch *d,
                           const struct kops_options *o, struct kops_error *e)
{
    return d->way == DISPATCH_ENQUEUE ? enqueue_here(k, call, e) : await_here(k, call, d->ret_result, o, e);
}
