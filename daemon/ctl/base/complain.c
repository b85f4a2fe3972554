/* Errors and notes on stderr: a line for people, or with --json an object for programs. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "complain.h"
#include "json.h"

enum { MESSAGE_MAX_LENGTH = 1024 };

static bool as_json;

void ctl_errors_as_json(void)
{
    as_json = true;
}

bool ctl_has_json_errors(void)
{
    return as_json;
}

static void print(const char *kind, const char *code, const char *format, va_list args)
    __attribute__((format(printf, 3, 0)));

static void print(const char *kind, const char *code, const char *format, va_list args)
{
    char message[MESSAGE_MAX_LENGTH];

    vsnprintf(message, sizeof(message), format, args);
    if (!as_json) {
        fprintf(stderr, "kopsctl: %s\n", message);
        return;
    }
    json_divert(stderr);
    json_begin(NULL, '{');
    json_begin(kind, '{');
    if (code)
        json_text("code", code);
    json_text("message", message);
    json_end('}');
    json_end('}');
    json_divert(NULL);
}

enum ctl_exit ctl_complain(const char *code, const char *format, ...)
{
    va_list args;

    va_start(args, format);
    print("error", code, format, args);
    va_end(args);
    return CTL_FAILED;
}

void ctl_note(const char *format, ...)
{
    va_list args;

    va_start(args, format);
    print("note", NULL, format, args);
    va_end(args);
}

enum ctl_exit ctl_usage(const char *format, ...)
{
    va_list args;

    va_start(args, format);
    print("error", "usage", format, args);
    va_end(args);
    return CTL_USAGE;
}

enum ctl_exit ctl_no_memory(size_t bytes)
{
    return ctl_complain("no_memory", "no memory for %zu bytes", bytes);
}

/* The next step, where it is known here. */
static const char *hint(const struct kops_error *error)
{
    const char *key = kops_error_text(error, "key"), *daemon = kops_error_text(error, "daemon");

    if (error->code == KOPS_ERR_TIMEOUT)
        return "give it longer with --timeout SECONDS";
    if (error->code == KOPS_ERR_DEVICE_LOST && daemon && strcmp(daemon, "goes_on") == 0)
        return "the daemon goes on: try again";
    if (error->code == KOPS_ERR_DEVICE_LOST)
        return "the daemon restarts where a supervisor looks after it; try again then";
    if (error->code == KOPS_ERR_MISSING_KEY && key && strcmp(key, "arch") == 0)
        return "compile takes --arch, such as --arch sm_90a for an H100 or H200; launch needs a GPU, Python's "
               "interpreter "
               "(docs/kernels.md) does not";
    return NULL;
}

static void print_error_json(const char *what, const struct kops_error *error, const char *log)
{
    json_divert(stderr);
    json_begin(NULL, '{');
    json_begin("error", '{');
    json_text("code", kops_code_name(error->code));
    json_text("message", error->message);
    json_text("what", what);
    json_begin("detail", '{');
    for (unsigned i = 0; i < error->n_details; i++) {
        const struct kops_detail *d = &error->details[i];

        if (d->is_text)
            json_text(d->key, d->text);
        else
            json_int(d->key, d->number);
    }
    json_end('}');
    if (hint(error))
        json_text("hint", hint(error));
    if (log && *log)
        json_text("log", log);
    json_end('}');
    json_end('}');
    json_divert(NULL);
}

enum ctl_exit ctl_failed(const char *what, const struct kops_error *error)
{
    const char *driver = kops_error_text(error, "driver");

    if (as_json) {
        print_error_json(what, error, NULL);
        return CTL_FAILED;
    }
    fprintf(stderr, "kopsctl: %s: %s [%s%s%s]\n", what, error->message, kops_code_name(error->code), driver ? ", " : "",
            driver ? driver : "");
    if (hint(error))
        fprintf(stderr, "kopsctl: %s\n", hint(error));
    return CTL_FAILED;
}

enum ctl_exit ctl_not_compiled(const char *name, const struct kops_error *error, const char *log)
{
    const char *reason = kops_error_text(error, "reason");

    if (!log || !*log)
        return ctl_failed(name, error);
    if (as_json)
        print_error_json(name, error, log);
    else
        fprintf(stderr, "kopsctl: %s was not compiled [%s%s%s]\n%s%s", name, kops_code_name(error->code),
                reason ? ", " : "", reason ? reason : "", log, log[strlen(log) - 1] == '\n' ? "" : "\n");
    return CTL_FAILED;
}
