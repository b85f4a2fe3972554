/* kopsctl report, kopsctl judge: commands of the Python package. kopsctl becomes Python, with the command's options, so
 * that the layout of a report, the judgement of a row and the measuring of peaks are written once, and tasks can be
 * Python. A first Python looks whether the package is there, so that a missing one is an error of kopsctl's own. */
#include <errno.h>
#include <spawn.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "commands.h"

/* Python looks for modules in the working directory first, which may be anybody's. */
#define NOT_FROM_HERE "import sys\nif not sys.path[0]: del sys.path[0]\n"

enum { MAX_ARGUMENTS = 4096, TEXT_SIZE = 160, WHY_MAX = 256 };

struct python {
    const char *what; /* "a judgement", for errors */
    char program[TEXT_SIZE], probe[TEXT_SIZE], seconds[32];
    const char *list[MAX_ARGUMENTS]; /* NULL-terminated */
    size_t n;
};

/* Returns false where there are too many; the commands' own options never are. */
static bool add(struct python *python, const char *argument)
{
    if (python->n + 1 >= MAX_ARGUMENTS)
        return false;
    python->list[python->n++] = argument;
    python->list[python->n] = NULL;
    return true;
}

/* An option with its value, where it has one. */
static void add_option(struct python *python, const char *option, const char *value)
{
    if (value) {
        add(python, option);
        add(python, value);
    }
}

/* The module's main(), with the command's options that were given, flags and texts, and the common ones. */
static void begin(struct python *python, const struct ctl *ctl, const char *module, const char *what,
                  const struct ctl_option *options)
{
    *python = (struct python){.what = what};
    snprintf(python->probe, sizeof(python->probe),
             NOT_FROM_HERE "try: import %s.__main__\n"
                           "except ImportError as error: sys.exit(str(error))\n",
             module);
    snprintf(python->program, sizeof(python->program),
             NOT_FROM_HERE "from %s.__main__ import main\n"
                           "sys.exit(main())\n",
             module);
    add(python, "python3");
    add_option(python, "-c", python->program);
    for (; options->name; options++) {
        if (options->kind == OPTION_TEXT)
            add_option(python, options->name, *(const char **)options->into);
        else if (*(bool *)options->into)
            add(python, options->name);
    }
    snprintf(python->seconds, sizeof(python->seconds), "%.3f", (double)ctl->timeout_ms / 1000);
    add_option(python, "--socket", ctl->socket);
    add_option(python, "--timeout", ctl->timeout_ms ? python->seconds : NULL);
    if (ctl->json)
        add(python, "--json");
}

/* What the process says on stderr, and its end. Returns its status as waitpid() has it, or -errno. */
static int listen_to(pid_t process, int from, char *ret_why, size_t size)
{
    size_t n = 0;
    int status;
    ssize_t got;

    while ((got = read(from, ret_why + n, size - 1 - n)) > 0 || (got < 0 && errno == EINTR))
        n += got > 0 ? (size_t)got : 0;
    close(from);
    ret_why[n] = '\0';
    ret_why[strcspn(ret_why, "\n")] = '\0';
    while (waitpid(process, &status, 0) < 0)
        if (errno != EINTR)
            return -errno;
    return status;
}

/* Runs the probe. Returns 0: Python has the package; otherwise -errno, or what listen_to() returned. */
static int probe(char *text, char *ret_why, size_t size)
{
    char *const arguments[] = {"python3", "-c", text, NULL};
    posix_spawn_file_actions_t actions;
    int ends[2], r;
    pid_t process;

    *ret_why = '\0';
    if (pipe(ends))
        return -errno;
    posix_spawn_file_actions_init(&actions);
    r = posix_spawn_file_actions_adddup2(&actions, ends[1], STDERR_FILENO);
    r = r ? r : posix_spawn_file_actions_addclose(&actions, ends[0]);
    r = r ? r : posix_spawn_file_actions_addclose(&actions, ends[1]);
    r = r ? r : posix_spawnp(&process, arguments[0], &actions, NULL, arguments, environ);
    posix_spawn_file_actions_destroy(&actions);
    close(ends[1]);
    if (!r)
        return listen_to(process, ends[0], ret_why, size);
    close(ends[0]);
    return -r;
}

/* Becomes Python. Returns where that is not possible. */
static enum ctl_exit become(struct python *python)
{
    char why[WHY_MAX];
    const int r = probe(python->probe, why, sizeof(why));

    if (r < 0)
        return ctl_complain("os_error", "%s needs python3 with kopsd's Python package; running python3: %s",
                            python->what, strerror(-r));
    if (r)
        return ctl_complain("unsupported",
                            "%s needs kopsd's Python package, which python3 does not have%s%s%s; in kopsd's sources: "
                            "pip install ./client_py numpy",
                            python->what, *why ? " (" : "", why, *why ? ")" : "");
    execvp(python->list[0], (char *const *)python->list);
    return ctl_complain("os_error", "running python3: %s", strerror(errno));
}

/* ---- report ---- */

