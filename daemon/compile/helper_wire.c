#include "compile/helper_wire.h"

#include <stdlib.h>
#include <string.h>

const char *failure_reason_name(enum failure_reason reason)
{
    static const char *const names[FAILURE_REASONS] = {
        [FAILURE_SOURCE] = "source", [FAILURE_ENTRY] = "entry", [FAILURE_MEMORY] = "memory",
        [FAILURE_CRASH] = "crash",   [FAILURE_TIME] = "time",
    };

    return reason < FAILURE_REASONS ? names[reason] : "crash";
}

static void put_count(struct buffer *into, uint32_t n)
{
    buffer_append(into, &n, sizeof(n));
}

static void put_text(struct buffer *into, const char *text, size_t length)
{
    if (length > COMPILER_MAX_INPUT) {
        into->failed = true;
        return;
    }
    put_count(into, (uint32_t)length);
    buffer_append(into, text, length);
    buffer_append(into, "", 1);
}

static void put_texts(struct buffer *into, const char *const *texts, unsigned n)
{
    put_count(into, n);
    for (unsigned i = 0; i < n; i++)
        put_text(into, texts[i], strlen(texts[i]));
}

size_t frame_begin(struct buffer *into, enum frame_kind kind)
{
    const struct frame_header header = {kind, 0};

    buffer_append(into, &header, sizeof(header));
    return buffer_length(into);
}

void frame_end(struct buffer *into, size_t begin, size_t max)
{
    const size_t length = buffer_length(into) - begin;
    const uint32_t said = (uint32_t)length;

    into->failed = into->failed || length > max;
    if (!into->failed)
        memcpy(into->data + into->start + begin - sizeof(said), &said, sizeof(said));
}

/* Appends a whole FRAME_REQUEST; into->failed when it does not fit or memory is short. */
static void request_encode(const struct compile_input *input, struct buffer *into)
{
    const size_t begin = frame_begin(into, FRAME_REQUEST);

    put_text(into, input->arch, strlen(input->arch));
    put_text(into, input->name, strlen(input->name));
    put_text(into, input->source, input->length);
    put_count(into, input->n_files);
    for (unsigned i = 0; i < input->n_files; i++) {
        put_text(into, input->files[i].name, strlen(input->files[i].name));
        put_text(into, input->files[i].text, input->files[i].length);
    }
    put_texts(into, input->options, input->n_options);
    put_texts(into, input->entries, input->n_entries);
    frame_end(into, begin, FRAME_MAX_REQUEST);
}

struct reader {
    const unsigned char *at;
    size_t left;
    bool failed;
};

static uint32_t take_count(struct reader *r, uint32_t max)
{
    uint32_t n = 0;

    if (r->failed || r->left < sizeof(n)) {
        r->failed = true;
        return 0;
    }
    memcpy(&n, r->at, sizeof(n));
    r->at += sizeof(n);
    r->left -= sizeof(n);
    if (n > max)
        r->failed = true;
    return r->failed ? 0 : n;
}

/* Never NULL. A text that must be free of zero bytes ends early at one, which is as good. */
static const char *take_text(struct reader *r, size_t *ret_length)
{
    size_t n = take_count(r, COMPILER_MAX_INPUT);
    const char *text = (const char *)r->at;

    *ret_length = 0;
    if (r->failed || n >= r->left || text[n] != '\0') {
        r->failed = true;
        return "";
    }
    r->at += n + 1;
    r->left -= n + 1;
    *ret_length = n;
    return text;
}

static const char **take_texts(struct reader *r, uint32_t max, unsigned *ret_n)
{
    uint32_t n = take_count(r, max);
    const char **texts = calloc((size_t)n + 1, sizeof(*texts));
    size_t length;

    if (!texts)
        r->failed = true;
    for (uint32_t i = 0; texts && i < n; i++)
        texts[i] = take_text(r, &length);
    *ret_n = texts ? n : 0;
    return texts;
}

static void take_files(struct reader *r, struct request *q)
{
    uint32_t n = take_count(r, COMPILER_MAX_FILES);
    size_t length;

    q->files = calloc((size_t)n + 1, sizeof(*q->files));
    if (!q->files) {
        r->failed = true;
        return;
    }
    for (uint32_t i = 0; i < n; i++) {
        q->files[i].name = take_text(r, &length);
        q->files[i].text = take_text(r, &q->files[i].length);
    }
    q->input.files = q->files;
    q->input.n_files = n;
}

int request_decode(const void *bytes, size_t size, struct request *ret_request)
{
    struct reader r = {bytes, size, false};
    struct request q = {0};
    size_t length;

    q.input.arch = take_text(&r, &length);
    q.input.name = take_text(&r, &length);
    q.input.source = take_text(&r, &q.input.length);
    take_files(&r, &q);
    q.input.options = q.options = take_texts(&r, COMPILER_MAX_OPTIONS, &q.input.n_options);
    q.input.entries = q.entries = take_texts(&r, COMPILED_MAX_ENTRIES, &q.input.n_entries);
    if (r.failed || r.left || !q.input.n_entries) {
        request_free(&q);
        return -1;
    }
    *ret_request = q;
    return 0;
}

int request_copy(const struct compile_input *input, struct buffer *frame, struct request *ret_request)
{
    const size_t header = sizeof(struct frame_header);

    buffer_init(frame, FRAME_MAX_REQUEST + header);
    request_encode(input, frame);
    if (!frame->failed &&
        request_decode(frame->data + frame->start + header, buffer_length(frame) - header, ret_request) == 0)
        return 0;
    buffer_free(frame);
    return -1;
}

void request_free(struct request *request)
{
    free(request->files);
    free(request->options);
    free(request->entries);
    *request = (struct request){0};
}

size_t text_character(const char *text, size_t left)
{
    const unsigned char *at = (const unsigned char *)text;

    static const struct {
        unsigned char mask, lead;
        size_t length;
        uint32_t least;
    } forms[] = {{0xe0, 0xc0, 2, 0x80}, {0xf0, 0xe0, 3, 0x800}, {0xf8, 0xf0, 4, 0x10000}};

    if (*at < 0x80)
        return (*at >= 0x20 && *at != 0x7f) || *at == '\n' || *at == '\t';
    for (unsigned i = 0; i < 3; i++) {
        uint32_t value = at[0] & (unsigned char)~forms[i].mask;

        if ((at[0] & forms[i].mask) != forms[i].lead || forms[i].length > left)
            continue;
        for (size_t k = 1; k < forms[i].length; k++) {
            if ((at[k] & 0xc0) != 0x80)
                return 0;
            value = value << 6 | (at[k] & 0x3f);
        }
        return value < forms[i].least || value > 0x10ffff || (value >= 0xd800 && value < 0xe000) ? 0 : forms[i].length;
    }
    return 0;
}

bool text_clean(char *text, size_t length)
{
    bool wrong = false;

    for (size_t i = 0; i < length;) {
        size_t n = text_character(text + i, length - i);

        if (!n) {
            text[i] = '?';
            wrong = true;
        }
        i += n ? n : 1;
    }
    return wrong;
}
