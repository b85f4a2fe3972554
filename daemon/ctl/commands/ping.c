/* kopsctl ping */
#include <stdio.h>
#include <stdlib.h>

#include "base/json.h"
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

static double quantile(const double *sorted, size_t n, double share)
{
    const size_t i = (size_t)(share * (double)n);

    return sorted[i < n ? i : n - 1];
}

static enum ctl_exit measure(struct ctl *ctl, double *samples, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        const uint64_t start = ctl_clock_ns();

        if (kops_ping(ctl->client, 0, &ctl->error))
            return ctl_failed("ping", &ctl->error);
        samples[i] = (double)(ctl_clock_ns() - start) * 1e-3;
    }
    return CTL_OK;
}

static void print(const struct ctl *ctl, const double *sorted, size_t n)
{
    const struct kops_info *info = kops_info(ctl->client);
    const double p50 = quantile(sorted, n, 0.5), p99 = quantile(sorted, n, 0.99);

    if (!ctl->json) {
        printf("%s at %s (pid %lld): %zu round trips, min %.1f, p50 %.1f, p99 %.1f, max %.1f us\n", info->server,
               info->socket, (long long)info->pid, n, sorted[0], p50, p99, sorted[n - 1]);
        return;
    }
    JSON_MAP(NULL, json_text("server", info->server), json_text("socket", info->socket), json_uint("count", n),
             json_number("min_us", sorted[0]), json_number("p50_us", p50), json_number("p99_us", p99),
             json_number("max_us", sorted[n - 1]));
}

enum ctl_exit ctl_ping(struct ctl *ctl, int argc, char **argv)
{
    uint64_t count = 1000, spin = 0;
    const struct ctl_option options[] = {
        {"--count", 'c', OPTION_NUMBER, &count, "takes a number from 1 on", 1, 100000000},
        {"--spin", 0, OPTION_NUMBER, &spin, "takes microseconds up to a million", 0, 1000000},
        {0}};
    enum ctl_exit status;
    double *samples;

    if (!ctl_parse(ctl, argc, argv, usage, options, 0, &status))
        return status;
    ctl->spin_us = (unsigned)spin;
    samples = malloc(count * sizeof(*samples));
    if (!samples)
        return ctl_usage("no memory for %llu samples", (unsigned long long)count);
    status = ctl_connect(ctl);
    if (!status)
        status = measure(ctl, samples, count);
    if (!status) {
        qsort(samples, count, sizeof(*samples), compare);
        print(ctl, samples, count);
    }
    free(samples);
    return status;
}
