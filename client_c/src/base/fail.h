/* Filling the caller's struct kops_error. Every function takes NULL where the caller wants no error. Thread: any. */
#ifndef KOPS_CLIENT_FAIL_H
#define KOPS_CLIENT_FAIL_H

#include <kops/kops.h>

/* Empties the error: KOPS_OK. */
void fail_clear(struct kops_error *e);

/* Replaces the error; returns its code, so that `return fail(...)` reads well. */
enum kops_code fail(struct kops_error *e, enum kops_code code, const char *format, ...)
    __attribute__((cold, format(printf, 3, 4)));

/* os_error: "<what>: <strerror> (errno …)", with the detail `errno`. */
enum kops_code fail_os(struct kops_error *e, int number, const char *what);

/* Adds a detail to an error that is set; returns its code. More than fit are dropped. */
enum kops_code fail_number(struct kops_error *e, enum kops_code code, const char *key, int64_t number);
enum kops_code fail_text(struct kops_error *e, enum kops_code code, const char *key, const char *text, size_t length);

/* bad_argument where a struct's words for later versions are not zero. `of` names the struct. */
enum kops_code fail_reserved(struct kops_error *e, const void *reserved, size_t size, const char *of);

/* Whether the daemon that answered with the error ends: its device is lost or hangs, and no executor takes its place.
 */
bool fail_ends_daemon(const struct kops_error *e);

/* unknown_method becomes unsupported; other outcomes of the call stay as they are. Returns the code. */
enum kops_code fail_older(struct kops_error *e, enum kops_code outcome, const char *method);

/* The code of a wire name; KOPS_ERR_INTERNAL for an unknown one. */
enum kops_code code_parse(const char *name, size_t length);

#endif
