/* kopsctl judge: the Python package judges, in this process's place, since tasks are Python. */
#include "base/complain.h"
#include "base/options.h"
#include "base/python.h"
#include "commands.h"

static const char usage[] =
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
    static const struct option options[] = {{"device", required_argument, NULL, 'D'},
                                            {"strict", no_argument, NULL, 's'},
                                            {"deadline", required_argument, NULL, 'd'},
                                            {"interpret", no_argument, NULL, 'i'},
                                            {"no-time", no_argument, NULL, 'n'},
                                            {"page", required_argument, NULL, 'p'},
                                            {"kept", required_argument, NULL, 'k'},
                                            {"board", required_argument, NULL, 'b'},
                                            CTL_COMMON_OPTIONS};
    static struct python python; /* too large for a stack */
    double seconds;
    int option, end;

    python_begin(&python, "kops.judge", "a judgement");
    while ((option = getopt_long(argc, argv, "h", options, NULL)) != -1) {
        if (option == 'D')
            python_add(&python, "--device", optarg);
        else if (option == 's')
            python_argument(&python, "--strict");
        else if (option == 'i')
            python_argument(&python, "--interpret");
        else if (option == 'n')
            python_argument(&python, "--no-time");
        else if (option == 'p')
            python_add(&python, "--page", optarg);
        else if (option == 'k')
            python_add(&python, "--kept", optarg);
        else if (option == 'b')
            python_add(&python, "--board", optarg);
        else if (option == 'd' && !ctl_parse_seconds(optarg, 1e-3, 86400, &seconds))
            return ctl_usage("--deadline takes seconds, 0.001 to 86400, not `%s`", optarg);
        else if (option == 'd')
            python_add(&python, "--deadline", optarg);
        else if ((end = ctl_common(ctl, option, usage)) >= 0)
            return (enum ctl_exit)end;
    }
    if (argc - optind < 2)
        return ctl_usage("judge takes a task and solutions: kopsctl judge TASK SOLUTION...");
    python_common(&python, ctl);
    python_argument(&python, "--");
    for (; optind < argc; optind++) {
        if (!python_argument(&python, argv[optind]))
            return ctl_usage("judge takes fewer than %d arguments", PYTHON_ARGUMENTS);
    }
    return python_become(&python);
}
