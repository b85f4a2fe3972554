#include "rpc/output.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "codec/write.h"

void rpc_output_init(struct rpc_output *out, size_t max)
{
    out->position = 0;
    out->n_attachments = 0;
    buffer_init(&out->bytes, max);
}

void rpc_output_free(struct rpc_output *out)
{
    for (unsigned i = 0; i < out->n_attachments; i++)
        close(out->attachments[i].fd);
    out->n_attachments = 0;
    buffer_free(&out->bytes);
}

int rpc_output_attach(struct rpc_output *out, uint64_t start, int fd)
{
    if (out->n_attachments == RPC_OUTPUT_MAX_ATTACHMENTS) {
        close(fd);
        return -1;
    }
    out->attachments[out->n_attachments].start = start;
    out->attachments[out->n_attachments].end = rpc_output_position(out);
    out->attachments[out->n_attachments++].fd = fd;
    return 0;
}

void rpc_output_move(struct rpc_output *from, size_t length, struct rpc_output *to)
{
    if (from->bytes.failed)
        return;
    buffer_append(&to->bytes, from->bytes.data + from->bytes.end - length, length);
    from->bytes.end -= length;
}

/* The descriptors of the message that starts at the front, if any; *ret_length is cut so that one send holds nothing
 * after that message, and nothing of a later one that has descriptors. */
static unsigned attachments_here(const struct rpc_output *out, size_t *ret_length)
{
    unsigned n = 0;

    while (n < out->n_attachments && out->attachments[n].start == out->position)
        n++;
    if (n)
        *ret_length = (size_t)(out->attachments[0].end - out->position);
    else if (out->n_attachments)
        *ret_length = (size_t)(out->attachments[0].start - out->position);
    return n;
}

static ssize_t send_some(const struct rpc_output *out, int socket, size_t length, unsigned n_fds)
{
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(RPC_OUTPUT_MAX_ATTACHMENTS * sizeof(int))];
    } control;
    struct iovec iov = {out->bytes.data + out->bytes.start, length};
    struct msghdr message = {.msg_iov = &iov, .msg_iovlen = 1};
    ssize_t n;

    if (n_fds) {
        struct cmsghdr *c;

        memset(&control, 0, sizeof(control));
        message.msg_control = &control;
        message.msg_controllen = CMSG_SPACE(n_fds * sizeof(int));
        c = CMSG_FIRSTHDR(&message);
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN(n_fds * sizeof(int));
        for (unsigned i = 0; i < n_fds; i++)
            memcpy(CMSG_DATA(c) + i * sizeof(int), &out->attachments[i].fd, sizeof(int));
    }
    do /* without descriptors the simpler call is the faster one */
        n = n_fds ? sendmsg(socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT)
                  : send(socket, iov.iov_base, iov.iov_len, MSG_NOSIGNAL | MSG_DONTWAIT);
    while (n < 0 && errno == EINTR);
    return n;
}

/* ETOOMANYREFS: more descriptors are on their way, in any socket, than this user may have. */
static int refused(int cause)
{
    if (cause == EAGAIN || cause == EWOULDBLOCK)
        return 0;
    return cause == ENOBUFS || cause == ENOMEM || cause == ETOOMANYREFS ? RPC_OUTPUT_LATER : -1;
}

int rpc_output_flush(struct rpc_output *out, int socket)
{
    for (size_t length; (length = buffer_length(&out->bytes));) {
        unsigned n_fds = attachments_here(out, &length);
        ssize_t n = send_some(out, socket, length, n_fds);

        if (n < 0)
            return refused(errno);
        for (unsigned i = 0; i < n_fds; i++)
            close(out->attachments[i].fd);
        out->n_attachments -= n_fds;
        memmove(&out->attachments[0], &out->attachments[n_fds], out->n_attachments * sizeof(out->attachments[0]));
        out->position += (uint64_t)n;
        buffer_consume(&out->bytes, (size_t)n);
    }
    return 1;
}

/* ---- values as MessagePack, each in its shortest form ---- */

/* A value is written where there is room for the longest of its kind, and the bytes that it took are kept. */
#define WRITE(out, room, write)                                                                                        \
    do {                                                                                                               \
        unsigned char *at = buffer_reserve(&(out)->bytes, (room));                                                     \
                                                                                                                       \
        if (!at)                                                                                                       \
            return; /* `failed` is set, and stays */                                                                   \
        write;                                                                                                         \
        (out)->bytes.end = (size_t)(at - (out)->bytes.data);                                                           \
    } while (0)

void rpc_write_nil(struct rpc_output *out)
{
    WRITE(out, CODEC_HEAD_MAX, codec_write_nil(&at));
}

void rpc_write_bool(struct rpc_output *out, bool value)
{
    WRITE(out, CODEC_HEAD_MAX, codec_write_bool(&at, value));
}

void rpc_write_uint(struct rpc_output *out, uint64_t value)
{
    WRITE(out, CODEC_HEAD_MAX, codec_write_uint64(&at, value));
}

void rpc_write_int(struct rpc_output *out, int64_t value)
{
    WRITE(out, CODEC_HEAD_MAX, codec_write_int64(&at, value));
}

