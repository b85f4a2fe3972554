#include "json.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>

static bool comma;
static unsigned depth;

static void put_text(const char *text)
{
    putchar('"');
    for (const unsigned char *c = (const unsigned char *)text; *c; c++) {
        if (*c == '"' || *c == '\\')
            printf("\\%c", *c);
        else if (*c < 0x20)
            printf("\\u%04x", *c);
        else
            putchar(*c);
    }
    putchar('"');
}

static void begin_value(const char *key)
{
    if (comma)
        fputs(", ", stdout);
    comma = true;
    if (key) {
        put_text(key);
        fputs(": ", stdout);
    }
}

void json_begin(const char *key, char bracket)
{
    begin_value(key);
    putchar(bracket);
    comma = false;
    depth++;
}

void json_end(char bracket)
{
    putchar(bracket);
    comma = true;
    if (--depth == 0) {
        putchar('\n');
        comma = false;
    }
}

void json_text(const char *key, const char *value)
{
    begin_value(key);
    put_text(value);
}

void json_uint(const char *key, uint64_t value)
{
    begin_value(key);
    printf("%" PRIu64, value);
}

void json_int(const char *key, int64_t value)
{
    begin_value(key);
    printf("%" PRId64, value);
}

void json_number(const char *key, double value)
{
    if (key && !isfinite(value))
        return;
    begin_value(key);
    if (isfinite(value))
        printf("%.12g", value);
    else
        fputs("null", stdout);
}

void json_bool(const char *key, bool value)
{
    begin_value(key);
    fputs(value ? "true" : "false", stdout);
}

void json_texts(const char *key, const char *const *values)
{
    json_begin(key, '[');
    for (; *values; values++)
        json_text(NULL, *values);
    json_end(']');
}
