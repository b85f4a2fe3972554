/* Replies taken apart. Unknown keys of results are ignored, as the protocol asks. */
#include <msgpack.h>
#include <stdio.h>

#include "base/fail.h"
#include "wire.h"
#include "wire_fast.h"
#include "wire_get.h"

/* Keeps its memory from message to message, so that a reply of usual size allocates nothing. */
struct wire_decoder {
    msgpack_zone zone;
};

struct wire_decoder *wire_decoder_new(void)
{
    struct wire_decoder *d = calloc(1, sizeof(*d));

    if (d && !msgpack_zone_init(&d->zone, MSGPACK_ZONE_CHUNK_SIZE)) {
        free(d);
        return NULL;
    }
    return d;
}

struct wire_decoder *wire_decoder_free(struct wire_decoder *d)
{
    if (d)
        msgpack_zone_destroy(&d->zone);
    free(d);
    return NULL;
}

static const char *parse_response(const msgpack_object *items, struct wire_message *ret)
{
    uint64_t msgid, nfds = 0;
    const msgpack_object *claimed;

    if (!get_uint(&items[1], &msgid) || msgid > UINT32_MAX)
        return "a response's msgid is no uint32";
    ret->kind = WIRE_RESPONSE;
    ret->msgid = (uint32_t)msgid;
    if (items[2].type != MSGPACK_OBJECT_NIL) {
        ret->error = &items[2];
        return items[2].type == MSGPACK_OBJECT_MAP ? NULL : "a response's error is no map";
    }
    ret->result = &items[3];
    if (ret->result->type != MSGPACK_OBJECT_MAP)
        return "a response has neither an error nor a result map";
    claimed = map_find(ret->result, "nfds");
    if (claimed && (!get_uint(claimed, &nfds) || nfds > WIRE_MAX_FDS))
        return "a result's `nfds` is no number up to 16";
    ret->nfds = (unsigned)nfds;
    return NULL;
}

static const char *parse_notification(const msgpack_object *items, struct wire_message *ret)
{
    if (items[1].type != MSGPACK_OBJECT_STR || items[2].type != MSGPACK_OBJECT_ARRAY)
        return "a notification is not [2, method, [params]]";
    ret->kind = WIRE_OTHER_NOTIFICATION;
    if (text_is(&items[1], "error", 5) && items[2].via.array.size == 1) {
        ret->kind = WIRE_ERROR_NOTIFICATION;
        ret->error = &items[2].via.array.ptr[0];
    }
    return NULL;
}

/* The bytes of a response's result, or of its error: the message ends with nil or begins with it. */
static void find_body(const char *data, size_t length, struct wire_message *m)
{
    uint32_t msgid;
    size_t head = wire_response_head((const unsigned char *)data, length, &msgid);

    if (!head)
        return;
    m->body = data + head + (m->error ? 0 : 1);
    m->body_length = length - head - 1;
}

const char *wire_parse(struct wire_decoder *d, const char *data, size_t length, struct wire_message *ret_message)
{
    size_t offset = 0;
    msgpack_object o;
    uint64_t type;

    memset(ret_message, 0, sizeof(*ret_message));
    msgpack_zone_clear(&d->zone);
    if (msgpack_unpack(data, length, &offset, &d->zone, &o) != MSGPACK_UNPACK_SUCCESS || offset != length)
        return "the bytes are no MessagePack value, or there is no memory to decode it";
    if (o.type == MSGPACK_OBJECT_ARRAY && o.via.array.size > 0 && get_uint(&o.via.array.ptr[0], &type)) {
        if (type == 1 && o.via.array.size == 4) {
            const char *wrong = parse_response(o.via.array.ptr, ret_message);

            find_body(data, length, ret_message);
            return wrong;
        }
        if (type == 2 && o.via.array.size == 3)
            return parse_notification(o.via.array.ptr, ret_message);
    }
    return "the message is neither [1, msgid, error, result] nor [2, method, [params]]";
}

