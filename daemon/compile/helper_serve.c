/* A process that compiles one source. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "compile/helper.h"
#include "compile/helper_pages.h"
#include "compile/sandbox.h"

enum { OPEN_FILES = 256 }; /* of nested includes */

static void read_all(void *into, size_t size)
{
    unsigned char *at = into;

    while (size) {
        ssize_t n = read(HELPER_SOCKET_FD, at, size);

        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            _exit(0); /* the daemon does not want it any more */
        at += n;
        size -= (size_t)n;
    }
}

static void write_all(const struct buffer *b)
{
    const unsigned char *at = b->data + b->start, *end = b->data + b->end;

    if (b->failed)
        _exit(1);
    while (at < end) {
        ssize_t n = write(HELPER_SOCKET_FD, at, (size_t)(end - at));

        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            _exit(0);
        at += n;
    }
}

static void fail(const struct error *e)
{
    struct frame_failure failure = {.code = e->code, .reason = FAILURE_CRASH};
    struct buffer out;

    buffer_init(&out, FRAME_MAX_ANSWER);
    snprintf(failure.message, sizeof(failure.message), "%s", e->message);
    frame_put(&out, FRAME_FAILED, &failure, sizeof(failure));
    write_all(&out);
    _exit(1);
}

/* The body of the one request; ends the process when there is none. */
static void *read_request(size_t *ret_size)
{
    struct frame_header header;
    void *body;

    read_all(&header, sizeof(header));
    if (header.kind != FRAME_REQUEST || header.length > FRAME_MAX_REQUEST)
        _exit(1);
    body = malloc((size_t)header.length + 1);
    if (!body)
        _exit(1);
    read_all(body, header.length);
    *ret_size = header.length;
    return body;
}

static void put_outcome(struct buffer *out, const struct helper_outcome *o)
{
    struct frame_header header = {.kind = o->compiled ? FRAME_COMPILED : FRAME_FAILED};
    size_t before = buffer_length(out);

    buffer_append(out, &header, sizeof(header));
    if (o->compiled) {
        compiled_serialize(o->compiled, out);
    } else {
        buffer_append(out, &o->failure, sizeof(o->failure));
        if (o->log)
            buffer_append(out, o->log, o->log_length);
    }
    if (out->failed)
        return;
    header.length = (uint32_t)(buffer_length(out) - before - sizeof(header));
    *(struct frame_header *)(void *)(out->data + out->start + before) = header;
}

static void confine(const struct helper_settings *s, uint64_t space)
{
    const struct sandbox_limits limits = {space + ((uint64_t)s->memory_mib << 20), s->time_s, OPEN_FILES};
    struct error e;

    if (sandbox_limit(&limits, &e) < 0)
        fail(&e);
    if (s->sandbox != COMPILER_SANDBOX_OFF && sandbox_enter_seccomp(false, &e) < 0 &&
        s->sandbox == COMPILER_SANDBOX_REQUIRED)
        fail(&e);
}

void helper_serve_one(const struct helper_settings *settings, uint64_t space, bool hurry)
{
    struct helper_outcome outcome;
    struct request request;
    struct buffer out;
    struct error e;
    size_t size;
    void *body;

    confine(settings, space);
    if (!hurry && !pages_populate() && helper_warm(&settings->toolkit, &e) < 0)
        fail(&e);
    buffer_init(&out, FRAME_MAX_ANSWER);
    frame_put(&out, FRAME_WARM, NULL, 0);
    write_all(&out);
    buffer_consume(&out, buffer_length(&out));
    body = read_request(&size);
    if (request_decode(body, size, &request) < 0)
        _exit(1);
    helper_compile(&settings->toolkit, &request.input, &outcome);
    put_outcome(&out, &outcome);
    write_all(&out);
    _exit(0);
}
