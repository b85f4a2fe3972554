/* kopsctl report: the Python package makes the page, in this process's place, so that the layout, the judgement of each
 * row and the measuring of a device's peaks are written once. */
#include <errno.h>
#include <spawn.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/complain.h"
#include "base/options.h"
#include "commands.h"

static const char usage[] =
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

/* Python looks for modules in the working directory first, which may be anybody's. */
#define NOT_FROM_HERE "import sys\nif not sys.path[0]: del sys.path[0]\n"

static const char probe_text[] = NOT_FROM_HERE "try: import kops.profiler.__main__\n"
                                               "except ImportError as error: sys.exit(str(error))\n";
static const char report_text[] = NOT_FROM_HERE "from kops.profiler.__main__ import main\n"
                                                "sys.exit(main())\n";

enum { MOST_ARGUMENTS = 20, WHY_MAX = 256 };

struct arguments {
    const char *list[MOST_ARGUMENTS]; /* NULL-terminated */
    size_t n;
};

static void add(struct arguments *a, const char *option, const char *value)
{
    if (option)
        a->list[a->n++] = option;
    if (value)
        a->list[a->n++] = value;
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
static int probe(char *ret_why, size_t size)
{
    char *const arguments[] = {"python3", "-c", (char *)probe_text, NULL};
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
static enum ctl_exit become(struct arguments *a)
{
    char why[WHY_MAX];
    const int r = probe(why, sizeof(why));

    if (r < 0)
        return ctl_complain("os_error", "a report needs python3 with kopsd's Python package; running python3: %s",
                            strerror(-r));
    if (r)
        return ctl_complain(
            "unsupported",
            "a report needs kopsd's Python package, which python3 does not have%s%s%s; in kopsd's sources: "
            "pip install ./client_py numpy",
            *why ? " (" : "", why, *why ? ")" : "");
    execvp(a->list[0], (char *const *)a->list);
    return ctl_complain("os_error", "running python3: %s", strerror(errno));
}

enum ctl_exit ctl_report(struct ctl *ctl, int argc, char **argv)
{
    static const struct option options[] = {{"output", required_argument, NULL, 'o'},
                                            {"op", required_argument, NULL, 'O'},
                                            {"device", required_argument, NULL, 'D'},
                                            {"peaks", required_argument, NULL, 'P'},
                                            CTL_COMMON_OPTIONS};
    const char *output = "kops-report.html", *op = NULL, *device = NULL, *peaks = NULL;
    struct arguments a = {{"python3", "-c", report_text}, 3};
    char seconds[32];
    int option, end;

    while ((option = getopt_long(argc, argv, "o:h", options, NULL)) != -1) {
        if (option == 'o')
            output = optarg;
        else if (option == 'O')
            op = optarg;
        else if (option == 'D')
            device = optarg;
        else if (option == 'P')
            peaks = optarg;
        else if ((end = ctl_common(ctl, option, usage)) >= 0)
            return (enum ctl_exit)end;
    }
    if (optind < argc)
        return ctl_usage("report takes no `%s`", argv[optind]);
    if (!*output || (peaks && !*peaks))
        return ctl_usage("%s takes a path", *output ? "--peaks" : "--output");
    snprintf(seconds, sizeof(seconds), "%.3f", (double)ctl->timeout_ms / 1000);
    add(&a, "--output", output);
    add(&a, op ? "--op" : NULL, op);
    add(&a, device ? "--device" : NULL, device);
    add(&a, peaks ? "--peaks" : NULL, peaks);
    add(&a, ctl->socket ? "--socket" : NULL, ctl->socket);
    add(&a, ctl->timeout_ms ? "--timeout" : NULL, ctl->timeout_ms ? seconds : NULL);
    add(&a, ctl->json ? "--json" : NULL, NULL);
    return become(&a);
}
