/* kopsctl report: the Python package makes the page, in this process's place, so that the layout, the judgement of each
 * row and the measuring of a device's peaks are written once. */
#include <stdio.h>

#include "base/complain.h"
#include "base/options.h"
#include "base/python.h"
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

enum ctl_exit ctl_report(struct ctl *ctl, int argc, char **argv)
{
    static const struct option options[] = {{"output", required_argument, NULL, 'o'},
                                            {"op", required_argument, NULL, 'O'},
                                            {"device", required_argument, NULL, 'D'},
                                            {"peaks", required_argument, NULL, 'P'},
                                            CTL_COMMON_OPTIONS};
    const char *output = "kops-report.html", *op = NULL, *device = NULL, *peaks = NULL;
    struct python python;
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
    python_begin(&python, "kops.profiler", "a report");
    python_add(&python, "--output", output);
    python_add(&python, "--op", op);
    python_add(&python, "--device", device);
    python_add(&python, "--peaks", peaks);
    python_common(&python, ctl);
    return python_become(&python);
}
