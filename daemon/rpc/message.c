#include "rpc/message.h"

#include <msgpack.h>
#include <stdlib.h>
#include <string.h>

#include "rpc/decode.h"

struct rpc_arena {
    msgpack_zone zone;
};

enum { ARENA_CHUNK = 8192 };

struct rpc_arena *rpc_arena_new(void)
{
    struct rpc_arena *arena = malloc(sizeof(*arena));

    if (arena && !msgpack_zone_init(&arena->zone, ARENA_CHUNK)) {
        free(arena);
        return NULL;
    }
    return arena;
}

struct rpc_arena *rpc_arena_free(struct rpc_arena *arena)
{
    if (arena) {
        msgpack_zone_destroy(&arena->zone);
        free(arena);
    }
    return NULL;
}

static int violation(struct error *e, const char *what)
{
    return error_set(e, ERROR_PROTOCOL_ERROR, "%s", what);
}

/* `nfds` must be readable without knowing the method. */
static int read_nfds(const msgpack_object *map, unsigned *ret_nfds, struct error *e)
{
    for (uint32_t i = 0; i < map->via.map.size; i++) {
        const msgpack_object_kv *kv = &map->via.map.ptr[i];

        if (kv->key.type != MSGPACK_OBJECT_STR || kv->key.via.str.size != 4 || memcmp(kv->key.via.str.ptr, "nfds", 4))
            continue;
        if (kv->val.type != MSGPACK_OBJECT_POSITIVE_INTEGER || kv->val.via.u64 > RPC_MAX_FDS)
            return violation(e, "nfds must be an integer from 0 to 16");
        *ret_nfds = (unsigned)kv->val.via.u64;
        return 0;
    }
    return 0;
}

int rpc_message_parse(struct rpc_arena *arena, const unsigned char *data, size_t length,
                      struct rpc_message *ret_message, struct error *e)
{
    struct rpc_message m = {0};
    const msgpack_object *item, *params;
    const unsigned char *end;
    msgpack_object root;
    uint32_t n;

    msgpack_zone_clear(&arena->zone);
    end = rpc_decode(&arena->zone, data, &root);
    if (!end) /* nothing else can go wrong with what was scanned */
        return error_set(e, ERROR_OUT_OF_MEMORY, "no memory to decode a message");
    if (end != data + length)
        return violation(e, "the bytes cannot be decoded");
    if (root.type != MSGPACK_OBJECT_ARRAY || root.via.array.size < 3)
        return violation(e, "a message is [0, msgid, method, [params]] or [2, method, [params]]");
    item = root.via.array.ptr;
    n = root.via.array.size;
    if (item->type != MSGPACK_OBJECT_POSITIVE_INTEGER)
        return violation(e, "a message's first element is its type, 0 or 2");
    if (item->via.u64 == 0 && n == 4) {
        item++;
        if (item->type != MSGPACK_OBJECT_POSITIVE_INTEGER || item->via.u64 > UINT32_MAX)
            return violation(e, "msgid must be an integer from 0 to 2^32 - 1");
        m.msgid = (uint32_t)item->via.u64;
    } else if (item->via.u64 == 2 && n == 3) {
        m.notification = true;
    } else {
        return violation(e, "a client sends requests (type 0, four elements) and notifications (type 2, three)");
    }
    item++;
    if (item->type != MSGPACK_OBJECT_STR)
        return violation(e, "method must be a str");
    m.method = item->via.str.ptr;
    m.method_length = item->via.str.size;
    item++;
    if (item->type == MSGPACK_OBJECT_ARRAY && item->via.array.size == 1) {
        params = item->via.array.ptr;
        if (params->type == MSGPACK_OBJECT_MAP) {
            m.params = (const struct rpc_value *)(const void *)params;
            if (read_nfds(params, &m.nfds, e) < 0)
                return -1;
        }
    }
    *ret_message = m;
    return 0;
}
