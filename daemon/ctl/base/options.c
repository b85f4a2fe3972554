#include "options.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "complain.h"

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

bool ctl_parse_seconds(const char *text, double min, double max, double *ret)
{
    char *end;
    double seconds = strtod(text, &end);

    if (end == text || *end || !(seconds >= min && seconds <= max))
        return false;
    *ret = seconds;
    return true;
}

static char **arguments; /* that getopt_long reads */

void ctl_options_of(char **argv)
{
    arguments = argv;
}

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
        fputs(usage, stdout);
        return CTL_OK;
    default: /* getopt_long has said what is wrong, except with --json */
        if (ctl_has_json_errors())
            ctl_usage("%s is no option here, or lacks its value", arguments[optind - 1]);
        return CTL_USAGE;
    }
}

void ctl_look_for_json(char **argv)
{
    for (; *argv && strcmp(*argv, "--") != 0; argv++)
        if (!strcmp(*argv, "--json")) {
            ctl_errors_as_json();
            opterr = 0;
        }
}
