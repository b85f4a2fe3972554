/* Tuning: an op's tensors as kops_run() has them, without their memory; and what tuning has chosen. */
#include <stdlib.h>

#include "base/fail.h"
#include "operand.h"
#include "run.h"
#include "session/call.h"
#include "wire/wire.h"

static enum kops_code check_feature(const struct kops_client *c, struct kops_error *e)
{
    if (kops_info_feature(c, "tune"))
        return KOPS_OK;
    return fail(
        e, KOPS_ERR_UNSUPPORTED,
        "this daemon does not tune (it lists no feature `tune`): it is older than tuning, or has no device with a "
        "choice among kernels, such as a GPU");
}

/* Where the request would run: the daemon's default device (NULL) unless the request, or memory on a device, says more.
 */
static const char *device_of(const struct kops_request *r)
{
    const char *device = r->options.device;

    for (size_t i = 0; !device && i < r->n_inputs + r->n_outputs; i++) {
        const kops_buffer *b = request_tensor(r, i)->buffer;

        device = b ? kops_buffer_device(b) : NULL;
    }
    return device;
}

static enum kops_code call_tune(struct kops_client *c, const struct kops_request *r, struct wire_tuned *into,
                                struct kops_error *e)
{
    struct native_tensor tensors[KOPS_MAX_OPERANDS];
    const struct wire_tune wire = {.op = r->op,
                                   .n_inputs = (unsigned)r->n_inputs,
                                   .n_outputs = (unsigned)r->n_outputs,
                                   .tensors = tensors,
                                   .attrs = r->attrs,
                                   .n_attrs = r->n_attrs,
                                   .device = device_of(r)};

    for (size_t i = 0; i < r->n_inputs + r->n_outputs; i++) {
        operand_resolve(c, request_tensor(r, i), &tensors[i]);
        tensors[i].buffer = 0; /* its place in memory stays, as the offset, and with it the alignment */
    }
    return session_call(c, wire_pack_tune, &wire, -1, wire_decode_tune, into, client_deadline(c, r->options.timeout_ms),
                        SESSION_ATTEMPTS, e);
}

enum kops_code kops_tune(kops_client *client, const struct kops_request *request, struct kops_tune **ret_tune,
                         struct kops_error *ret_error)
{
    struct kops_error unwanted, *e = ret_error ? ret_error : &unwanted;
    struct wire_tuned *w = calloc(1, sizeof(*w));
    enum kops_code r;

    if (!w)
        return fail(e, KOPS_ERR_NO_MEMORY, "there is no memory for what a tuning finds");
    client_enter(client, e);
    r = request_check(client, request, e);
    if (!r && request->options.variant)
        r = fail(e, KOPS_ERR_BAD_ARGUMENT, "options.variant must be NULL: it is what tuning chooses");
    if (!r)
        r = check_feature(client, e);
    if (!r)
        r = call_tune(client, request, w, e);
    client_leave(client);
    if (r)
        kops_tune_free(&w->tune);
    else
        *ret_tune = &w->tune;
    return fail_older(e, r, "tune");
}

struct kops_tune *kops_tune_free(struct kops_tune *tune)
{
    struct wire_tuned *w = (struct wire_tuned *)(void *)tune;

    if (!w)
        return NULL;
    arena_free(&w->arena);
    free(w);
    return NULL;
}

enum kops_code kops_tuning(kops_client *client, uint64_t from, bool clear, struct kops_tuning **ret_tuning,
                           struct kops_error *ret_error)
{
    const struct wire_tuning request = {from, clear};
    struct kops_error unwanted, *e = ret_error ? ret_error : &unwanted;
    struct wire_choices *w = calloc(1, sizeof(*w));
    enum kops_code r;

    if (!w)
        return fail(e, KOPS_ERR_NO_MEMORY, "there is no memory for the list of choices");
    client_enter(client, e);
    r = check_feature(client, e);
    if (!r) /* `clear` is not sent again after a lost connection: it would also delete newer choices */
        r = session_call(client, wire_pack_tuning, &request, -1, wire_decode_tuning, w, client_deadline(client, 0),
                         clear ? SESSION_ONCE : SESSION_ATTEMPTS, e);
    client_leave(client);
    if (r)
        kops_tuning_free(&w->tuning);
    else
        *ret_tuning = &w->tuning;
    return fail_older(e, r, "tuning");
}

struct kops_tuning *kops_tuning_free(struct kops_tuning *tuning)
{
    struct wire_choices *w = (struct wire_choices *)(void *)tuning;

    if (!w)
        return NULL;
    arena_free(&w->arena);
    free(w);
    return NULL;
}
