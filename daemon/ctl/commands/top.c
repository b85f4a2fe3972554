/* kopsctl top */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/complain.h"
#include "base/options.h"
#include "commands.h"

#include "top.h"

static const char usage[] =
    "Usage: kopsctl top [--delay SECONDS] [--sort KEY]\n"
    "       kopsctl top --batch [--iterations N] [--delay SECONDS] [--sort KEY] [--json]\n\n"
    "Shows the daemon's present work: rates, queues, the load of devices, the processes that do the GPU work\n"
    "(executors), each client, and the ops that ran since the last look. Percentiles begin when a client connects, or\n"
    "when the timings were started anew. Administrators (by default root and the daemon's own user) see every client,\n"
    "others their own.\n\n"
    "  -b, --batch            print tables instead, one after another, for scripts\n"
    "  -n, --iterations N     end after N looks (with --batch; default: no end)\n"
    "  -d, --delay SECONDS    time between two looks (default 2, at least 0.1)\n"
    "      --sort KEY         order of the clients: rate (the default), device, memory, p99, inflight, pid\n"
    "      --json             one line of JSON for each look (with --batch); shares are of one device's time, 1 is "
    "all\n\n"
    "Keys: q quit; p or space pause; r, d, m, l, i, n sort by rate, device, memory, p99, requests in flight, pid;\n"
    "+ and - look less and more often; up and down move through the clients.\n";

static void wait_s(double seconds)
{
    struct timespec left = {.tv_sec = (time_t)seconds, .tv_nsec = (long)((seconds - (double)(time_t)seconds) * 1e9)};

    while (nanosleep(&left, &left) && errno == EINTR)
        continue;
}

static enum ctl_exit batch(struct ctl *ctl, double delay_s, uint64_t iterations, enum top_sort by)
{
    struct top_view view = {.n_clients = 0};
    enum ctl_exit status = ctl_connect(ctl);
    struct kops_error error;

    if (status)
        return status;
    /* Rates are counted from the first look on. */
    for (uint64_t i = 0; !status && i <= iterations; i++) {
        if (i)
            wait_s(delay_s);
        if (top_look(ctl, &view, &error)) {
            status = ctl_failed("top", &error);
        } else if (i) {
            top_sort(&view, by);
            if (ctl->json) {
                top_print_json(&view);
            } else {
                top_print_summary(&view, stdout);
                printf("\n");
                if (view.n_executors) {
                    top_print_executors(&view, stdout, SIZE_MAX);
                    printf("\n");
                }
                top_print_clients(&view, stdout, SIZE_MAX);
                printf("\n");
                top_print_ops(&view, stdout, SIZE_MAX);
                printf("\n");
            }
            if (fflush(stdout)) /* main() says why */
                status = CTL_FAILED;
        }
    }
    top_free(&view);
    return status;
}

enum ctl_exit ctl_top(struct ctl *ctl, int argc, char **argv)
{
    static const struct option options[] = {{"batch", no_argument, NULL, 'b'},
                                            {"iterations", required_argument, NULL, 'n'},
                                            {"delay", required_argument, NULL, 'd'},
                                            {"sort", required_argument, NULL, 's'},
                                            CTL_COMMON_OPTIONS};
    uint64_t iterations = UINT64_MAX - 1;
    enum top_sort by = TOP_BY_RATE;
    bool is_batch = false, counted = false;
    double delay_s = 2;
    int option, end;

    while ((option = getopt_long(argc, argv, "bn:d:h", options, NULL)) != -1) {
        if (option == 'b')
            is_batch = true;
        else if (option == 'n' && !(counted = ctl_parse_uint(optarg, 1, UINT64_MAX - 1, &iterations)))
            return ctl_usage("--iterations takes a number from 1 on, not `%s`", optarg);
        else if (option == 'd' && !ctl_parse_seconds(optarg, 0.1, 86400, &delay_s))
            return ctl_usage("--delay takes seconds from 0.1 on, not `%s`", optarg);
        else if (option == 's' && !top_sort_parse(optarg, &by))
            return ctl_usage("--sort takes rate, device, memory, p99, inflight or pid, not `%s`", optarg);
        else if (!strchr("bnds", option) && (end = ctl_common(ctl, option, usage)) >= 0)
            return (enum ctl_exit)end;
    }
    if (optind < argc)
        return ctl_usage("top takes no `%s`", argv[optind]);
    if (is_batch)
        return batch(ctl, delay_s, iterations, by);
    if (counted || ctl->json)
        return ctl_usage("%s needs --batch", counted ? "--iterations" : "--json");
    return top_screen(ctl, delay_s, by);
}
