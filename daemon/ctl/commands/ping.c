/* kopsctl ping */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "base/complain.h"
#include "base/json.h"
#include "base/options.h"
#include "commands.h"

static const char usage[] =
    "Usage: kopsctl ping [--count N] [--spin US] [--json]\n\n"
    "Sends N requests without work, one after another, and prints the time of the round trips.\n\n"
    "  -c, --count N     how many (default 1000)\n"
    "      --spin US     busy-wait that long for each reply before sleeping (default 0)\n"
    "      --json        print JSON\n";

static int compare(const void *a, const void *b)
{
    const double *x = a, *y = b;

    return (*x > *y) - (*x < *y);
}

static void sort(double *samples, size_t n)
{
    qsort(samples, n, sizeof(*samples), compare);
}

static double quantile(const double *sorted, size_t n, double share)
{
    size_t i = (size_t)(share * (double)n);

    return sorted[i < n ? i : n - 1];
}

static uint64_t now_ns(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000U + (uint64_t)t.tv_nsec;
}

static enum ctl_exit measure(struct ctl *ctl, double *samples, size_t n)
{
    struct kops_error error;

    for (size_t i = 0; i < n; i++) {
        uint64_t start = now_ns();

        if (kops_ping(ctl->client, 0, &error))
            return ctl_failed("ping", &error);
        samples[i] = (double)(now_ns() - start) * 1e-3;
    }
    return CTL_OK;
}

static void print(const struct ctl *ctl, const double *sorted, size_t n)
{
    const struct kops_info *info = kops_info(ctl->client);
    double p50 = quantile(sorted, n, 0.5), p99 = quantile(sorted, n, 0.99);

    if (!ctl->json) {
        printf("%s at %s (pid %lld): %zu round trips, min %.1f, p50 %.1f, p99 %.1f, max %.1f us\n", info->server,
               info->socket, (long long)info->pid, n, sorted[0], p50, p99, sorted[n - 1]);
        return;
    }
    json_begin(NULL, '{');
    json_text("server", info->server);
    json_text("socket", info->socket);
    json_uint("count", n);
    json_number("min_us", sorted[0]);
    json_number("p50_us", p50);
    json_number("p99_us", p99);
    json_number("max_us", sorted[n - 1]);
    json_end('}');
}

enum ctl_exit ctl_ping(struct ctl *ctl, int argc, char **argv)
{
    static const struct option options[] = {
        {"count", required_argument, NULL, 'c'}, {"spin", required_argument, NULL, 's'}, CTL_COMMON_OPTIONS};
    uint64_t count = 1000, spin = 0;
    enum ctl_exit status;
    double *samples;
    int option, end;

    while ((option = getopt_long(argc, argv, "c:h", options, NULL)) != -1) {
        if (option == 'c' && !ctl_parse_uint(optarg, 1, 100000000, &count))
            return ctl_usage("--count takes a number from 1 on, not `%s`", optarg);
        if (option == 's' && !ctl_parse_uint(optarg, 0, 1000000, &spin))
            return ctl_usage("--spin takes microseconds up to a million, not `%s`", optarg);
        if (option != 'c' && option != 's' && (end = ctl_common(ctl, option, usage)) >= 0)
            return (enum ctl_exit)end;
    }
    if (optind < argc)
        return ctl_usage("ping takes no `%s`", argv[optind]);
    ctl->spin_us = (unsigned)spin;
    samples = malloc(count * sizeof(*samples));
    if (!samples)
        return ctl_usage("no memory for %llu samples", (unsigned long long)count);
    status = ctl_connect(ctl);
    if (!status)
        status = measure(ctl, samples, count);
    if (!status) {
        sort(samples, count);
        print(ctl, samples, count);
    }
    free(samples);
    return status;
}
