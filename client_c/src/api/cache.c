/* The administrator's view of the daemon's cache of compiled code. */
#include <stdlib.h>
#include <string.h>

#include "base/fail.h"
#include "session/call.h"

/* What counts would differ the second time. */
static bool request_is_safe(const struct wire_cache *request)
{
    return !strcmp(request->action, "list") || !strcmp(request->action, "export");
}

static enum kops_code call_cache(kops_client *client, const struct wire_cache *request, int fd, wire_decode *decode,
                                 void *into, struct kops_error *ret_error)
{
    struct kops_error unwanted, *e = ret_error ? ret_error : &unwanted;
    enum kops_code r;

    client_enter(client, e);
    if (client->info.info.kernels)
        r = session_call(client, wire_pack_cache, request, fd, decode, into, client_deadline(client, 0),
                         request_is_safe(request) ? SESSION_ATTEMPTS : SESSION_ONCE, e);
    else
        r = fail(e, KOPS_ERR_UNSUPPORTED, "the daemon is older than kernels of one's own: install a newer one");
    client_leave(client);
    return r;
}

enum kops_code kops_cache_list(kops_client *client, struct kops_cache **ret_cache, struct kops_error *ret_error)
{
    const struct wire_cache request = {.action = "list"};
    struct wire_cache_list *list = calloc(1, sizeof(*list));
    enum kops_code r;

    if (!list)
        return fail(ret_error, KOPS_ERR_NO_MEMORY, "there is no memory for the cache's list");
    r = call_cache(client, &request, -1, wire_decode_cache_list, list, ret_error);
    if (r)
        kops_cache_free(&list->cache);
    else
        *ret_cache = &list->cache;
    return r;
}

struct kops_cache *kops_cache_free(struct kops_cache *cache)
{
    struct wire_cache_list *list = (struct wire_cache_list *)cache;

    if (!list)
        return NULL;
    arena_free(&list->arena);
    free(list);
    return NULL;
}

enum kops_code kops_cache_clear(kops_client *client, const char *key, uint64_t *ret_removed,
                                struct kops_error *ret_error)
{
    const struct wire_cache request = {.action = "clear", .key = key};
    struct wire_cache_counts counts = {0};
    enum kops_code r = call_cache(client, &request, -1, wire_decode_cache_counts, &counts, ret_error);

    if (!r && ret_removed)
        *ret_removed = counts.removed;
    return r;
}

enum kops_code kops_cache_export(kops_client *client, const char *key, int *ret_fd, uint64_t *ret_bytes,
                                 struct kops_error *ret_error)
{
    const struct wire_cache request = {.action = "export", .key = key};
    struct wire_cache_file file = {.fd = -1};
    enum kops_code r = call_cache(client, &request, -1, wire_decode_cache_file, &file, ret_error);

    if (r)
        return r;
    *ret_fd = file.fd;
    *ret_bytes = file.bytes;
    return KOPS_OK;
}

enum kops_code kops_cache_import(kops_client *client, int fd, uint64_t *ret_imported, uint64_t *ret_skipped,
                                 struct kops_error *ret_error)
{
    const struct wire_cache request = {.action = "import", .fd = true};
    struct wire_cache_counts counts = {0};
    enum kops_code r = call_cache(client, &request, fd, wire_decode_cache_counts, &counts, ret_error);

    if (!r && ret_imported)
        *ret_imported = counts.imported;
    if (!r && ret_skipped)
        *ret_skipped = counts.skipped;
    return r;
}
