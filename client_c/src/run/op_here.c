/* Built-in ops in the caller's CUDA context: the daemon's kernels come from the daemon once, everything else happens
 * here. */
#include <unistd.h>

#include "base/fail.h"
#include "code_file.h"
#include "here/op.h"
#include "launch_here.h"
#include "session/call.h"

/* ---- the code ---- */

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

/* Has a binary of the daemon's kernels handed out. Lock held. */
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
    *d->ret_result = launch_here_result(result.us, !o->no_timing, result.variant);
    return here_device(d->ret_result->device, e);
}
