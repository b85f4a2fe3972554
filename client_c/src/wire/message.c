/* Replies taken apart: messages, errors, and undecoded replies. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/fail.h"
#include "read.h"
#include "wire.h"

/* ---- messages ---- */

static const char *parse_response(const unsigned char *at, const unsigned char *end, struct wire_message *ret)
{
    struct codec_item item;
    int nfds;

    codec_read(at, &item);
    if (item.type != CODEC_UINT || item.u > UINT32_MAX)
        return "a response's msgid is no uint32";
    ret->kind = WIRE_RESPONSE;
    ret->msgid = (uint32_t)item.u;
    at = item.next;
    if (codec_type_of(at) != CODEC_NIL) {
        ret->error = at;
        ret->length = (size_t)(codec_skip(at) - at);
        return codec_type_of(at) == CODEC_MAP ? NULL : "a response's error is no map";
    }
    ret->result = at + 1;
    ret->length = (size_t)(end - ret->result);
    if (codec_type_of(ret->result) != CODEC_MAP)
        return "a response has neither an error nor a result map";
    nfds = codec_nfds(ret->result, end, WIRE_MAX_FDS);
    if (nfds < 0)
        return "a result's `nfds` is no number up to 16";
    ret->nfds = (unsigned)nfds;
    return NULL;
}

static const char *parse_notification(const unsigned char *at, struct wire_message *ret)
{
    const unsigned char *params = codec_skip(at);
    struct codec_item item;

    if (codec_type_of(at) != CODEC_STR || codec_type_of(params) != CODEC_ARRAY)
        return "a notification is not [2, method, [params]]";
    ret->kind = WIRE_OTHER_NOTIFICATION;
    codec_read(params, &item);
    if (wire_text_is(at, "error") && item.count == 1) {
        ret->kind = WIRE_ERROR_NOTIFICATION;
        ret->error = item.next;
    }
    return NULL;
}

const char *wire_parse(const void *data, size_t length, struct wire_message *ret_message)
{
    const unsigned char *bytes = data;
    struct codec_item item, type;

    memset(ret_message, 0, sizeof(*ret_message));
    codec_read(bytes, &item);
    if (item.type == CODEC_ARRAY && item.count) {
        codec_read(item.next, &type);
        if (type.type == CODEC_UINT && type.u == 1 && item.count == 4)
            return parse_response(type.next, bytes + length, ret_message);
        if (type.type == CODEC_UINT && type.u == 2 && item.count == 3)
            return parse_notification(type.next, ret_message);
    }
    return "the message is neither [1, msgid, error, result] nor [2, method, [params]]";
}

/* ---- errors ---- */

/* Returns the length of a text for "%.*s", at most `max`. */
static int cut(const struct codec_item *text, size_t max)
{
    return (int)(text->count < max ? text->count : max);
}

static void take_detail(const struct codec_item *name, const struct codec_item *value, struct kops_error *e)
{
    char key[32];

    snprintf(key, sizeof(key), "%.*s", cut(name, sizeof(key)), name->text);
    switch (value->type) {
    case CODEC_UINT:
        fail_number(e, e->code, key, value->u > INT64_MAX ? INT64_MAX : (int64_t)value->u);
        break;
    case CODEC_NEGATIVE:
        fail_number(e, e->code, key, value->i);
        break;
    case CODEC_BOOL:
        fail_number(e, e->code, key, value->b);
        break;
    case CODEC_STR:
        fail_text(e, e->code, key, value->text, value->count);
        break;
    default:
        break;
    }
}

static void take_details(const unsigned char *detail, struct kops_error *e)
{
    for (uint32_t pairs = wire_pairs(detail, &detail); pairs; pairs--) {
        struct codec_item key, value;

        codec_read(detail, &key);
        detail = codec_skip(detail);
        codec_read(detail, &value);
        detail = codec_skip(detail);
        if (key.type == CODEC_STR)
            take_detail(&key, &value, e);
    }
}

void wire_decode_error(const unsigned char *error, struct kops_error *e)
{
    struct codec_item code, message = {.count = 0};

    if (!wire_get_text(wire_find(error, "code"), &code)) {
        fail(e, KOPS_ERR_BAD_REPLY, "the daemon's error has no code");
        return;
    }
    wire_get_text(wire_find(error, "message"), &message);
    if (message.count)
        fail(e, code_parse(code.text, code.count), "%.*s", cut(&message, sizeof(e->message)), message.text);
    else
        fail(e, code_parse(code.text, code.count), "the daemon gave no message (%.*s)", cut(&code, 64), code.text);
    take_details(wire_find(error, "detail"), e);
}

char *wire_error_log(const unsigned char *error)
{
    struct codec_item log;

    return wire_get_text(wire_find(wire_find(error, "detail"), "log"), &log) ? strndup(log.text, log.count) : NULL;
}

/* ---- replies as they came ---- */

void wire_reply_error(const struct native_reply *reply, struct kops_error *ret_error)
{
    wire_decode_error((const unsigned char *)reply->data, ret_error);
}

void native_reply_free(struct native_reply *r)
{
    if (!r)
        return;
    for (unsigned i = 0; i < r->n_fds; i++)
        if (r->fds[i] >= 0)
            close(r->fds[i]);
    free(r->data);
    *r = (struct native_reply){.data = NULL};
}