static const char report_usage[] =
    "Usage: kopsctl report [--output FILE] [--op NAME] [--device UUID] [--peaks FILE] [--json]\n\n"
    "Writes a page of what the daemon's statistics have: how far each op and shape is from what its device can do "
    "(the\n"
    "roofline), a table, and where time could be won. It needs python3 with kopsd's Python package, kops, and "
    "NumPy.\n\n"
    "  -o, --output FILE  default kops-report.html; a name that ends in .png makes a picture of the roofline alone,\n"
    "                     which needs matplotlib\n"
    "      --op NAME      what ran of this op or kernel alone\n"
    "      --device UUID  what ran on this device alone (an index of `kopsctl info` will do)\n"
    "      --peaks FILE   the devices' peaks. Those that the file lacks are measured and added to it; without this\n"
    "                     option all are measured. That takes some seconds of the device, and adds to its statistics\n"
    "      --json         print what was written as JSON: file, measured\n";

enum ctl_exit ctl_report(struct ctl *ctl, int argc, char **argv)
{
    static struct python python; /* too large for a stack */
    const char *output = "kops-report.html", *op = NULL, *device = NULL, *peaks = NULL;
    const struct ctl_option options[] = {{"--output", 'o', OPTION_TEXT, &output},
                                         {"--op", 0, OPTION_TEXT, &op},
                                         {"--device", 0, OPTION_TEXT, &device},
                                         {"--peaks", 0, OPTION_TEXT, &peaks},
                                         {0}};
    enum ctl_exit status;

    if (!ctl_parse(ctl, argc, argv, report_usage, options, 0, &status))
        return status;
    if (!*output || (peaks && !*peaks))
        return ctl_usage("%s takes a path", *output ? "--peaks" : "--output");
    begin(&python, ctl, "kops.profiler", "a report", options);
    return become(&python);
}

/* ---- judge ---- */

static const char judge_usage[] =
    "Usage: kopsctl judge TASK SOLUTION... [--strict] [--deadline SECONDS] [--interpret] [--no-time] [--page FILE] "
    "[--kept FILE] [--board FILE] [--json]\n\n"
    "Judges CUDA kernels of strangers: whether they are right, how fast they are, and what they did wrong. It needs\n"
    "python3 with kopsd's Python package, kops, and NumPy.\n\n"
    "TASK is a Python file with a `task`, or FILE.py:NAME for one of its `tasks`. It is run: trust it. A SOLUTION is\n"
    "a .json, or a .cu that begins with the comment /* kops.solution {\"launches\": [...]} */, and need not be "
    "trusted.\n\n"
    "      --device UUID       the GPU (an index of `kopsctl info` will do); without it the first one\n"
    "      --strict            a process of its own on the GPU for each solution\n"
    "      --deadline SECONDS  for the launches of a solution on one draw, together; 1 without it\n"
    "      --interpret         in the interpreter, on the CPU: small cases, no daemon, no times\n"
    "      --no-time           only whether they are right\n"
    "      --page FILE         also a page of HTML\n"
    "      --kept FILE         add the verdicts to a file, as lines of JSON\n"
    "      --board FILE        a leaderboard of them, and of all in --kept, as a page of HTML\n"
    "      --json              a verdict a line, as they end\n\n"
    "Exit status 0: all are right; 5: nothing is wrong, but not all cases of a task have run, as in the interpreter.\n";

enum ctl_exit ctl_judge(struct ctl *ctl, int argc, char **argv)
{
    static struct python python;
    const char *device = NULL, *deadline = NULL, *page = NULL, *kept = NULL, *board = NULL;
    bool strict = false, interpret = false, no_time = false;
    const struct ctl_option options[] = {{"--strict", 0, OPTION_FLAG, &strict},
                                         {"--interpret", 0, OPTION_FLAG, &interpret},
                                         {"--no-time", 0, OPTION_FLAG, &no_time},
                                         {"--deadline", 0, OPTION_TEXT, &deadline},
                                         {"--device", 0, OPTION_TEXT, &device},
                                         {"--page", 0, OPTION_TEXT, &page},
                                         {"--kept", 0, OPTION_TEXT, &kept},
                                         {"--board", 0, OPTION_TEXT, &board},
                                         {0}};
    enum ctl_exit status;
    double seconds;

    if (!ctl_parse(ctl, argc, argv, judge_usage, options, argc, &status))
        return status;
    if (deadline && !ctl_parse_seconds(deadline, 1e-3, 86400, &seconds))
        return ctl_usage("--deadline takes seconds, 0.001 to 86400, not `%s`", deadline);
    if (argc - optind < 2)
        return ctl_usage("judge takes a task and solutions: kopsctl judge TASK SOLUTION...");
    begin(&python, ctl, "kops.judge", "a judgement", options);
    add(&python, "--");
    for (; optind < argc; optind++)
        if (!add(&python, argv[optind]))
            return ctl_usage("judge takes fewer than %d arguments", MAX_ARGUMENTS);
    return become(&python);
}
