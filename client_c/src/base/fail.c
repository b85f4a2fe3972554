#include "fail.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "proto/generated/errors.h"

void fail_clear(struct kops_error *e)
{
    if (!e)
        return;
    e->code = KOPS_OK;
    e->n_details = 0;
    e->message[0] = 0;
}

enum kops_code fail(struct kops_error *e, enum kops_code code, const char *format, ...)
{
    va_list args;

    if (!e)
        return code;
    e->code = code;
    e->n_details = 0;
    va_start(args, format);
    vsnprintf(e->message, sizeof(e->message), format, args);
    va_end(args);
    return code;
}

enum kops_code fail_os(struct kops_error *e, int number, const char *what)
{
    fail(e, KOPS_ERR_OS_ERROR, "%s: %s (errno %d)", what, strerror(number), number);
    return fail_number(e, KOPS_ERR_OS_ERROR, "errno", number);
}

static struct kops_detail *add_detail(struct kops_error *e, const char *key)
{
    struct kops_detail *d;

    if (!e || e->n_details == sizeof(e->details) / sizeof(e->details[0]))
        return NULL;
    d = &e->details[e->n_details++];
    memset(d, 0, sizeof(*d));
    snprintf(d->key, sizeof(d->key), "%s", key);
    return d;
}

enum kops_code fail_older(struct kops_error *e, enum kops_code outcome, const char *method)
{
    if (outcome != KOPS_ERR_UNKNOWN_METHOD)
        return outcome;
    return fail(e, KOPS_ERR_UNSUPPORTED, "this daemon is older than the method `%s`: install a newer one", method);
}

enum kops_code fail_reserved(struct kops_error *e, const void *reserved, size_t size, const char *of)
{
    for (size_t i = 0; i < size; i++)
        if (((const char *)reserved)[i])
            return fail(e, KOPS_ERR_BAD_ARGUMENT, "%s.reserved is not zero: initialise the struct with {0}", of);
    return KOPS_OK;
}

bool fail_ends_daemon(const struct kops_error *e)
{
    const char *daemon = kops_error_text(e, "daemon");

    return (e->code == KOPS_ERR_DEVICE_LOST || e->code == KOPS_ERR_JOB_TIMEOUT) &&
           !(daemon && !strcmp(daemon, "goes_on"));
}

enum kops_code fail_number(struct kops_error *e, enum kops_code code, const char *key, int64_t number)
{
    struct kops_detail *d = add_detail(e, key);

    if (d)
        d->number = number;
    return code;
}

enum kops_code fail_text(struct kops_error *e, enum kops_code code, const char *key, const char *text, size_t length)
{
    struct kops_detail *d = add_detail(e, key);

    if (d) {
        d->is_text = true;
        snprintf(d->text, sizeof(d->text), "%.*s", (int)(length < sizeof(d->text) ? length : sizeof(d->text)), text);
    }
    return code;
}

enum kops_code code_parse(const char *name, size_t length)
{
#define X(NAME, text, value)                                                                                           \
    if (length == sizeof(text) - 1 && !memcmp(name, text, length))                                                     \
        return KOPS_ERR_##NAME;
    KOPS_ERRORS(X)
#undef X
    return KOPS_ERR_INTERNAL;
}

const char *kops_code_name(enum kops_code code)
{
    switch (code) {
    case KOPS_OK:
        return "ok";
#define X(NAME, text, value)                                                                                           \
    case KOPS_ERR_##NAME:                                                                                              \
        return text;
        KOPS_ERRORS(X)
#undef X
    }
    return "internal";
}

static const struct kops_detail *find_detail(const struct kops_error *error, const char *key)
{
    for (unsigned i = 0; i < error->n_details; i++)
        if (!strcmp(error->details[i].key, key))
            return &error->details[i];
    return NULL;
}

const char *kops_error_text(const struct kops_error *error, const char *key)
{
    const struct kops_detail *d = find_detail(error, key);

    return d && d->is_text ? d->text : NULL;
}

bool kops_error_number(const struct kops_error *error, const char *key, int64_t *ret_number)
{
    const struct kops_detail *d = find_detail(error, key);

    if (!d || d->is_text)
        return false;
    *ret_number = d->number;
    return true;
}
