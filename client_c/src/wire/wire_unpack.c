/* Replies taken apart, and the results of the frequent methods. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/fail.h"
#include "wire.h"
#include "wire_read.h"

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

/* For "%.*s": the length of a text, or `max`. */
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
    struct raw {
        const unsigned char *code, *message, *detail;
    } raw;
    static const struct wire_field fields[] = {WIRE_FIELD(struct raw, VALUE, "code", code),
                                               WIRE_FIELD(struct raw, VALUE, "message", message),
                                               WIRE_FIELD(struct raw, VALUE, "detail", detail)};
    static const struct wire_record record = WIRE_RECORD(struct raw, fields);
    struct codec_item code, message = {.count = 0};

    wire_read(NULL, error, &record, &raw);
    if (!raw.code || codec_type_of(raw.code) != CODEC_STR) {
        fail(e, KOPS_ERR_BAD_REPLY, "the daemon's error has no code");
        return;
    }
    codec_read(raw.code, &code);
    if (raw.message && codec_type_of(raw.message) == CODEC_STR)
        codec_read(raw.message, &message);
    if (message.count)
        fail(e, code_parse(code.text, code.count), "%.*s", cut(&message, sizeof(e->message)), message.text);
    else
        fail(e, code_parse(code.text, code.count), "the daemon gave no message (%.*s)", cut(&code, 64), code.text);
    take_details(raw.detail, e);
}

/* ---- results ---- */

/* The results of methods that give an id, or one number. */
static bool read_number(const unsigned char *result, const struct wire_field *field, void *into)
{
    const struct wire_record record = {sizeof(uint64_t), field, 1};

    return wire_read(NULL, result, &record, into);
}

#define WIRE_NUMBER(key_)                                                                                              \
    {                                                                                                                  \
        WIRE_KEY(key_), .type = WIRE_U64, .required = true, .size = sizeof(uint64_t)                                   \
    }

bool wire_decode_nothing(const unsigned char *result, int *fds, unsigned nfds, void *into)
{
    (void)fds;
    (void)nfds;
    (void)into;
    (void)result;
    return true;
}

bool wire_decode_image(const unsigned char *result, int *fds, unsigned nfds, void *into)
{
    static const struct wire_field fields[] = {WIRE_NEEDED(struct wire_image_info, U64, "bytes", bytes),
                                               WIRE_NEEDED(struct wire_image_info, U64, "layout", layout)};
    static const struct wire_record record = WIRE_RECORD(struct wire_image_info, fields);

    (void)fds;
    (void)nfds;
    return wire_read(NULL, result, &record, into);
}

bool wire_decode_register(const unsigned char *result, int *fds, unsigned nfds, void *into)
{
    static const struct wire_field fields[] = {WIRE_NEEDED(struct wire_buffer, U64, "buffer", id),
                                               WIRE_NEEDED(struct wire_buffer, U64, "size", size)};
    static const struct wire_record record = WIRE_RECORD(struct wire_buffer, fields);
    struct wire_buffer *b = into;

    (void)fds;
    (void)nfds;
    b->fd = -1;
    b->vmm = false;
    return wire_read(NULL, result, &record, b);
}

bool wire_take_fd(uint64_t index, int *fds, unsigned nfds, int *ret)
{
    if (index >= nfds || fds[index] < 0)
        return false;
    *ret = fds[index];
    fds[index] = -1;
    return true;
}

bool wire_decode_alloc(const unsigned char *result, int *fds, unsigned nfds, void *into)
{
    struct raw {
        struct wire_buffer buffer;
        const unsigned char *kind;
        uint64_t fd;
    } raw;
    static const struct wire_field fields[] = {
        WIRE_NEEDED(struct raw, U64, "buffer", buffer.id), WIRE_NEEDED(struct raw, U64, "size", buffer.size),
        WIRE_NEEDED(struct raw, VALUE, "kind", kind), WIRE_NEEDED(struct raw, U64, "fd", fd)};
    static const struct wire_record record = WIRE_RECORD(struct raw, fields);
    struct wire_buffer *b = into;

    if (!wire_read(NULL, result, &record, &raw))
        return false;
    raw.buffer.vmm = wire_text_is(raw.kind, "cuda_vmm");
    if ((!raw.buffer.vmm && !wire_text_is(raw.kind, "memfd")) || !wire_take_fd(raw.fd, fds, nfds, &raw.buffer.fd))
        return false;
    *b = raw.buffer;
    return true;
}

bool wire_decode_trim(const unsigned char *result, int *fds, unsigned nfds, void *into)
{
    static const struct wire_field unpinned = WIRE_NUMBER("unpinned");

    (void)fds;
    (void)nfds;
    return read_number(result, &unpinned, into);
}

