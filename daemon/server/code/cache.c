/* The method cache: lets an administrator list, clear, export and import cached binaries. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "compile/service.h"
#include "server/code/code.h"
#include "server/code/kernel.h"
#include "server/code/room.h"
#include "server/memory/connection_resources.h"
#include "server/peer/connection.h"
#include "server/peer/request.h"
#include "util/log.h"

enum cache_action { CACHE_LIST, CACHE_CLEAR, CACHE_EXPORT, CACHE_IMPORT };

/* The state of a cache request. */
struct cache_call {
    enum cache_action action;
};
const size_t cache_state_bytes = sizeof(struct cache_call);

static struct cache_call *cache_of(const struct request *r)
{
    return request_state(r);
}

static void write_listed(struct rpc_output *out, const void *of, uint32_t i)
{
    const struct code_listed *l = (const struct code_listed *)of + i;

    rpc_write_record(out, RECORD(binary_map, .key = l->key, .arch = l->arch, .compiler = l->compiler,
                                 .names = {l->n_names, rpc_each_text, l->names}, .bytes = l->bytes, .age_s = l->age_s,
                                 .in_memory = l->loaded, .on_disk = l->on_disk, .from = l->from));
}

static void on_done(void *context, struct code_result *result, const struct error *e)
{
    struct request *r = context;

    if (!result) {
        request_end_error(r, e);
        return;
    }
    switch (cache_of(r)->action) {
    case CACHE_LIST:
        request_end_record(r, RECORD(cache_reply, .entries = {result->n_listed, write_listed, result->listed},
                                     .bytes = {true, result->bytes}, .limit = {true, result->limit}));
        break;
    case CACHE_CLEAR:
        request_end_record(r, RECORD(cache_reply, .removed = {true, result->removed}));
        break;
    case CACHE_EXPORT:
        request_end_fds(r, &result->fd, 1,
                        RECORD(cache_reply, .bytes = {true, result->bytes}, .nfds = {true, 1}, .fd = {true, 0}));
        result->fd = -1; /* taken */
        break;
    case CACHE_IMPORT:
        request_end_record(
            r, RECORD(cache_reply, .imported = {true, result->imported}, .skipped = {true, result->skipped}));
        break;
    }
}

static int decode_action(const struct connection *c, const struct rpc_arg *arg, enum cache_action *ret, struct error *e)
{
    static const char *const names[] = {
        [CACHE_LIST] = "list", [CACHE_CLEAR] = "clear", [CACHE_EXPORT] = "export", [CACHE_IMPORT] = "import"};
    char who[CONNECTION_WHO_MAX];

    for (unsigned i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        if (rpc_text_is(arg, names[i])) {
            log_info("cache", "action=%s %s", names[i], connection_who(c, who));
            *ret = (enum cache_action)i;
            return 0;
        }
    return error_at(e, ERROR_INVALID_ARGUMENT, "", "action", "must be list, clear, export or import");
}

/* Takes the archive's descriptor, which is the caller's then. */
static int take_fd(const struct rpc_arg *index, struct request_fds *fds, int *ret, struct error *e)
{
    if (!index->present)
        return error_at(e, ERROR_MISSING_KEY, "", "fd", "required to import");
    if (index->u >= fds->count || fds->fds[index->u] < 0)
        return error_at(e, ERROR_INVALID_FD, "", "fd", "the message brought no such descriptor");
    *ret = fds->fds[index->u];
    fds->fds[index->u] = -1;
    return 0;
}

static int begin(struct request *r, const struct rpc_arg *args, struct request_fds *fds, struct error *e)
{
    struct code_service *service = r->connection->server->modules->service;
    char key[CODE_KEY_HEX + 1];
    const char *one = NULL;
    int fd = -1;

    if (decode_action(r->connection, &args[CACHE_action], &cache_of(r)->action, e) < 0)
        return -1;
    if (args[CACHE_key].present) {
        if (args[CACHE_key].length != CODE_KEY_HEX)
            return error_at(e, ERROR_INVALID_ARGUMENT, "", "key", "must be the 64 digits that `list` shows");
        snprintf(key, sizeof(key), "%.*s", (int)args[CACHE_key].length, args[CACHE_key].text);
        one = key;
    }
    switch (cache_of(r)->action) {
    case CACHE_LIST:
        return code_cache_list(service, on_done, r, e);
    case CACHE_CLEAR:
        return code_cache_clear(service, one, on_done, r, e);
    case CACHE_EXPORT:
        return code_cache_export(service, one, on_done, r, e);
    case CACHE_IMPORT:
        break;
    }
    if (take_fd(&args[CACHE_fd], fds, &fd, e) < 0)
        return -1;
    return code_cache_import(service, fd, on_done, r, e);
}

void handle_cache(struct request *r, const struct rpc_arg *args, struct request_fds *fds)
{
    struct error e;

    if (begin(r, args, fds, &e) < 0)
        request_end_error(r, &e);
}
