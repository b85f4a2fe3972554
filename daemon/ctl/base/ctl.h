/* The state of a kopsctl command: its options, its connection, its errors and its end. Single-threaded. */
#ifndef KOPS_CTL_CTL_H
#define KOPS_CTL_CTL_H

#include <getopt.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>

#include <kops/kops.h>

enum ctl_exit { CTL_OK = 0, CTL_FAILED = 1, CTL_USAGE = 2, CTL_NO_DAEMON = 3, CTL_NOT_DRAINED = 4 };

/* The options that every command takes, before or after its name, and the connection. */
struct ctl {
    const char *socket; /* NULL: the usual places */
    int64_t timeout_ms; /* 0: the default */
    unsigned spin_us;
    int64_t reconnect_ms; /* as in kops_connect_options */
    bool no_autostart;
    bool json;
    kops_client *client;     /* after ctl_connect(); closed by main() */
    struct kops_error error; /* error of the call that failed */
};

/* argv[0] is the command's name. */
typedef enum ctl_exit ctl_command(struct ctl *ctl, int argc, char **argv);

/* ---- connection ---- */

/* Connects; prints the reason of a failure. CTL_OK, CTL_NO_DAEMON or CTL_FAILED. */
enum ctl_exit ctl_connect(struct ctl *ctl);

/* Connects without printing errors. */
enum kops_code ctl_try_connect(struct ctl *ctl, struct kops_error *error);

/* Tells whether another try may succeed: the daemon is away, restarts or does not answer. */
bool ctl_is_away(enum kops_code code);

/* ---- options ---- */

enum { CTL_COMMAND_FOLLOWS = -1 };

struct ctl_option {
    const char *name; /* "--repeat" */
    char letter;      /* the short option; 0: none */
    enum { OPTION_FLAG, OPTION_TEXT, OPTION_NUMBER, OPTION_SECONDS, OPTION_WORD, OPTION_TAKE } kind;
    void *into;       /* bool, const char *, uint64_t, double, an index as enum or unsigned; take()'s first argument */
    const char *what; /* for errors: "--repeat <what>, not `x`" */
    double min, max;  /* limits of seconds, or of numbers, for which a `max` of 0 is UINT64_MAX */
    enum ctl_exit (*take)(void *into, const char *value); /* prints the error; CTL_OK: go on */
    const char *const *words;                             /* NULL-terminated */
};

/* Reads the arguments by the command's table, which ends with {0} or is NULL, and the common options. The command takes
 * at most `operands`, which begin at argv[optind]; with CTL_COMMAND_FOLLOWS the first one ends the options. True: go
 * on. False: end with *ret_status. */
bool ctl_parse(struct ctl *ctl, int argc, char **argv, const char *usage, const struct ctl_option *options,
               int operands, enum ctl_exit *ret_status);

/* ctl_parse(), then ctl_connect(). */
bool ctl_begin(struct ctl *ctl, int argc, char **argv, const char *usage, const struct ctl_option *options,
               int operands, enum ctl_exit *ret_status);

/* Parses a complete decimal number from `min` to `max`. */
bool ctl_parse_uint(const char *text, uint64_t min, uint64_t max, uint64_t *ret);

/* Parses seconds, whole or not, from `min` to `max`. */
bool ctl_parse_seconds(const char *text, double min, double max, double *ret);

/* Parses true, 1, false or 0. */
bool ctl_parse_bool(const char *text, bool *ret);

/* ---- errors and notes, on stderr ----
 *
 * With --json an object a line: {"error": {"code", "message"}}; an error of the daemon or of libkops also has `what`
 * kopsctl was doing, `detail`, and where there are any `hint` and `log`. A note is {"note": {"message"}}. */

/* Makes errors JSON where --json is among the arguments, even after a wrong argument. */
void ctl_look_for_json(char **argv);
bool ctl_has_json_errors(void);

/* Prints "kopsctl: <what>: <message>" with a hint where there is one; returns CTL_FAILED. */
enum ctl_exit ctl_failed(const char *what, const struct kops_error *error);

/* Prints why a source was not compiled; `log` is the compiler's, NULL or "" where there is none. */
enum ctl_exit ctl_not_compiled(const char *name, const struct kops_error *error, const char *log);

/* Prints "kopsctl: <message>"; returns CTL_FAILED. The code is as in kops_code_name(). */
enum ctl_exit ctl_complain(const char *code, const char *format, ...) __attribute__((format(printf, 2, 3)));

void ctl_note(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Prints "kopsctl: <message>"; returns CTL_USAGE. */
enum ctl_exit ctl_usage(const char *format, ...) __attribute__((format(printf, 1, 2)));

enum ctl_exit ctl_no_memory(size_t bytes);

/* ---- time, and signals that end the program ---- */

/* CLOCK_MONOTONIC, in nanoseconds. */
uint64_t ctl_clock_ns(void);

/* Blocks SIGINT, SIGTERM and SIGHUP, for ctl_wait(); *ret_ending has them. Ignores SIGPIPE. */
void ctl_block_ending(sigset_t *ret_ending);

/* Waits until that time. True: a signal came, now or before. */
bool ctl_wait(const sigset_t *ending, uint64_t until_ns);

#endif
