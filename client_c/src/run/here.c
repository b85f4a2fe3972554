/* Launches in the caller's CUDA context, with the requests and notifications to the daemon that they need. */
#include "here.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/memfd.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/fail.h"
#include "here/op.h"
#include "session/connect.h"
#include "wire/wire.h"

/* ---- binaries that the daemon hands out ---- */

/* Makes a memfd and touches its pages; the daemon writes to it and seals it. *ret_fd is the caller's. */
static enum kops_code code_file(size_t size, int *ret_fd, struct kops_error *e)
{
    int fd = memfd_create("kops-code", MFD_CLOEXEC | MFD_ALLOW_SEALING), r = 0;

    if (fd < 0)
        return fail_os(e, errno, "memfd_create");
    if (ftruncate(fd, (off_t)size) < 0 || fallocate(fd, 0, 0, (off_t)size) < 0 ||
        fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) < 0) {
        r = errno;
        close(fd);
        return fail_os(e, r, "memory for a kernel's code");
    }
    *ret_fd = fd;
    return KOPS_OK;
}

/* ---- kernels: the code ---- */

/* Asks for the binary until a connection that knew the module has answered. */
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
    const struct kops_entry *entry = kops_module_entry(k->module, k->entry);
    const struct wire_kernel wire = {.signature = &k->signature};
    struct here_declaration d = {.code = here_code_find(info->key), .entry = k->entry};
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

/* Fills the result of a launch here. `us` is the time between two events, taken where `timed`. */
static enum kops_code tell_result(double us, bool timed, const char *variant, struct kops_result *ret,
                                  struct kops_error *e)
{
    wire_no_timings(ret);
    snprintf(ret->variant, sizeof(ret->variant), "%s", variant);
    if (timed) {
        ret->gpu_us = us;
        memcpy(ret->timer, "events", sizeof("events"));
    }
    return here_device(ret->device, e);
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
    return tell_result(us, !(o && o->no_timing), "user", ret_result, e);
}

enum kops_code launch_here(struct kops_kernel *k, const struct here_call *call, const struct dispatch *d,
                           const struct kops_options *o, struct kops_error *e)
{
    return d->way == DISPATCH_ENQUEUE ? enqueue_here(k, call, e) : await_here(k, call, d->ret_result, o, e);
}

/* ---- ops: the code ---- */

static enum kops_code fetch_into(struct kops_client *c, const char *name, size_t size, uint64_t deadline,
                                 struct kops_error *e)
{
    const struct wire_code wire = {.image = name, .fd = true};
    int fd = -1;
    enum kops_code r = code_file(size, &fd, e);

    if (r)
        return r;
    r = session_call(c, wire_pack_code, &wire, fd, wire_decode_nothing, NULL, deadline, SESSION_ONCE, e);
    if (!r)
        r = here_image_keep(name, fd, size, e);
    close(fd);
    return r;
}

/* Asks the daemon to hand out a binary of its own kernels. Lock held. */
static enum kops_code fetch(struct kops_client *c, const char *name, uint64_t deadline, struct kops_error *e)
{
    const struct wire_code wire = {.image = name};
    struct wire_image_info info;
    enum kops_code r;

    if (!(c->features & FEATURE_IMAGES))
        return fail(
            e, KOPS_ERR_UNSUPPORTED,
            "this daemon hands out no code to this user (kernels.hand_out in its settings), or has no GPU, or is "
            "older than that: run the op in the daemon");
    r = session_call(c, wire_pack_code, &wire, -1, wire_decode_image, &info, deadline, SESSION_ATTEMPTS, e);
    if (!r)
        r = here_image_check(info.layout, e);
    return r ? r : fetch_into(c, name, (size_t)info.bytes, deadline, e);
}

/* ---- an execution ---- */

_Static_assert((int)KOPS_MAX_OPERANDS <= (int)KOPS_MAX_KERNEL_TENSORS, "an op's tensors have room in here_tensors");

static enum kops_code check_options(const struct kops_options *o, const struct dispatch *d, struct kops_error *e)
{
    enum kops_code r = launch_here_check(d, o, e);

    if (!r && o->device)
        r = fail(e, KOPS_ERR_BAD_ARGUMENT,
                 "options.device: an op here runs on the current context's GPU; leave it NULL");
    return r;
}

static enum kops_code add_tensors(struct here_tensors *h, const struct kops_tensor *tensors, size_t n,
                                  struct kops_error *e)
{
    enum kops_code r = KOPS_OK;

    for (size_t i = 0; !r && i < n; i++)
        r = here_tensors_add(h, &tensors[i], e);
    return r;
}

/* Called without the client's lock, so that a full queue of the GPU holds up no other thread. Takes the lock to fetch a
 * missing binary. */
static enum kops_code execute(struct kops_client *c, const struct here_op_call *call, uint64_t deadline,
                              struct here_op_result *ret, struct kops_error *e)
{
    enum kops_code r;

    while (!(r = here_op(call, ret, e)) && ret->missing) {
        client_enter(c, NULL);
        r = fetch(c, ret->missing, deadline, e);
        client_leave(c);
        if (r)
            return r;
    }
    if (!r && ret->due) {
        here_ops_read(call->ops);
        client_enter(c, NULL);
        ops_tell_here(c);
        client_leave(c);
    }
    return r;
}

static void tell(void *to, const void *params, size_t length)
{
    struct kops_client *c = to;
    const struct notice n = session_notice(c);

    wire_pack_notification(n.out, "launched", params, length);
    session_notify(c, &n);
}

void ops_tell_here(struct kops_client *c)
{
    if (c->ops_here && client_is_connected(c) && !session_is_behind(c))
        here_ops_tell(c->ops_here, tell, c);
}

void ops_close_here(struct kops_client *c)
{
    ops_tell_here(c);
    c->ops_here = here_ops_free(c->ops_here);
}

enum kops_code op_here(struct kops_client *c, const struct kops_request *request, const struct dispatch *d,
                       struct kops_error *e)
{
    const struct kops_options *o = &request->options;
    const uint64_t deadline = client_deadline(c, o->timeout_ms);
    struct here_tensors tensors = {.process = process_id()};
    struct bytes attrs = {.data = NULL};
    struct here_op_result result;
    struct here_op_call call = {.op = request->op,
                                .tensors = tensors.at,
                                .n_inputs = (unsigned)request->n_inputs,
                                .n_outputs = (unsigned)request->n_outputs,
                                .stream = d->way == DISPATCH_ENQUEUE ? d->stream : NULL,
                                .timed = d->way == DISPATCH_RUN};
    enum kops_code r = check_options(o, d, e);

    if (!r)
        r = batch_settle(c, d->stream, deadline, e);
    if (!r && !c->ops_here)
        c->ops_here = here_ops_new();
    call.ops = c->ops_here;
    client_leave(c);
    if (!r)
        r = add_tensors(&tensors, request->inputs, request->n_inputs, e);
    if (!r)
        r = add_tensors(&tensors, request->outputs, request->n_outputs, e);
    if (r)
        return r;
    call.device = here_tensors_device(&tensors);
    wire_pack_attrs(&attrs, request->attrs, request->n_attrs, o->variant);
    call.attrs = attrs.data;
    call.attrs_length = attrs.length;
    r = attrs.failed ? fail(e, KOPS_ERR_NO_MEMORY, "there is no memory for an op")
                     : execute(c, &call, deadline, &result, e);
    bytes_free(&attrs);
    if (r || !d->ret_result)
        return r;
    return tell_result(result.us, !o->no_timing, result.variant, d->ret_result, e);
}
