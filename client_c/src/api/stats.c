/* Statistics, and giving unused memory back. */
#include <stdlib.h>

#include "base/fail.h"
#include "run/launch_here.h"
#include "session/call.h"

enum kops_code kops_trim(kops_client *client, uint64_t *ret_bytes, struct kops_error *ret_error)
{
    struct kops_error unwanted, *e = ret_error ? ret_error : &unwanted;
    uint64_t bytes = 0;
    enum kops_code r;

    client_enter(client, e);
    r = session_call(client, wire_pack_plain, "trim", -1, wire_decode_trim, &bytes, client_deadline(client, 0),
                     SESSION_ATTEMPTS, e);
    client_leave(client);
    if (!r && ret_bytes)
        *ret_bytes = bytes;
    return r;
}

enum kops_code kops_stats_get(kops_client *client, const struct kops_stats_filter *filter,
                              struct kops_stats **ret_stats, struct kops_error *ret_error)
{
    static const struct kops_stats_filter everything;
    struct kops_error unwanted, *e = ret_error ? ret_error : &unwanted;
    struct wire_stats *s = calloc(1, sizeof(*s));
    enum kops_code r;

    if (!s)
        return fail(e, KOPS_ERR_NO_MEMORY, "there is no memory for statistics");
    client_enter(client, e);
    kernels_tell_here(client);
    ops_tell_here(client);
    r = session_call(client, wire_pack_stats, filter ? filter : &everything, -1, wire_decode_stats, s,
                     client_deadline(client, 0), SESSION_ATTEMPTS, e);
    client_leave(client);
    if (r) {
        kops_stats_free(&s->stats);
        return r;
    }
    *ret_stats = &s->stats;
    return KOPS_OK;
}

struct kops_stats *kops_stats_free(struct kops_stats *stats)
{
    struct wire_stats *s = (struct wire_stats *)(void *)stats;

    if (s)
        arena_free(&s->arena);
    free(s);
    return NULL;
}
