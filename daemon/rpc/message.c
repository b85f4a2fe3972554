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

/* The head of an array at *at, which moves on; -1: it is none. */
static int64_t read_array(const unsigned char **at)
{
    const unsigned char *p = *at;

    if ((*p & 0xf0) == 0x90) {
        *at += 1;
        return *p & 0x0f;
    }
    if (*p == 0xdc) {
        *at += 3;
        return p[1] << 8 | p[2];
    }
    if (*p == 0xdd) {
        *at += 5;
        return (int64_t)p[1] << 24 | p[2] << 16 | p[3] << 8 | p[4];
    }
    return -1;
}

/* An integer or text at *at, which moves on; false: it is an array or map. */
static bool read_plain(const unsigned char **at, msgpack_object *ret)
{
    const unsigned char type = **at;

    if ((type >= 0x80 && type < 0xa0) || (type >= 0xdc && type <= 0xdf))
        return false;
    *at = rpc_decode(NULL, *at, ret); /* takes no memory */
    return true;
}

/* What stands before params, where *at is then. */
static int read_head(const unsigned char **at, struct rpc_message *m, struct error *e)
{
    const int64_t n = read_array(at);
    msgpack_object item;

    if (n < 3)
        return violation(e, "a message is [0, msgid, method, [params]] or [2, method, [params]]");
    if (!read_plain(at, &item) || item.type != MSGPACK_OBJECT_POSITIVE_INTEGER)
        return violation(e, "a message's first element is its type, 0 or 2");
    if (item.via.u64 == 0 && n == 4) {
        if (!read_plain(at, &item) || item.type != MSGPACK_OBJECT_POSITIVE_INTEGER || item.via.u64 > UINT32_MAX)
            return violation(e, "msgid must be an integer from 0 to 2^32 - 1");
        m->msgid = (uint32_t)item.via.u64;
    } else if (item.via.u64 == 2 && n == 3) {
        m->notification = true;
    } else {
        return violation(e, "a client sends requests (type 0, four elements) and notifications (type 2, three)");
    }
    if (!read_plain(at, &item) || item.type != MSGPACK_OBJECT_STR)
        return violation(e, "method must be a str");
    m->method = item.via.str.ptr;
    m->method_length = item.via.str.size;
    return 0;
}

int rpc_message_parse(struct rpc_arena *arena, const struct rpc_frame *frame, struct rpc_message *ret_message,
                      struct error *e)
{
    struct rpc_message m = {.values = frame->values};
    const unsigned char *at = frame->data, *end = at + frame->length, *raw;
    msgpack_object *params;

    msgpack_zone_clear(&arena->zone);
    if (read_head(&at, &m, e) < 0)
        return -1;
    if (m.values <= RPC_MAX_VALUES && read_array(&at) == 1) {
        params = msgpack_zone_malloc(&arena->zone, sizeof(*params));
        raw = at;
        at = params ? rpc_decode(&arena->zone, at, params) : NULL;
        if (!at) /* nothing else can go wrong with what was scanned */
            return error_set(e, ERROR_OUT_OF_MEMORY, "no memory to decode a message");
        if (at != end)
            return violation(e, "the bytes cannot be decoded");
        if (params->type == MSGPACK_OBJECT_MAP) {
            m.params = (const struct rpc_value *)(const void *)params;
            m.raw = raw;
            m.raw_length = (size_t)(end - raw);
            if (read_nfds(params, &m.nfds, e) < 0)
                return -1;
        }
    }
    *ret_message = m;
    return 0;
}
