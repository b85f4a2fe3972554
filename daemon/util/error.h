/* Errors with context.
 *
 * A fallible function returns 0, or a negative number after it has filled the caller's `struct error` (never NULL) with
 * one of the wire's codes, a message that tells a person the next step, and details for programs. Outputs (`ret_…`) are
 * set only on success. Thread: any; the struct belongs to the caller. */
#ifndef KOPS_UTIL_ERROR_H
#define KOPS_UTIL_ERROR_H

#include <stdbool.h>
#include <stdint.h>

#include "proto/generated/errors.h"

enum error_code {
    ERROR_NONE = 0,
#define X(NAME, name, value) ERROR_##NAME = (value),
    KOPS_ERRORS(X)
#undef X
};

enum { ERROR_MESSAGE_MAX = 256, ERROR_DETAILS_MAX = 5, ERROR_DETAIL_KEY_MAX = 16, ERROR_DETAIL_TEXT_MAX = 64 };

struct error_detail {
    char key[ERROR_DETAIL_KEY_MAX];
    bool is_text, is_bool;
    int64_t number;
    char text[ERROR_DETAIL_TEXT_MAX];
};

/* A plain value without pointers: it can be handed to another process. */
struct error {
    enum error_code code;
    unsigned n_details;
    char message[ERROR_MESSAGE_MAX];
    struct error_detail details[ERROR_DETAILS_MAX];
};

/* The code's name on the wire, "internal" for an unknown one. */
const char *error_code_name(enum error_code code);

/* Replaces *e; returns -1, so that `return error_set(...)` reads well. Control characters become question marks. */
int error_set(struct error *e, enum error_code code, const char *format, ...) __attribute__((format(printf, 3, 4)));

/* Adds a detail to an error that is set; more than ERROR_DETAILS_MAX are dropped. Keys are shorter than
 * ERROR_DETAIL_KEY_MAX. Return -1. */
int error_detail_number(struct error *e, const char *key, int64_t number);
int error_detail_bool(struct error *e, const char *key, bool value);
int error_detail_text(struct error *e, const char *key, const char *text);

/* The detail of that key; NULL: there is none. */
const struct error_detail *error_find(const struct error *e, const char *key);

/* Replaces *e with "<path><key>: <why>" and the detail `key`, "<path><key>": a fault of one value in a request. */
int error_at(struct error *e, enum error_code code, const char *path, const char *key, const char *why);

/* Puts `prefix` before the message and before the detail `key`, where there is one: says where in a larger whole the
 * fault lies. Returns -1. */
int error_prefix(struct error *e, const char *prefix);

/* Makes an error of another process safe to show: unknown codes become ERROR_INTERNAL, texts end and have no control
 * characters, a bool is one. */
void error_accept(struct error *e);

/* ---- a shortage of the system's resources ---- */

/* Returns the most descriptors that this process may have. */
uint64_t shortage_descriptors_max(void);

/* Sets an error that `what` could not be made. `cause` is the errno: quota_exceeded with its details for a lack of
 * descriptors, else out_of_memory. Returns -1. */
int error_shortage(struct error *e, int cause, const char *what);

#endif
