#include "util/error.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>

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

/* Makes the text one line without control characters. */
static void without_controls(char *text)
{
    for (char *c = text; *c; c++)
        if ((unsigned char)*c < 0x20 || *c == 0x7f)
            *c = '?';
}

int error_set(struct error *e, enum error_code code, const char *format, ...)
{
    va_list args;

    e->code = code;
    e->n_details = 0;
    va_start(args, format);
    vsnprintf(e->message, sizeof(e->message), format, args);
    va_end(args);
    without_controls(e->message); /* a message may quote untrusted text */
    return -1;
}

/* NULL: there is no room for another detail. */
static struct error_detail *add_detail(struct error *e, const char *key)
{
    struct error_detail *d;

    if (e->n_details == ERROR_DETAILS_MAX)
        return NULL;
    d = &e->details[e->n_details++];
    memset(d, 0, sizeof(*d));
    snprintf(d->key, sizeof(d->key), "%s", key);
    return d;
}

int error_detail_number(struct error *e, const char *key, int64_t number)
{
    struct error_detail *d = add_detail(e, key);

    if (d)
        d->number = number;
    return -1;
}

int error_detail_bool(struct error *e, const char *key, bool value)
{
    struct error_detail *d = add_detail(e, key);

    if (d) {
        d->is_bool = true;
        d->number = value;
    }
    return -1;
}

int error_detail_text(struct error *e, const char *key, const char *text)
{
    struct error_detail *d = add_detail(e, key);

    if (d) {
        d->is_text = true;
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

const struct error_detail *error_find(const struct error *e, const char *key)
{
    for (unsigned i = 0; i < e->n_details; i++)
        if (!strcmp(e->details[i].key, key))
            return &e->details[i];
    return NULL;
}

int error_prefix(struct error *e, const char *prefix)
{
    put_before(e->message, sizeof(e->message), prefix);
    for (unsigned i = 0; i < e->n_details; i++)
        if (e->details[i].is_text && !strcmp(e->details[i].key, "key"))
            put_before(e->details[i].text, sizeof(e->details[i].text), prefix);
    return -1;
}

void error_accept(struct error *e)
{
    if (e->code == ERROR_NONE || !strcmp(error_code_name(e->code), "internal"))
        e->code = ERROR_INTERNAL;
    e->message[sizeof(e->message) - 1] = '\0';
    without_controls(e->message);
    if (e->n_details > ERROR_DETAILS_MAX)
        e->n_details = ERROR_DETAILS_MAX;
    for (unsigned i = 0; i < e->n_details; i++) {
        struct error_detail *d = &e->details[i];

        d->is_text = *(const unsigned char *)&d->is_text != 0;
        d->is_bool = *(const unsigned char *)&d->is_bool != 0;
        d->key[sizeof(d->key) - 1] = d->text[sizeof(d->text) - 1] = '\0';
        without_controls(d->key);
        without_controls(d->text);
    }
}

/* ---- a shortage of the system's resources ---- */

uint64_t shortage_descriptors_max(void)
{
    struct rlimit files;

    return getrlimit(RLIMIT_NOFILE, &files) < 0 || files.rlim_cur > INT64_MAX ? INT64_MAX : files.rlim_cur;
}

int error_shortage(struct error *e, int cause, const char *what)
{
    if (cause != EMFILE && cause != ENFILE)
        return error_set(e, ERROR_OUT_OF_MEMORY, "%s: %s", what, strerror(cause));
    error_set(e, ERROR_QUOTA_EXCEEDED, "%s: %s has no descriptors left; try again later", what,
              cause == EMFILE ? "the daemon" : "this machine");
    error_detail_text(e, "quota", "descriptors");
    if (cause == ENFILE) /* how many a machine has is not known without opening a file */
        return -1;
    /* Each below the limit is taken, or there would have been one. */
    error_detail_number(e, "current", (int64_t)shortage_descriptors_max());
    return error_detail_number(e, "limit", (int64_t)shortage_descriptors_max());
}
