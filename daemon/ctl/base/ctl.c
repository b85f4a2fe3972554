#include "ctl.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "output.h"

/* ---- connection ---- */

/* A person waits for the answer, so kopsctl says in time that the daemon gives none. */
enum { DEFAULT_TIMEOUT_MS = 60000 };

enum kops_code ctl_try_connect(struct ctl *ctl, struct kops_error *error)
{
    struct kops_connect_options options = {.socket = ctl->socket,
                                           .name = "kopsctl " KOPS_VERSION,
                                           .timeout_ms = ctl->timeout_ms ? ctl->timeout_ms : DEFAULT_TIMEOUT_MS,
                                           .connect_timeout_ms = ctl->timeout_ms,
                                           .spin_us = ctl->spin_us,
                                           .reconnect_timeout_ms = ctl->reconnect_ms,
                                           .no_autostart = ctl->no_autostart,
                                           .where = KOPS_WHERE_DAEMON};

    return kops_connect(&options, &ctl->client, error);
}

enum ctl_exit ctl_connect(struct ctl *ctl)
{
    enum kops_code r = ctl_try_connect(ctl, &ctl->error);

    if (!r)
        return CTL_OK;
    ctl_failed("connecting", &ctl->error);
    return r == KOPS_ERR_PROTOCOL_MISMATCH ? CTL_FAILED : CTL_NO_DAEMON;
}

bool ctl_is_away(enum kops_code code)
{
    return code == KOPS_ERR_CONNECT_FAILED || code == KOPS_ERR_CONNECTION_LOST || code == KOPS_ERR_TIMEOUT ||
           code == KOPS_ERR_SHUTTING_DOWN || code == KOPS_ERR_DEVICE_LOST;
}

/* ---- values ---- */

bool ctl_parse_uint(const char *text, uint64_t min, uint64_t max, uint64_t *ret)
{
    unsigned long long value;

    if (!*text || strspn(text, "0123456789") != strlen(text))
        return false;
    errno = 0;
    value = strtoull(text, NULL, 10);
    if (errno || value < min || value > max)
        return false;
    *ret = value;
    return true;
}

bool ctl_parse_seconds(const char *text, double min, double max, double *ret)
{
    char *end;
    double seconds = strtod(text, &end);

    if (end == text || *end || !(seconds >= min && seconds <= max))
        return false;
    *ret = seconds;
    return true;
}

bool ctl_parse_bool(const char *text, bool *ret)
{
    *ret = !strcmp(text, "true") || !strcmp(text, "1");
    return *ret || !strcmp(text, "false") || !strcmp(text, "0");
}

/* ---- options ---- */

enum { OPTIONS_MAX = 32, FIRST_VALUE = 256 };

static enum ctl_exit take_timeout(void *into, const char *value)
{
    int64_t *ms = into;
    char *end;
    const double seconds = strtod(value, &end);

    if (*end || !(seconds > 0) || seconds > 1e9)
        return ctl_usage("--timeout takes seconds above 0, not `%s`", value);
    *ms = seconds < 0.001 ? 1 : (int64_t)(seconds * 1000);
    return CTL_OK;
}

static enum ctl_exit take(const struct ctl_option *o)
{
    const char *const *word;
    bool right = true;

    switch (o->kind) {
    case OPTION_FLAG:
        *(bool *)o->into = true;
        break;
    case OPTION_TEXT:
        *(const char **)o->into = optarg;
        break;
    case OPTION_NUMBER:
        right = ctl_parse_uint(optarg, (uint64_t)o->min, o->max > 0 ? (uint64_t)o->max : UINT64_MAX, o->into);
        break;
    case OPTION_SECONDS:
        right = ctl_parse_seconds(optarg, o->min, o->max, o->into);
        break;
    case OPTION_WORD:
        for (word = o->words; *word && strcmp(*word, optarg) != 0; word++)
            continue;
        *(unsigned *)o->into = (unsigned)(word - o->words);
        right = *word != NULL;
        break;
    case OPTION_TAKE:
        return o->take(o->into, optarg);
    }
    return right ? CTL_OK : ctl_usage("%s %s, not `%s`", o->name, o->what, optarg);
}

bool ctl_parse(struct ctl *ctl, int argc, char **argv, const char *usage, const struct ctl_option *options,
               int operands, enum ctl_exit *ret_status)
{
    bool help = false;
    const struct ctl_option common[] = {{"--socket", 0, OPTION_TEXT, &ctl->socket},
                                        {"--timeout", 0, OPTION_TAKE, &ctl->timeout_ms, .take = take_timeout},
                                        {"--json", 0, OPTION_FLAG, &ctl->json},
                                        {"--help", 'h', OPTION_FLAG, &help},
                                        {0}};
    const struct ctl_option *all[OPTIONS_MAX];
    struct option longs[OPTIONS_MAX + 1] = {{NULL, 0, NULL, 0}};
    char shorts[2 * OPTIONS_MAX + 2], *letter = shorts;
    size_t n = 0, i;
    int option;

    for (; options && options->name; options++)
        all[n++] = options;
    for (const struct ctl_option *o = common; o->name; o++) {
        for (i = 0; i < n && strcmp(all[i]->name, o->name) != 0; i++)
            continue;
        if (i == n) /* the command has no such option of its own */
            all[n++] = o;
    }
    if (operands == CTL_COMMAND_FOLLOWS)
        *letter++ = '+';
    for (i = 0; i < n; i++) {
        const int argument = all[i]->kind == OPTION_FLAG ? no_argument : required_argument;

        longs[i] = (struct option){all[i]->name + 2, argument, NULL, FIRST_VALUE + (int)i};
        if (all[i]->letter)
            *letter++ = all[i]->letter;
        if (all[i]->letter && argument)
            *letter++ = ':';
    }
    *letter = 0;
    while ((option = getopt_long(argc, argv, shorts, longs, NULL)) != -1) {
        for (i = 0; i < n && option != FIRST_VALUE + (int)i && option != all[i]->letter; i++)
            continue;
        *ret_status =
            i < n ? take(all[i]) : CTL_USAGE; /* then getopt_long has said what is wrong, except with --json */
        if (i == n && ctl_has_json_errors())
            ctl_usage("%s is no option here, or lacks its value", argv[optind - 1]);
        if (help)
            fputs(usage, stdout);
        if (*ret_status || help)
            return false;
    }
    if (operands == CTL_COMMAND_FOLLOWS || argc - optind <= operands)
        return true;
    *ret_status = ctl_usage("%s takes no `%s`", argv[0], argv[optind + operands]);
    return false;
}

