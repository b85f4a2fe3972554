#include "util/error.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

const char *error_code_name(enum error_code code)
{
    switch (code) {
    case ERROR_NONE:
        return "none";
#define X(NAME, name, value)                                                                                           \
    case ERROR_##NAME:                                                                                                 \
        return name;
        KOPS_ERRORS(X)
#undef X
    }
    return "internal";
}

int error_set(struct error *e, enum error_code code, const char *format, ...)
{
    va_list args;

    e->code = code;
    e->n_details = 0;
    va_start(args, format);
    vsnprintf(e->message, sizeof(e->message), format, args);
    va_end(args);
    /* A message may quote untrusted text: it stays one line without control characters. */
    for (char *c = e->message; *c; c++)
        if ((unsigned char)*c < 0x20 || *c == 0x7f)
            *c = '?';
    return -1;
}

int error_detail_number(struct error *e, const char *key, int64_t number)
{
    if (e->n_details < ERROR_DETAILS_MAX)
        e->details[e->n_details++] = (struct error_detail){.key = key, .number = number};
    return -1;
}

int error_detail_bool(struct error *e, const char *key, bool value)
{
    if (e->n_details < ERROR_DETAILS_MAX)
        e->details[e->n_details++] = (struct error_detail){.key = key, .is_bool = true, .number = value};
    return -1;
}

int error_detail_text(struct error *e, const char *key, const char *text)
{
    if (e->n_details < ERROR_DETAILS_MAX) {
        struct error_detail *d = &e->details[e->n_details++];

        *d = (struct error_detail){.key = key, .is_text = true};
        snprintf(d->text, sizeof(d->text), "%s", text);
    }
    return -1;
}

int error_at(struct error *e, enum error_code code, const char *path, const char *key, const char *why)
{
    char full[ERROR_DETAIL_TEXT_MAX];

    snprintf(full, sizeof(full), "%s%s", path, key);
    error_set(e, code, "%s: %s", full, why);
    return error_detail_text(e, "key", full);
}

/* Moves `text` to the right by the prefix's length; the rest is cut off. */
static void put_before(char *text, size_t size, const char *prefix)
{
    size_t n = strlen(prefix), length = strlen(text);

    if (n >= size)
        return;
    if (length > size - 1 - n)
        length = size - 1 - n;
    memmove(text + n, text, length);
    memcpy(text, prefix, n);
    text[n + length] = '\0';
}

int error_prefix(struct error *e, const char *prefix)
{
    put_before(e->message, sizeof(e->message), prefix);
    for (unsigned i = 0; i < e->n_details; i++)
        if (e->details[i].is_text && !strcmp(e->details[i].key, "key"))
            put_before(e->details[i].text, sizeof(e->details[i].text), prefix);
    return -1;
}
