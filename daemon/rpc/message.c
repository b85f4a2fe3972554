#include "rpc/message.h"

#include <string.h>

#include "codec/read.h"

static const unsigned char *refuse(struct error *e, const char *what)
{
    error_set(e, ERROR_PROTOCOL_ERROR, "%s", what);
    return NULL;
}

/* Reads the elements before params. Returns where these begin; NULL: a violation. */
static const unsigned char *read_head(const unsigned char *at, struct rpc_message *m, struct error *e)
{
    struct codec_item item;
    uint32_t n;

    codec_read(at, &item);
    if (item.type != CODEC_ARRAY || item.count < 3)
        return refuse(e, "a message is [0, msgid, method, [params]] or [2, method, [params]]");
    n = item.count;
    codec_read(item.next, &item);
    if (item.type != CODEC_UINT)
        return refuse(e, "a message's first element is its type, 0 or 2");
    if (item.u == 0 && n == 4) {
        codec_read(item.next, &item);
        if (item.type != CODEC_UINT || item.u > UINT32_MAX)
            return refuse(e, "msgid must be an integer from 0 to 2^32 - 1");
        m->msgid = (uint32_t)item.u;
    } else if (item.u == 2 && n == 3) {
        m->notification = true;
    } else {
        return refuse(e, "a client sends requests (type 0, four elements) and notifications (type 2, three)");
    }
    codec_read(item.next, &item);
    if (item.type != CODEC_STR)
        return refuse(e, "method must be a str");
    m->method = item.text;
    m->method_length = item.count;
    return item.next;
}

int rpc_message_parse(const struct rpc_frame *frame, struct rpc_message *ret_message, struct error *e)
{
    struct rpc_message m = {.values = frame->values};
    const unsigned char *end = frame->data + frame->length, *params = read_head(frame->data, &m, e);
    struct codec_item item;
    int nfds;

    if (!params)
        return -1;
    codec_read(params, &item);
    if (m.values <= RPC_MAX_VALUES && item.type == CODEC_ARRAY && item.count == 1 &&
        codec_type_of(item.next) == CODEC_MAP) {
        m.params = (const struct rpc_value *)item.next;
        m.raw = item.next;
        m.raw_length = (size_t)(end - item.next);
        nfds = codec_nfds(m.raw, end, RPC_MAX_FDS); /* must be readable without knowing the method */
        if (nfds < 0)
            return error_set(e, ERROR_PROTOCOL_ERROR, "nfds must be an integer from 0 to 16");
        m.nfds = (unsigned)nfds;
    }
    *ret_message = m;
    return 0;
}