bool wire_decode_shm(const unsigned char *result, int *fds, unsigned nfds, void *into)
{
    struct raw {
        uint64_t fd, doorbell, wake, request_bytes, reply_bytes;
    } raw;
    static const struct wire_field fields[] = {
        WIRE_NEEDED(struct raw, U64, "fd", fd), WIRE_NEEDED(struct raw, U64, "doorbell", doorbell),
        WIRE_NEEDED(struct raw, U64, "wake", wake), WIRE_NEEDED(struct raw, U64, "request_bytes", request_bytes),
        WIRE_NEEDED(struct raw, U64, "reply_bytes", reply_bytes)};
    static const struct wire_record ring = WIRE_RECORD(struct raw, fields);
    static const struct wire_field shm[] = {{WIRE_KEY("shm"), .type = WIRE_MAP, .required = true, .record = &ring}};
    static const struct wire_record record = WIRE_RECORD(struct raw, shm);
    struct wire_shm *w = into;

    if (!wire_read(NULL, result, &record, &raw))
        return false;
    w->request_bytes = raw.request_bytes;
    w->reply_bytes = raw.reply_bytes;
    return wire_take_fd(raw.fd, fds, nfds, &w->fd) && wire_take_fd(raw.doorbell, fds, nfds, &w->doorbell) &&
           wire_take_fd(raw.wake, fds, nfds, &w->wake);
}

bool wire_decode_timelines(const unsigned char *result, int *fds, unsigned nfds, void *into)
{
    struct raw {
        uint64_t fd, size, streams;
    } raw;
    static const struct wire_field fields[] = {WIRE_NEEDED(struct raw, U64, "fd", fd),
                                               WIRE_NEEDED(struct raw, U64, "size", size),
                                               WIRE_NEEDED(struct raw, U64, "streams", streams)};
    static const struct wire_record record = WIRE_RECORD(struct raw, fields);
    struct wire_timelines *w = into;

    if (!wire_read(NULL, result, &record, &raw))
        return false;
    w->size = raw.size;
    w->streams = raw.streams;
    return wire_take_fd(raw.fd, fds, nfds, &w->fd);
}

bool wire_decode_program(const unsigned char *result, int *fds, unsigned nfds, void *into)
{
    static const struct wire_field program = WIRE_NUMBER("program");

    (void)fds;
    (void)nfds;
    return read_number(result, &program, into);
}

bool wire_decode_module(const unsigned char *result, int *fds, unsigned nfds, void *into)
{
    static const struct wire_field module = WIRE_NUMBER("module");

    (void)fds;
    (void)nfds;
    return read_number(result, &module, into);
}

bool wire_decode_kernel(const unsigned char *result, int *fds, unsigned nfds, void *into)
{
    static const struct wire_field kernel = WIRE_NUMBER("kernel");

    (void)fds;
    (void)nfds;
    return read_number(result, &kernel, into);
}

/* ---- run ---- */

static bool read_samples(struct arena *a, const unsigned char *value, void *into)
{
    struct wire_timings *t = into;
    const uint32_t n = wire_elements(value, &value);

    (void)a;
    t->result.n_samples = n;
    for (uint32_t i = 0; t->samples && i < t->samples_room && i < n; i++, value = codec_skip(value)) {
        t->samples[i] = (double)NAN;
        wire_get_number(value, &t->samples[i]);
    }
    return true;
}

#define TIMING(key, member) WIRE_FIELD(struct wire_timings, F64, key, result.member)
static const struct wire_field timing_fields[] = {
    TIMING("recv_to_start_us", recv_to_start_us),
    TIMING("queue_us", queue_us),
    TIMING("gpu_us", gpu_us),
    TIMING("host_us", host_us),
    TIMING("total_us", total_us),
    TIMING("map_us", map_us),
    TIMING("h2d_us", h2d_us),
    TIMING("d2h_us", d2h_us),
    TIMING("wait_us", wait_us),
    TIMING("end_us", end_us),
    TIMING("wall_us", wall_us),
    TIMING("min", min_us),
    TIMING("median", median_us),
    TIMING("p90", p90_us),
    TIMING("max", max_us),
    WIRE_FIELD(struct wire_timings, U64, "received_ns", result.received_ns),
    {WIRE_KEY("samples"), .type = WIRE_OTHER, .read = read_samples},
};
#undef TIMING
static const struct wire_record timings_record = WIRE_RECORD(struct wire_timings, timing_fields);

static const struct wire_field run_fields[] = {
    {WIRE_KEY("timings"), .type = WIRE_MAP, .required = true, .record = &timings_record},
    {WIRE_KEY("device"), .type = WIRE_CHARS, .required = true, WIRE_AT(struct wire_timings, result.device)},
    {WIRE_KEY("variant"), .type = WIRE_CHARS, WIRE_AT(struct wire_timings, result.variant)},
    {WIRE_KEY("timer"), .type = WIRE_CHARS, WIRE_AT(struct wire_timings, result.timer)},
    WIRE_FIELD(struct wire_timings, BOOL, "exclusive", result.exclusive),
};
static const struct wire_record run_record = WIRE_RECORD(struct wire_timings, run_fields);

bool wire_decode_run(const unsigned char *result, int *fds, unsigned nfds, void *into)
{
    struct wire_timings *t = into;

    (void)fds;
    (void)nfds;
    memset(&t->result, 0, sizeof(t->result));
    return wire_read(NULL, result, &run_record, t);
}
