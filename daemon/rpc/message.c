#include "rpc/message.h"

#include <string.h>

#include "codec/read.h"

static int violation(struct error *e, const char *what)
{
    return error_set(e, ERROR_PROTOCOL_ERROR, "%s", what);
}

/* Reads the value at *at, which moves behind it, or into it where it is an array or map. */
static void read_plain(const unsigned char **at, struct codec_item *ret)
{
    codec_read(*at, ret);
    *at = ret->next;
}

/* The elements before params. *at moves to params. */
static int read_head(const unsigned char **at, struct rpc_message *m, struct error *e)
{
    struct codec_item item;
    uint32_t n;

    read_plain(at, &item);
    if (item.type != CODEC_ARRAY || item.count < 3)
        return violation(e, "a message is [0, msgid, method, [params]] or [2, method, [params]]");
    n = item.count;
    read_plain(at, &item);
    if (item.type != CODEC_UINT)
        return violation(e, "a message's first element is its type, 0 or 2");
    if (item.u == 0 && n == 4) {
        read_plain(at, &item);
        if (item.type != CODEC_UINT || item.u > UINT32_MAX)
            return violation(e, "msgid must be an integer from 0 to 2^32 - 1");
        m->msgid = (uint32_t)item.u;
    } else if (item.u == 2 && n == 3) {
        m->notification = true;
    } else {
        return violation(e, "a client sends requests (type 0, four elements) and notifications (type 2, three)");
    }
    read_plain(at, &item);
    if (item.type != CODEC_STR)
        return violation(e, "method must be a str");
    m->method = item.text;
    m->method_length = item.count;
    return 0;
}

int rpc_message_parse(const struct rpc_frame *frame, struct rpc_message *ret_message, struct error *e)
{
    struct rpc_message m = {.values = frame->values};
    const unsigned char *at = frame->data, *end = at + frame->length;
    struct codec_item item;
    int nfds;

    if (read_head(&at, &m, e) < 0)
        return -1;
    codec_read(at, &item);
    if (m.values <= RPC_MAX_VALUES && item.type == CODEC_ARRAY && item.count == 1 &&
        codec_type_of(item.next) == CODEC_MAP) {
        m.params = (const struct rpc_value *)item.next;
        m.raw = item.next;
        m.raw_length = (size_t)(end - item.next);
        nfds = codec_nfds(m.raw, end, RPC_MAX_FDS); /* must be readable without knowing the method */
        if (nfds < 0)
            return violation(e, "nfds must be an integer from 0 to 16");
        m.nfds = (unsigned)nfds;
    }
    *ret_message = m;
    return 0;
}