bool ctl_begin(struct ctl *ctl, int argc, char **argv, const char *usage, const struct ctl_option *options,
               int operands, enum ctl_exit *ret_status)
{
    if (!ctl_parse(ctl, argc, argv, usage, options, operands, ret_status))
        return false;
    *ret_status = ctl_connect(ctl);
    return *ret_status == CTL_OK;
}

/* ---- errors and notes ---- */

enum { MESSAGE_MAX_LENGTH = 1024 };

static bool as_json;

void ctl_look_for_json(char **argv)
{
    for (; *argv && strcmp(*argv, "--") != 0; argv++)
        if (!strcmp(*argv, "--json")) {
            as_json = true;
            opterr = 0;
        }
}

bool ctl_has_json_errors(void)
{
    return as_json;
}

/* The next step, where kopsctl knows it. */
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
               "interpreter (docs/kernels.md) does not";
    return NULL;
}

static void error_json(const char *what, const struct kops_error *e)
{
    json_text("what", what);
    json_begin("detail", '{');
    for (const struct kops_detail *d = e->details; d < e->details + e->n_details; d++)
        d->is_text ? json_text(d->key, d->text) : json_int(d->key, d->number);
    json_end('}');
    if (hint(e))
        json_text("hint", hint(e));
}

/* `e` and `log` are NULL where there are none. */
static void print_json(const char *kind, const char *code, const char *message, const char *what,
                       const struct kops_error *e, const char *log)
{
    json_divert(stderr);
    JSON_MAP(NULL, JSON_MAP(kind, code ? json_text("code", code) : (void)0, json_text("message", message),
                            e ? error_json(what, e) : (void)0, log && *log ? json_text("log", log) : (void)0));
    json_divert(NULL);
}

static void print(const char *kind, const char *code, const char *format, va_list args)
    __attribute__((format(printf, 3, 0)));

static void print(const char *kind, const char *code, const char *format, va_list args)
{
    char message[MESSAGE_MAX_LENGTH];

    vsnprintf(message, sizeof(message), format, args);
    if (as_json)
        print_json(kind, code, message, NULL, NULL, NULL);
    else
        fprintf(stderr, "kopsctl: %s\n", message);
}

#define PRINT(kind, code)                                                                                              \
    do {                                                                                                               \
        va_list args;                                                                                                  \
                                                                                                                       \
        va_start(args, format);                                                                                        \
        print(kind, code, format, args);                                                                               \
        va_end(args);                                                                                                  \
    } while (0)

enum ctl_exit ctl_complain(const char *code, const char *format, ...)
{
    PRINT("error", code);
    return CTL_FAILED;
}

void ctl_note(const char *format, ...)
{
    PRINT("note", NULL);
}

enum ctl_exit ctl_usage(const char *format, ...)
{
    PRINT("error", "usage");
    return CTL_USAGE;
}

enum ctl_exit ctl_no_memory(size_t bytes)
{
    return ctl_complain("no_memory", "no memory for %zu bytes", bytes);
}

enum ctl_exit ctl_failed(const char *what, const struct kops_error *error)
{
    const char *driver = kops_error_text(error, "driver");

    if (as_json) {
        print_json("error", kops_code_name(error->code), error->message, what, error, NULL);
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
        print_json("error", kops_code_name(error->code), error->message, name, error, log);
    else
        fprintf(stderr, "kopsctl: %s was not compiled [%s%s%s]\n%s%s", name, kops_code_name(error->code),
                reason ? ", " : "", reason ? reason : "", log, log[strlen(log) - 1] == '\n' ? "" : "\n");
    return CTL_FAILED;
}

/* ---- time, and signals that end the program ---- */

static const uint64_t second_ns = 1000000000;

uint64_t ctl_clock_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * second_ns + (uint64_t)now.tv_nsec;
}

void ctl_block_ending(sigset_t *ret_ending)
{
    sigemptyset(ret_ending);
    sigaddset(ret_ending, SIGINT);
    sigaddset(ret_ending, SIGTERM);
    sigaddset(ret_ending, SIGHUP);
    sigprocmask(SIG_BLOCK, ret_ending, NULL);
    signal(SIGPIPE, SIG_IGN);
}

bool ctl_wait(const sigset_t *ending, uint64_t until_ns)
{
    const uint64_t now = ctl_clock_ns(), left = until_ns > now ? until_ns - now : 0;
    const struct timespec time = {.tv_sec = (time_t)(left / second_ns), .tv_nsec = (long)(left % second_ns)};

    return sigtimedwait(ending, NULL, &time) > 0;
}