void rpc_write_double(struct rpc_output *out, double value)
{
    WRITE(out, CODEC_HEAD_MAX, codec_write_double(&at, value));
}

void rpc_write_text(struct rpc_output *out, const char *text)
{
    const size_t length = strlen(text);

    WRITE(out, CODEC_HEAD_MAX + length, codec_write_text(&at, text, length));
}

void rpc_write_array(struct rpc_output *out, uint32_t count)
{
    WRITE(out, CODEC_HEAD_MAX, codec_write_array(&at, count));
}

void rpc_write_map(struct rpc_output *out, uint32_t count)
{
    WRITE(out, CODEC_HEAD_MAX, codec_write_map(&at, count));
}

void rpc_patch_array_head(struct rpc_output *out, size_t at, uint32_t n)
{
    unsigned char *p;

    if (out->bytes.failed)
        return;
    p = out->bytes.data + out->bytes.start + at - 4;
    for (unsigned i = 0; i < 4; i++)
        p[i] = (unsigned char)(n >> (24 - 8 * i));
}

void rpc_write_raw(struct rpc_output *out, const void *bytes, size_t length)
{
    buffer_append(&out->bytes, bytes, length);
}

/* `[1, msgid,` */
static void write_response(unsigned char **at, uint32_t msgid)
{
    codec_write_array(at, 4);
    codec_write_uint8(at, 1);
    codec_write_uint32(at, msgid);
}

void rpc_write_result(struct rpc_output *out, uint32_t msgid)
{
    WRITE(out, 4 * CODEC_HEAD_MAX, write_response(&at, msgid); codec_write_nil(&at));
}

/* The length of the UTF-8 character at `p`, or 0 where there is none. */
static unsigned utf8_length(const unsigned char *p)
{
    static const struct {
        unsigned char mask, lead, length;
        uint32_t least;
    } forms[] = {{0x80, 0x00, 1, 0}, {0xe0, 0xc0, 2, 0x80}, {0xf0, 0xe0, 3, 0x800}, {0xf8, 0xf0, 4, 0x10000}};

    for (unsigned i = 0; i < 4; i++) {
        uint32_t code = *p & (unsigned char)~forms[i].mask;

        if ((*p & forms[i].mask) != forms[i].lead)
            continue;
        for (unsigned j = 1; j < forms[i].length; j++) {
            if ((p[j] & 0xc0) != 0x80)
                return 0;
            code = code << 6 | (p[j] & 0x3f);
        }
        return code < forms[i].least || code > 0x10ffff || (code >= 0xd800 && code < 0xe000) ? 0 : forms[i].length;
    }
    return 0;
}

void rpc_make_text(char *text)
{
    for (unsigned char *p = (unsigned char *)text; *p;) {
        const unsigned n = *p < 0x80 ? 1 : utf8_length(p);

        if (!n)
            *p = '?';
        p += n ? n : 1;
    }
}

void rpc_write_any_text(struct rpc_output *out, const char *text)
{
    const size_t length = strlen(text);

    WRITE(out, CODEC_HEAD_MAX + length, codec_write_text(&at, text, length); *at = 0;
          rpc_make_text((char *)at - length));
}

/* `reason` and `log` may be NULL. */
static void write_error_map(struct rpc_output *out, const struct error *e, const char *reason, const char *log)
{
    rpc_write_map(out, 3);
    rpc_write_text(out, "code");
    rpc_write_text(out, error_code_name(e->code));
    rpc_write_text(out, "message");
    rpc_write_text(out, e->message);
    rpc_write_text(out, "detail");
    rpc_write_map(out, e->n_details + (reason ? 1U : 0) + (log ? 1U : 0));
    for (unsigned i = 0; i < e->n_details; i++) {
        rpc_write_text(out, e->details[i].key);
        if (e->details[i].is_text)
            rpc_write_text(out, e->details[i].text);
        else if (e->details[i].is_bool)
            rpc_write_bool(out, e->details[i].number != 0);
        else
            rpc_write_int(out, e->details[i].number);
    }
    if (reason) {
        rpc_write_text(out, "reason");
        rpc_write_text(out, reason);
    }
    if (log) {
        rpc_write_text(out, "log");
        rpc_write_any_text(out, log);
    }
}

void rpc_write_error(struct rpc_output *out, uint32_t msgid, const struct error *e)
{
    WRITE(out, 3 * CODEC_HEAD_MAX, write_response(&at, msgid));
    write_error_map(out, e, NULL, NULL);
    rpc_write_nil(out);
}

void rpc_write_error_log(struct rpc_output *out, uint32_t msgid, const struct error *e, const char *reason,
                         const char *log)
{
    WRITE(out, 3 * CODEC_HEAD_MAX, write_response(&at, msgid));
    write_error_map(out, e, reason, log);
    rpc_write_nil(out);
}

void rpc_write_error_notification(struct rpc_output *out, const struct error *e)
{
    rpc_write_array(out, 3);
    rpc_write_uint(out, 2);
    rpc_write_text(out, "error");
    rpc_write_array(out, 1);
    write_error_map(out, e, NULL, NULL);
}
