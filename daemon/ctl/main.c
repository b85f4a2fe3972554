/* Options that come before the command, and the table of commands. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "commands/commands.h"

/* OF_OTHERS: the command is about what other clients do, so that no daemon is started for it. */
enum { OF_OTHERS = true };

static ctl_command show_help;

static const struct {
    const char *name, *what;
    ctl_command *run;
    bool of_others;
} commands[] = {
    {"ping", "round trips to the daemon, and how long they take", ctl_ping},
    {"info", "the daemon, its devices, limits and features", ctl_info},
    {"ops", "the built-in ops, their dtypes and attributes", ctl_ops},
    {"stats", "counters, timings of every op and shape, open mappings", ctl_stats, OF_OTHERS},
    {"clients", "connected clients, their memory and latency", ctl_clients, OF_OTHERS},
    {"top", "the daemon's present work, live or for scripts", ctl_top, OF_OTHERS},
    {"trace", "record when each call waited and ran, as a timeline", ctl_trace, OF_OTHERS},
    {"report", "a page with the roofline and the table of what ran", ctl_report},
    {"metrics", "metrics for Prometheus: print, write to a file, serve on a port", ctl_metrics, OF_OTHERS},
    {"drain", "take no new work, wait for work in flight, stop", ctl_drain, OF_OTHERS},
    {"run", "run an op on random data, measure it, check it", ctl_run},
    {"tune", "measure what can run an op; the fastest runs from then on", ctl_tune},
    {"tuning", "what tuning has chosen; forget it", ctl_tuning},
    {"compile", "compile CUDA C++, show the resulting kernels", ctl_compile},
    {"launch", "launch a kernel of a file on random data or files, measure it", ctl_launch},
    {"check", "what of a tutorial's files compiles, and what does not at which line", ctl_check},
    {"judge", "judge kernels of strangers: right or not, how fast, and why", ctl_judge},
    {"cache", "list, clear, export and import compiled kernels", ctl_cache},
    {"help", "what a command does, and its options", show_help},
};

static const size_t n_commands = sizeof(commands) / sizeof(commands[0]);

/* NULL: there is no memory. */
static const char *usage_text(void)
{
    static char *text;
    size_t size;
    FILE *to = text ? NULL : open_memstream(&text, &size);

    if (!to)
        return text;
    fprintf(to, "Usage: kopsctl [-V] [--socket PATH] [--timeout SECONDS] [--json] COMMAND [OPTION]...\n\nCommands:\n");
    for (size_t i = 0; i < n_commands; i++)
        fprintf(to, "  %-8s %s\n", commands[i].name, commands[i].what);
    fprintf(to,
            "\n`kopsctl COMMAND --help` tells a command's options.\n"
            "--timeout is for each request; 60 without it.\n"
            "Without --socket: KOPS_SOCKET; or kopsd.sock in $XDG_RUNTIME_DIR, /run/user/UID or /tmp/.kopsd-UID, the\n"
            "first of them that is yours alone; or /run/kopsd/kopsd.sock; or a daemon that is started, but for stats,\n"
            "clients, top, trace, metrics and drain; KOPS_AUTOSTART=0: never. KOPS_TRUST_USER: users whose servers\n"
            "are trusted, besides you, root and kops.\n"
            "Exit status: 0 done, 1 failed or the check found wrong results, 2 wrong usage, 3 no daemon,\n"
            "4 (drain) work is left after the timeout.\n");
    return fclose(to) ? NULL : text;
}

/* The command's place in the table; n_commands: there is none. */
static size_t find_command(const char *name)
{
    size_t i = 0;

    while (i < n_commands && strcmp(commands[i].name, name) != 0)
        i++;
    return i;
}

static enum ctl_exit show_help(struct ctl *ctl, int argc, char **argv)
{
    static const char usage[] = "Usage: kopsctl help [COMMAND]\n\n"
                                "Tells what the command does, and its options, as `kopsctl COMMAND --help`; without a "
                                "command, all\ncommands.\n\n"
                                "Example: kopsctl help run\n";
    static char wanted[] = "--help";
    enum ctl_exit status;
    size_t i;

    if (!ctl_parse(ctl, argc, argv, usage, NULL, argc, &status))
        return status;
    if (optind == argc) {
        fputs(usage_text(), stdout);
        return CTL_OK;
    }
    if (argc - optind > 1)
        return ctl_usage("help takes one command, not also `%s`", argv[optind + 1]);
    i = find_command(argv[optind]);
    if (i == n_commands)
        return ctl_usage("no command `%s`; `kopsctl --help` lists them", argv[optind]);
    optind = 0;
    return commands[i].run(ctl, 2, (char *[]){argv[argc - 1], wanted, NULL});
}

int main(int argc, char **argv)
{
    const char *usage = usage_text();
    bool version = false;
    const struct ctl_option options[] = {{"--version", 'V', OPTION_FLAG, &version}, {0}};
    struct ctl ctl = {0};
    enum ctl_exit status;
    size_t command;

    if (!usage)
        return (int)ctl_no_memory(0);
    ctl_look_for_json(argv);
    if (!ctl_parse(&ctl, argc, argv, usage, options, CTL_COMMAND_FOLLOWS, &status))
        return (int)status;
    if (version) {
        printf("kopsctl %s\n", KOPS_VERSION);
        return CTL_OK;
    }
    if (optind == argc) {
        if (ctl_has_json_errors())
            return (int)ctl_usage("no command; `kopsctl --help` lists them");
        fputs(usage, stderr);
        return CTL_USAGE;
    }
    command = find_command(argv[optind]);
    if (command == n_commands)
        return (int)ctl_usage("no command `%s`; `kopsctl --help` lists them", argv[optind]);
    argc -= optind;
    argv += optind;
    ctl.no_autostart = commands[command].of_others;
    optind = 0; /* starts getopt_long anew */
    status = commands[command].run(&ctl, argc, argv);
    kops_close(ctl.client);
    if (fflush(stdout) || ferror(stdout))
        return (int)ctl_complain("os_error", "writing the output: %s", strerror(errno));
    return (int)status;
}
