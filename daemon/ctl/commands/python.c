/* kopsctl report, kopsctl judge, kopsctl check: commands of the Python package. kopsctl becomes Python, with the
 * command's options, so that the layout of a report, the judgement of a row and the measuring of peaks are written
 * once, and tasks can be Python. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "commands.h"

/* Python looks for modules in the working directory first, which may be anybody's. A missing package is an error of
 * kopsctl's own. */
static const char program_format[] =
    "import sys\n"
    "if not sys.path[0]: del sys.path[0]\n"
    "try: from %s.__main__ import main\n"
    "except Exception as error:\n"
    "    why = f\"%s needs kopsd's Python package, which python3 does not have ({error}); in kopsd's sources: \"\\\n"
    "        \"pip install ./client_py numpy\"\n"
    "    import json\n"
    "    sys.exit(json.dumps({'error': {'code': 'unsupported', 'message': why}}) if %d else 'kopsctl: ' + why)\n"
    "sys.exit(main())\n";

enum { MAX_ARGUMENTS = 4096 };

/* Python's command line; NULL-terminated. */
static const char *arguments[MAX_ARGUMENTS];
static size_t n_arguments;

/* Returns false where there are too many; the commands' own options never are. */
static bool add(const char *argument)
{
    if (n_arguments + 1 >= MAX_ARGUMENTS)
        return false;
    arguments[n_arguments++] = argument;
    return true;
}

/* An option with its value, where it has one. */
static void add_option(const char *option, const char *value)
{
    if (value) {
        add(option);
        add(value);
    }
}

/* The module's main(), with the command's options that were given, flags and texts, and the common ones. */
static void begin(const struct ctl *ctl, const char *module, const char *what, const struct ctl_option *options)
{
    static char program[sizeof(program_format) + 64], seconds[32];

    snprintf(program, sizeof(program), program_format, module, what, ctl->json);
    add("python3");
    add_option("-c", program);
    for (; options->name; options++)
        if (options->kind == OPTION_TEXT)
            add_option(options->name, *(const char **)options->into);
        else if (*(bool *)options->into)
            add(options->name);
    snprintf(seconds, sizeof(seconds), "%.3f", (double)ctl->timeout_ms / 1000);
    add_option("--socket", ctl->socket);
    add_option("--timeout", ctl->timeout_ms ? seconds : NULL);
    if (ctl->json)
        add("--json");
}

/* Becomes Python. Returns where that is not possible. */
static enum ctl_exit become(const char *what)
{
    execvp(arguments[0], (char *const *)arguments);
    return ctl_complain("os_error", "%s needs python3 with kopsd's Python package; running python3: %s", what,
                        strerror(errno));
}

/* As become(), with the arguments that are no options. */
static enum ctl_exit become_with_files(const char *command, const char *what, int argc, char **argv)
{
    add("--");
    for (; optind < argc; optind++)
        if (!add(argv[optind]))
            return ctl_usage("%s takes fewer than %d arguments", command, MAX_ARGUMENTS);
    return become(what);
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
    begin(ctl, "kops.profiler", "a report", options);
    return become("a report");
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
    begin(ctl, "kops.judge", "a judgement", options);
    return become_with_files("judge", "a judgement", argc, argv);
}

/* ---- check ---- */

static const char check_usage[] =
    "Usage: kopsctl check FILE... [--json]\n\n"
    "Tells what of tutorials' files compiles here, and what does not, at which line. A FILE is a program of Python "
    "that\n"
    "calls load_inline or load, a setup.py with CUDAExtension, or a source, .cu, .cuh or .cpp. Programs are read, and\n"
    "not run. It needs python3 with kopsd's Python package, kops, NumPy, and g++ or clang++. Kernels are compiled for\n"
    "the interpreter, and by a daemon that is there.\n\n"
    "      --json  a finding a line: file, line, runs, text\n\n"
    "Exit status 0: all compiles.\n";

enum ctl_exit ctl_check(struct ctl *ctl, int argc, char **argv)
{
    const struct ctl_option options[] = {{0}};
    enum ctl_exit status;

    if (!ctl_parse(ctl, argc, argv, check_usage, options, argc, &status))
        return status;
    if (optind >= argc)
        return ctl_usage("check takes files: kopsctl check FILE...");
    begin(ctl, "kops.extension", "a check", options);
    return become_with_files("check", "a check", argc, argv);
}
