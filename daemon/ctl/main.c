/* Options that come before the command, and the table of commands. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "admin.h"
#include "ctl.h"

static const struct {
    const char *name, *what;
    ctl_command *run;
} commands[] = {
    {"ping", "round trips to the daemon, and how long they take", ctl_ping},
    {"info", "the daemon, its devices, limits and features", ctl_info},
    {"ops", "the built-in ops, their dtypes and attributes", ctl_ops},
    {"stats", "counters, timings of every op and shape, open mappings", ctl_stats},
    {"clients", "connected clients, their memory and latency", ctl_clients},
    {"top", "the daemon's present work, live or for scripts", ctl_top},
    {"metrics", "metrics for Prometheus: print, write to a file, serve on a port", ctl_metrics},
    {"drain", "take no new work, wait for work in flight, stop", ctl_drain},
    {"run", "run an op on random data, measure it, check it", ctl_run},
    {"compile", "compile CUDA C++, show the resulting kernels", ctl_compile},
    {"launch", "launch a kernel of a file on random data or files, measure it", ctl_launch},
    {"cache", "list, clear, export and import compiled kernels", ctl_cache},
};

/* People look at what it says, so that a daemon which does not answer is to be told of. */
enum { DEFAULT_TIMEOUT_MS = 60000 };

static const size_t n_commands = sizeof(commands) / sizeof(commands[0]);

static void print_usage(FILE *to)
{
    fprintf(to, "Usage: kopsctl [-V] [--socket PATH] [--timeout SECONDS] [--json] COMMAND [OPTION]...\n\nCommands:\n");
    for (size_t i = 0; i < n_commands; i++)
        fprintf(to, "  %-8s %s\n", commands[i].name, commands[i].what);
    fprintf(to, "\n`kopsctl COMMAND --help` tells a command's options.\n"
                "--timeout is for each request; 60 without it.\n"
                "Without --socket: KOPS_SOCKET, or $XDG_RUNTIME_DIR/kopsd.sock, or /run/kopsd/kopsd.sock.\n"
                "Exit status: 0 done, 1 failed or the check found wrong results, 2 wrong usage, 3 no daemon,\n"
                "4 (drain) work is left after the timeout.\n");
}

bool ctl_parse_uint(const char *text, uint64_t min, uint64_t max, uint64_t *ret)
{
    unsigned long long value;
    char *end;

    if (!*text || strspn(text, "0123456789") != strlen(text))
        return false;
    errno = 0;
    value = strtoull(text, &end, 10);
    if (errno || value < min || value > max)
        return false;
    *ret = value;
    return true;
}

static char **arguments; /* what getopt_long is at */

int ctl_common(struct ctl *ctl, int option, const char *usage)
{
    char *end;
    double seconds;

    switch (option) {
    case 'S':
        ctl->socket = optarg;
        return -1;
    case 'T':
        seconds = strtod(optarg, &end);
        if (*end || !(seconds > 0) || seconds > 1e9)
            return (int)ctl_usage("--timeout takes seconds above 0, not `%s`", optarg);
        ctl->timeout_ms = seconds < 0.001 ? 1 : (int64_t)(seconds * 1000);
        return -1;
    case 'J':
        ctl->json = true;
        return -1;
    case 'h':
        if (usage)
            fputs(usage, stdout);
        else
            print_usage(stdout);
        return CTL_OK;
    default: /* getopt_long has said what is wrong, unless it is not to */
        if (ctl_has_json_errors())
            ctl_usage("%s is no option here, or lacks its value", arguments[optind - 1]);
        return CTL_USAGE;
    }
}

enum kops_code ctl_try_connect(struct ctl *ctl, struct kops_error *error)
{
    struct kops_connect_options options = {.socket = ctl->socket,
                                           .name = "kopsctl " KOPS_VERSION,
                                           .timeout_ms = ctl->timeout_ms ? ctl->timeout_ms : DEFAULT_TIMEOUT_MS,
                                           .connect_timeout_ms = ctl->timeout_ms,
                                           .spin_us = ctl->spin_us,
                                           .reconnect_timeout_ms = ctl->reconnect_ms};

    return kops_connect(&options, &ctl->client, error);
}

enum ctl_exit ctl_connect(struct ctl *ctl)
{
    struct kops_error error;
    enum kops_code r = ctl_try_connect(ctl, &error);

    if (!r)
        return CTL_OK;
    ctl_failed("connecting", &error);
    return r == KOPS_ERR_PROTOCOL_MISMATCH ? CTL_FAILED : CTL_NO_DAEMON;
}

static int compare(const void *a, const void *b)
{
    const double *x = a, *y = b;

    return (*x > *y) - (*x < *y);
}

void ctl_sort(double *samples, size_t n)
{
    qsort(samples, n, sizeof(*samples), compare);
}

double ctl_quantile(const double *sorted, size_t n, double share)
{
    size_t i = (size_t)(share * (double)n);

    return sorted[i < n ? i : n - 1];
}

/* Before anything is wrong: --json may come behind the option that is. */
static void look_for_json(char **argv)
{
    for (; *argv && strcmp(*argv, "--") != 0; argv++)
        if (!strcmp(*argv, "--json")) {
            ctl_errors_as_json();
            opterr = 0;
        }
}

int main(int argc, char **argv)
{
    static const struct option options[] = {{"version", no_argument, NULL, 'V'}, CTL_COMMON_OPTIONS};
    struct ctl ctl = {0};
    int option, status = CTL_USAGE;

    arguments = argv;
    look_for_json(argv);
    while ((option = getopt_long(argc, argv, "+hV", options, NULL)) != -1) {
        int end;

        if (option == 'V') {
            printf("kopsctl %s\n", KOPS_VERSION);
            return CTL_OK;
        }
        end = ctl_common(&ctl, option, NULL);
        if (end >= 0)
            return end;
    }
    if (optind == argc) {
        if (ctl_has_json_errors())
            return (int)ctl_usage("no command; `kopsctl --help` lists them");
        print_usage(stderr);
        return CTL_USAGE;
    }
    for (size_t i = 0; i < n_commands; i++) {
        if (strcmp(commands[i].name, argv[optind]) != 0)
            continue;
        argc -= optind;
        argv += optind;
        arguments = argv;
        optind = 0; /* starts getopt_long anew */
        status = (int)commands[i].run(&ctl, argc, argv);
        kops_close(ctl.client);
        if (fflush(stdout) || ferror(stdout)) {
            return (int)ctl_complain("os_error", "writing the output: %s", strerror(errno));
        }
        return status;
    }
    return (int)ctl_usage("no command `%s`; `kopsctl --help` lists them", argv[optind]);
}
