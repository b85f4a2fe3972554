/* kopsctl drain */
#include <math.h>
#include <stdio.h>

#include "base/json.h"
#include "commands.h"

static const char usage[] =
    "Usage: kopsctl drain [--stop | --resume] [--timeout SECONDS] [--json]\n\n"
    "Makes the daemon refuse new work, and waits until none is in flight. The daemon answers new requests with\n"
    "`shutting_down`; clients with this project's libraries wait for the daemon and ask again. For administrators, by\n"
    "default root and the daemon's own user.\n\n"
    "      --stop              then end the daemon; also when the time is over and work is left\n"
    "      --resume            take new work again, at once\n"
    "      --timeout SECONDS   longest wait for the work to end; default: no limit\n"
    "      --json              print JSON\n\n"
    "A drained daemon stays so until `--resume` or its next start, also when this program was interrupted.\n"
    "Exit status: 0 drained (or resumed), 1 failed, 2 wrong usage, 3 no daemon, 4 work is left after the timeout.\n";

enum { LONGEST_S = 86400 };

static void print(const struct ctl *ctl, const struct kops_drain_options *options, const struct kops_drain_result *r)
{
    if (ctl->json) {
        JSON_MAP(NULL, json_bool("drained", r->drained), json_uint("jobs", r->jobs),
                 json_uint("connections", r->connections));
    } else if (options->resume) {
        printf("takes new work again\n");
    } else if (r->drained) {
        printf("drained%s\n", options->stop ? "; the daemon ends" : "");
    } else {
        printf("not drained: %llu jobs are in flight%s\n", (unsigned long long)r->jobs,
               options->stop ? "; the daemon ends nevertheless" : "");
    }
}

enum ctl_exit ctl_drain(struct ctl *ctl, int argc, char **argv)
{
    struct kops_drain_options request = {0};
    double seconds = (double)ctl->timeout_ms * 1e-3; /* given before the command */
    /* --timeout is the daemon's, not the connection's: the time of the answer comes on top. */
    const struct ctl_option options[] = {
        {"--stop", 0, OPTION_FLAG, &request.stop},
        {"--resume", 0, OPTION_FLAG, &request.resume},
        {"--timeout", 0, OPTION_SECONDS, &seconds, "takes seconds above 0, up to a day", 0.001, LONGEST_S},
        {0}};
    struct kops_drain_result result;
    enum ctl_exit status;

    if (!ctl_parse(ctl, argc, argv, usage, options, 0, &status))
        return status;
    if (request.stop && request.resume)
        return ctl_usage("drain takes --stop or --resume, not both");
    if (seconds > LONGEST_S)
        return ctl_usage("drain waits a day at most; without --timeout as long as it takes");
    request.timeout_ms = (int64_t)ceil(seconds * 1e3);
    ctl->timeout_ms = 0;
    status = ctl_connect(ctl);
    if (status)
        return status;
    if (kops_drain(ctl->client, &request, &result, &ctl->error))
        return ctl_failed("drain", &ctl->error);
    print(ctl, &request, &result);
    return result.drained || request.resume ? CTL_OK : CTL_NOT_DRAINED;
}
