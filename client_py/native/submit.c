/* Requests that are good on one connection only, sent without waiting for the reply. */
#include "python_native.h"

#include <stdlib.h>
#include <string.h>

#include "base/fail.h"
#include "jobs/job.h"

static bool same_connection(struct kops_client *c, struct job *job)
{
    const uint32_t *generation = job->context;

    return !*generation || *generation == c->generation;
}

static enum kops_code not_the_same(struct kops_client *c, struct job *job, uint64_t deadline, struct kops_error *e)
{
    (void)c;
    (void)job;
    (void)deadline;
    fail(e, KOPS_ERR_CONNECTION_LOST, "the connection to the daemon was lost");
    return fail_number(e, KOPS_ERR_CONNECTION_LOST, "unsent",
                       1); /* the request did not run, so any request can be made again */
}

enum kops_code submit_run(kops_client *client, const struct native_request *request, kops_ticket *ret_ticket,
                          struct kops_error *e)
{
    const struct kops_options *o = request->options;
    uint32_t generation = request->generation;
    struct wire_run wire = {.op = request->op,
                            .n_inputs = request->n_inputs,
                            .n_outputs = request->n_outputs,
                            .tensors = request->tensors,
                            .packed_attrs = request->attrs,
                            .packed_attrs_length = request->attrs_length,
                            .kernel = request->kernel,
                            .args = request->args,
                            .n_args = request->n_args,
                            .geometry = request->geometry,
                            .geometry_length = request->geometry_length};
    struct job job = {.pack = wire_pack_run,
                      .wire = &wire,
                      .resolve = same_connection,
                      .ensure = not_the_same,
                      .context = &generation,
                      .here = generation != 0,
                      .decode = wire_decode_nothing};
    enum kops_code r;

    client_enter(client, e);
    wire.how = (struct wire_how){.options = o,
                                 .stream = o ? o->stream : 0,
                                 .no_timing = o && o->no_timing,
                                 .priority = client_priority(client, o)};
    r = job_submit(client, &job, client_deadline(client, o ? o->timeout_ms : 0), ret_ticket, e);
    client_leave(client);
    return r;
}

/* A late reply to these brings something that must be given back. */
static wire_decode *decode_late(const char *method)
{
    static const struct {
        const char *method;
        wire_decode *decode;
    } bringing[] = {
        {"register", wire_decode_register}, {"alloc", wire_decode_alloc},   {"program", wire_decode_program},
        {"compile", wire_decode_module},    {"kernel", wire_decode_kernel},
    };

    for (size_t i = 0; i < sizeof(bringing) / sizeof(bringing[0]); i++)
        if (!strcmp(method, bringing[i].method))
            return bringing[i].decode;
    return wire_decode_nothing;
}

enum kops_code submit_raw(kops_client *client, const struct raw_request *request, kops_ticket *ret_ticket,
                          struct kops_error *e)
{
    const struct wire_raw raw = {.method = request->method, .params = request->params, .length = request->length};
    uint32_t generation = request->generation;
    struct job job = {.pack = wire_pack_raw,
                      .wire = &raw,
                      .resolve = same_connection,
                      .ensure = not_the_same,
                      .context = &generation,
                      .here = generation != 0,
                      .decode = decode_late(request->method),
                      .reply = calloc(1, sizeof(*job.reply)),
                      .owns_reply = true,
                      .fds = request->fds,
                      .n_fds = request->n_fds};
    enum kops_code r;

    if (!job.reply)
        return fail(e, KOPS_ERR_NO_MEMORY, "there is no memory for a reply");
    client_enter(client, e);
    r = job_submit(client, &job, client_deadline(client, request->timeout_ms), ret_ticket, e);
    client_leave(client);
    return r;
}