/* For "%.*s": the length of a text, or `max`. */
static int cut(const msgpack_object *text, size_t max)
{
    return (int)(text->via.str.size < max ? text->via.str.size : max);
}

static void decode_detail(const msgpack_object_kv *kv, struct kops_error *e)
{
    char key[32];

    if (kv->key.type != MSGPACK_OBJECT_STR)
        return;
    snprintf(key, sizeof(key), "%.*s", cut(&kv->key, sizeof(key)), kv->key.via.str.ptr);
    switch (kv->val.type) {
    case MSGPACK_OBJECT_POSITIVE_INTEGER:
        fail_number(e, e->code, key, kv->val.via.u64 > INT64_MAX ? INT64_MAX : (int64_t)kv->val.via.u64);
        break;
    case MSGPACK_OBJECT_NEGATIVE_INTEGER:
        fail_number(e, e->code, key, kv->val.via.i64);
        break;
    case MSGPACK_OBJECT_BOOLEAN:
        fail_number(e, e->code, key, kv->val.via.boolean);
        break;
    case MSGPACK_OBJECT_STR:
        fail_text(e, e->code, key, kv->val.via.str.ptr, kv->val.via.str.size);
        break;
    default:
        break;
    }
}

void wire_decode_error(const struct msgpack_object *error, struct kops_error *e)
{
    const msgpack_object *code = map_find(error, "code"), *message = map_find(error, "message"),
                         *detail = map_find(error, "detail");

    if (!code || code->type != MSGPACK_OBJECT_STR) {
        fail(e, KOPS_ERR_BAD_REPLY, "the daemon's error has no code");
        return;
    }
    if (message && message->type == MSGPACK_OBJECT_STR && message->via.str.size > 0)
        fail(e, code_parse(code->via.str.ptr, code->via.str.size), "%.*s", cut(message, sizeof(e->message)),
             message->via.str.ptr);
    else
        fail(e, code_parse(code->via.str.ptr, code->via.str.size), "the daemon gave no message (%.*s)", cut(code, 64),
             code->via.str.ptr);
    if (detail && detail->type == MSGPACK_OBJECT_MAP)
        for (uint32_t i = 0; i < detail->via.map.size; i++)
            decode_detail(&detail->via.map.ptr[i], e);
}

bool wire_decode_nothing(const struct msgpack_object *result, int *fds, unsigned nfds, void *into)
{
    (void)fds;
    (void)nfds;
    (void)into;
    (void)result;
    return true;
}

bool wire_decode_register(const struct msgpack_object *result, int *fds, unsigned nfds, void *into)
{
    struct wire_buffer *b = into;

    (void)fds;
    (void)nfds;
    b->fd = -1;
    b->vmm = false;
    return get_uint(map_find(result, "buffer"), &b->id) && get_uint(map_find(result, "size"), &b->size);
}

bool wire_decode_alloc(const struct msgpack_object *result, int *fds, unsigned nfds, void *into)
{
    struct wire_buffer *b = into;
    const msgpack_object *kind = map_find(result, "kind");
    uint64_t fd;

    if (!get_uint(map_find(result, "buffer"), &b->id) || !get_uint(map_find(result, "size"), &b->size) || !kind ||
        !get_uint(map_find(result, "fd"), &fd) || fd >= nfds || fds[fd] < 0)
        return false;
    b->vmm = text_is(kind, "cuda_vmm", 8);
    if (!b->vmm && !text_is(kind, "memfd", 5))
        return false;
    b->fd = fds[fd];
    fds[fd] = -1;
    return true;
}

bool wire_decode_trim(const struct msgpack_object *result, int *fds, unsigned nfds, void *into)
{
    (void)fds;
    (void)nfds;
    return get_uint(map_find(result, "unpinned"), into);
}

