#include "json.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>

/* A stream, and the lists and maps that are open on it. */
struct json {
    FILE *file; /* NULL: stdout */
    bool comma, line;
    unsigned depth;
};

static struct json json, diverted;

static FILE *out(void)
{
    return json.file ? json.file : stdout;
}

void json_divert(FILE *to)
{
    if (to) {
        diverted = json;
        json = (struct json){.file = to};
    } else {
        json = diverted;
    }
}

/* Bytes of the UTF-8 character there; 0: there is none. */
static unsigned utf8_length(const unsigned char *c)
{
    static const uint32_t smallest[] = {0, 0, 0x80, 0x800, 0x10000};
    unsigned n = *c < 0x80 ? 1 : *c >> 5 == 6 ? 2 : *c >> 4 == 14 ? 3 : *c >> 3 == 30 ? 4 : 0;
    uint32_t code = n > 1 ? *c & (0x7fU >> n) : *c;

    for (unsigned i = 1; i < n; i++) {
        if ((c[i] & 0xc0) != 0x80) /* also at the end */
            return 0;
        code = code << 6 | (c[i] & 0x3f);
    }
    return n && (n == 1 || code >= smallest[n]) && code < 0x110000 && code >> 11 != 0x1b ? n : 0;
}

/* How many characters from there on stand for themselves. */
static size_t plain_length(const unsigned char *c)
{
    size_t n = 0;

    while (c[n] >= 0x20 && c[n] < 0x7f && c[n] != '"' && c[n] != '\\')
        n++;
    return n;
}

/* Bytes that are no UTF-8 become the replacement character: clients choose some of the texts. Characters that have a
 * letter are not written as numbers: Perfetto shows the numbers. */
static void put_text(const char *text)
{
    static const char letters[0x20] = {['\b'] = 'b', ['\t'] = 't', ['\n'] = 'n', ['\f'] = 'f', ['\r'] = 'r'};
    const unsigned char *c = (const unsigned char *)text;

    putc('"', out());
    while (*c) {
        size_t n = plain_length(c);

        n = n ? n : utf8_length(c);
        if (*c == '"' || *c == '\\')
            fprintf(out(), "\\%c", *c);
        else if (*c < 0x20 && letters[*c])
            fprintf(out(), "\\%c", letters[*c]);
        else if (*c < 0x20 || *c == 0x7f)
            fprintf(out(), "\\u%04x", *c);
        else if (n)
            fwrite(c, 1, n, out());
        else
            fputs("\xef\xbf\xbd", out());
        c += n ? n : 1;
    }
    putc('"', out());
}

static void begin_value(const char *key)
{
    if (json.comma)
        fputs(json.line ? ",\n" : ", ", out());
    else if (json.line)
        putc('\n', out());
    json.comma = true;
    json.line = false;
    if (key) {
        put_text(key);
        fputs(": ", out());
    }
}

void json_begin(const char *key, char bracket)
{
    begin_value(key);
    putc(bracket, out());
    json.comma = false;
    json.depth++;
}

void json_end(char bracket)
{
    putc(bracket, out());
    json.comma = true;
    if (--json.depth == 0) {
        putc('\n', out());
        json.comma = false;
    }
}

void json_line(void)
{
    json.line = true;
}

void json_text(const char *key, const char *value)
{
    begin_value(key);
    put_text(value);
}

void json_uint(const char *key, uint64_t value)
{
    begin_value(key);
    fprintf(out(), "%" PRIu64, value);
}

void json_int(const char *key, int64_t value)
{
    begin_value(key);
    fprintf(out(), "%" PRId64, value);
}

void json_number(const char *key, double value)
{
    if (key && !isfinite(value))
        return;
    begin_value(key);
    if (isfinite(value))
        fprintf(out(), "%.15g", value);
    else
        fputs("null", out());
}

void json_micros(const char *key, uint64_t ns)
{
    begin_value(key);
    fprintf(out(), "%" PRIu64 ".%03u", ns / 1000, (unsigned)(ns % 1000));
}

void json_bool(const char *key, bool value)
{
    begin_value(key);
    fputs(value ? "true" : "false", out());
}

void json_ints(const char *key, const int64_t *values, size_t n)
{
    json_begin(key, '[');
    for (size_t i = 0; i < n; i++)
        json_int(NULL, values[i]);
    json_end(']');
}

void json_texts(const char *key, const char *const *values)
{
    json_begin(key, '[');
    for (; *values; values++)
        json_text(NULL, *values);
    json_end(']');
}

static void field(const struct json_field *f, const void *object)
{
    const void *at = (const char *)object + f->at;
    const char *const *text = at, *const *const *texts = at;
    const unsigned *small = at;
    const uint64_t *number = at;
    const int64_t *integer = at;
    const double *real = at;
    const bool *boolean = at, always = f->when == JSON_ALWAYS, known = f->when == JSON_KNOWN;

    if (f->kind == JSON_TEXT && (always || (*text && **text)))
        json_text(f->key, *text);
    else if (f->kind == JSON_TEXTS && (always || *texts))
        json_texts(f->key, *texts);
    else if (f->kind == JSON_UNSIGNED)
        json_uint(f->key, *small);
    else if (f->kind == JSON_UINT && (always || *number != (known ? UINT64_MAX : 0)))
        json_uint(f->key, *number);
    else if (f->kind == JSON_INT && (always || (known ? *integer >= 0 : *integer != 0)))
        json_int(f->key, *integer);
    else if (f->kind == JSON_NUMBER)
        json_number(f->key, *real);
    else if (f->kind == JSON_BOOL)
        json_bool(f->key, *boolean);
    else if (f->kind == JSON_STRUCT)
        json_object(f->key, f->fields, at);
}

void json_fields(const struct json_field *fields, const void *object)
{
    for (; fields->key; fields++)
        field(fields, object);
}

void json_object(const char *key, const struct json_field *fields, const void *object)
{
    json_begin(key, '{');
    json_fields(fields, object);
    json_end('}');
}

void json_list(const char *key, const struct json_field *fields, const void *list)
{
    json_begin(key, '[');
    for (const void *const *object = list; *object; object++)
        json_object(NULL, fields, *object);
    json_end(']');
}

void json_each(const char *key, const void *list, void (*write)(const void *object))
{
    json_begin(key, '[');
    for (const void *const *object = list; *object; object++)
        JSON_MAP(NULL, write(*object));
    json_end(']');
}
