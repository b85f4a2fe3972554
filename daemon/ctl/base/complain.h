/* Errors and notes, on stderr.
 *
 * With --json an object a line: {"error": {"code", "message"}}, for an error of the daemon or of libkops with `what`
 * kopsctl was doing, `detail`, and where there are any `hint` and `log`. A note is {"note": {"message"}}. */
#ifndef KOPS_CTL_COMPLAIN_H
#define KOPS_CTL_COMPLAIN_H

#include "ctl.h"

void ctl_errors_as_json(void);
bool ctl_has_json_errors(void);

/* Prints "kopsctl: <what>: <message>" with a hint where there is one; returns CTL_FAILED. */
enum ctl_exit ctl_failed(const char *what, const struct kops_error *error);

/* The same for a source that was not compiled; `log`, NULL or empty where there is none, is the compiler's. */
enum ctl_exit ctl_not_compiled(const char *name, const struct kops_error *error, const char *log);

/* Prints "kopsctl: <message>"; returns CTL_FAILED. The code is as in kops_code_name(). */
enum ctl_exit ctl_complain(const char *code, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* The same for a note. */
void ctl_note(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Prints "kopsctl: <message>"; returns CTL_USAGE. */
enum ctl_exit ctl_usage(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Says that there is none for so many bytes; returns CTL_FAILED. */
enum ctl_exit ctl_no_memory(size_t bytes);

#endif