/* Takes a descriptor that the result names. */
static bool take_fd(const msgpack_object *index, int *fds, unsigned nfds, int *ret)
{
    uint64_t i;

    if (!get_uint(index, &i) || i >= nfds || fds[i] < 0)
        return false;
    *ret = fds[i];
    fds[i] = -1;
    return true;
}

bool wire_decode_shm(const struct msgpack_object *result, int *fds, unsigned nfds, void *into)
{
    struct wire_shm *w = into;
    const msgpack_object *shm = map_find(result, "shm");

    return get_uint(map_find(shm, "request_bytes"), &w->request_bytes) &&
           get_uint(map_find(shm, "reply_bytes"), &w->reply_bytes) && take_fd(map_find(shm, "fd"), fds, nfds, &w->fd) &&
           take_fd(map_find(shm, "doorbell"), fds, nfds, &w->doorbell) &&
           take_fd(map_find(shm, "wake"), fds, nfds, &w->wake);
}

bool wire_decode_timelines(const struct msgpack_object *result, int *fds, unsigned nfds, void *into)
{
    struct wire_timelines *w = into;

    return get_uint(map_find(result, "size"), &w->size) && get_uint(map_find(result, "streams"), &w->streams) &&
           take_fd(map_find(result, "fd"), fds, nfds, &w->fd);
}

bool wire_decode_program(const struct msgpack_object *result, int *fds, unsigned nfds, void *into)
{
    (void)fds;
    (void)nfds;
    return get_uint(map_find(result, "program"), into);
}

bool wire_decode_module(const struct msgpack_object *result, int *fds, unsigned nfds, void *into)
{
    (void)fds;
    (void)nfds;
    return get_uint(map_find(result, "module"), into);
}

bool wire_decode_kernel(const struct msgpack_object *result, int *fds, unsigned nfds, void *into)
{
    (void)fds;
    (void)nfds;
    return get_uint(map_find(result, "kernel"), into);
}

/* ---- run ---- */

static void decode_samples(const msgpack_object *samples, struct wire_timings *t)
{
    if (samples->type != MSGPACK_OBJECT_ARRAY)
        return;
    t->result.n_samples = samples->via.array.size;
    for (size_t i = 0; t->samples && i < t->samples_room && i < samples->via.array.size; i++)
        t->samples[i] = number_or_nan(&samples->via.array.ptr[i]);
}

static void decode_timing(const msgpack_object_kv *kv, struct wire_timings *t)
{
    unsigned from = 0;
    double *place, value;

    if (kv->key.type != MSGPACK_OBJECT_STR)
        return;
    place = wire_timing(&t->result, kv->key.via.str.ptr, kv->key.via.str.size, &from);
    if (place && get_number(&kv->val, &value))
        *place = value;
    else if (text_is(&kv->key, "samples", 7))
        decode_samples(&kv->val, t);
}

static bool copy_text(const msgpack_object *o, char *into, size_t size)
{
    size_t length;

    if (!o || o->type != MSGPACK_OBJECT_STR)
        return false;
    length = o->via.str.size < size - 1 ? o->via.str.size : size - 1;
    memcpy(into, o->via.str.ptr, length);
    into[length] = 0;
    return true;
}

bool wire_decode_run(const struct msgpack_object *result, int *fds, unsigned nfds, void *into)
{
    struct wire_timings *t = into;
    struct kops_result *r = &t->result;
    const msgpack_object *timings = map_find(result, "timings"), *variant = map_find(result, "variant");

    (void)fds;
    (void)nfds;
    wire_clear_result(r);
    if (!timings || timings->type != MSGPACK_OBJECT_MAP)
        return false;
    for (uint32_t i = 0; i < timings->via.map.size; i++)
        decode_timing(&timings->via.map.ptr[i], t);
    return copy_text(map_find(result, "device"), r->device, sizeof(r->device)) &&
           (!variant || copy_text(variant, r->variant, sizeof(r->variant)));
}
