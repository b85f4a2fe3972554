/* kopsctl: the daemon from a shell. One file a command; this is what they share. Single-threaded. */
#ifndef KOPS_CTL_CTL_H
#define KOPS_CTL_CTL_H

#include <getopt.h>
#include <stdbool.h>
#include <stdint.h>

#include <kops/kops.h>

enum ctl_exit { CTL_OK = 0, CTL_FAILED = 1, CTL_USAGE = 2, CTL_NO_DAEMON = 3, CTL_NOT_DRAINED = 4 };

/* What every command takes, before or after its name. */
struct ctl {
    const char *socket; /* NULL: the usual places */
    int64_t timeout_ms;
    unsigned spin_us;
    int64_t reconnect_ms; /* as in kops_connect_options */
    bool json;
    kops_client *client; /* after ctl_connect(); closed by main() */
};

/* argv[0] is the command's name. */
typedef enum ctl_exit ctl_command(struct ctl *ctl, int argc, char **argv);

ctl_command ctl_ping, ctl_info, ctl_ops, ctl_stats, ctl_run, ctl_compile, ctl_launch, ctl_cache;

/* Options of every command, for the end of its table; ctl_common() takes what getopt_long returned for them. */
#define CTL_COMMON_OPTIONS                                                                                             \
    {"socket", required_argument, NULL, 'S'}, {"timeout", required_argument, NULL, 'T'},                               \
        {"json", no_argument, NULL, 'J'}, {"help", no_argument, NULL, 'h'},                                            \
    {                                                                                                                  \
        NULL, 0, NULL, 0                                                                                               \
    }

/* Handles 'S', 'T', 'J' and 'h'. Returns -1 to go on, or the exit status to end with; `usage` is the command's. */
int ctl_common(struct ctl *ctl, int option, const char *usage);

/* Connects; prints why not. CTL_OK, CTL_NO_DAEMON or CTL_FAILED. */
enum ctl_exit ctl_connect(struct ctl *ctl);

/* The same without a word. */
enum kops_code ctl_try_connect(struct ctl *ctl, struct kops_error *error);

/* ---- complain.c: what goes to stderr ----
 *
 * With --json an object a line: {"error": {"code", "message"}}, for an error of the daemon or of libkops with `what`
 * kopsctl was doing, `detail`, and where there are any `hint` and `log`. A note is {"note": {"message"}}. */

void ctl_errors_as_json(void);
bool ctl_has_json_errors(void);

/* Prints "kopsctl: <what>: <message>" with a hint where there is one; returns CTL_FAILED. */
enum ctl_exit ctl_failed(const char *what, const struct kops_error *error);

/* The same for a source that was not compiled; `log`, NULL or empty where there is none, is the compiler's. */
enum ctl_exit ctl_not_compiled(const char *name, const struct kops_error *error, const char *log);

/* Prints "kopsctl: <message>"; returns CTL_FAILED. The code is as in kops_code_name(). */
enum ctl_exit ctl_complain(const char *code, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* The same for what is worth knowing. */
void ctl_note(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Prints "kopsctl: <message>"; returns CTL_USAGE. */
enum ctl_exit ctl_usage(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Says that there is none for so many bytes; returns CTL_FAILED. */
enum ctl_exit ctl_no_memory(size_t bytes);

/* ---- main.c ---- */

/* A whole decimal number from `min` to `max`. */
bool ctl_parse_uint(const char *text, uint64_t min, uint64_t max, uint64_t *ret);

/* Sorts, and gives the value below which `share` of the n > 0 samples lie. */
void ctl_sort(double *samples, size_t n);
double ctl_quantile(const double *sorted, size_t n, double share);

#endif
