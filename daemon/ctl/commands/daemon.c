/* The daemon itself: kopsctl info, kopsctl ops, kopsctl ping, kopsctl drain. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/output.h"
#include "commands.h"
#include "view/rows.h"

static const char info_usage[] = "Usage: kopsctl info [--json]\n\n"
                                 "Prints the daemon's version and process, its devices, limits and features, and the\n"
                                 "processes that do its GPU work.\n";

#define F(member) JSON_FIELD(struct kops_limits, member)
static const struct json_field limits_fields[] = {
    F(message_bytes), F(depth),           F(nfds),         F(inflight), F(buffers),      F(streams), F(rank), F(repeat),
    F(warmup),        F(inline_mappings), F(sequence_ops), F(spin_us),  F(source_bytes), JSON_END};
#undef F

#define F(member)    JSON_FIELD(struct kops_kernels_info, member)
#define SOME(member) JSON_SOME(struct kops_kernels_info, member)
static const struct json_field kernels_fields[] = {SOME(compiler), SOME(compiler_why), F(policy),    F(allowed),
                                                   F(arch),        F(include_extra),   SOME(remote), SOME(remote_why),
                                                   JSON_END};
#undef F
#undef SOME

#define F(member) JSON_FIELD(struct kops_device, member)
static const struct json_field device_fields[] = {
    F(index), F(name),         F(uuid),          F(backend),
    F(arch),  F(memory_bytes), F(compute_units), JSON_FIELD_AS("default", struct kops_device, is_default, JSON_ALWAYS),
    F(mps),   JSON_END};
#undef F

static void info_json(kops_client *client, const struct kops_info *info, const struct kops_stats *stats)
{
    struct kops_conditions *now;

    json_begin(NULL, '{');
    json_text("server", info->server);
    json_text("socket", info->socket);
    json_int("pid", info->pid);
    json_uint("protocol", info->protocol);
    json_uint("protocol_min", info->protocol_min);
    if (*info->identity)
        json_text("identity", info->identity);
    if (*info->isolation)
        json_text("isolation", info->isolation);
    json_begin("devices", '[');
    for (const struct kops_device *const *d = info->devices; *d; d++) {
        conditions_read(client, (*d)->uuid, &now);
        JSON_MAP(NULL, json_fields(device_fields, *d), now ? conditions_json("conditions", now) : (void)0);
        kops_conditions_free(now);
    }
    json_end(']');
    json_object("limits", limits_fields, &info->limits);
    json_texts("features", info->features);
    if (info->kernels)
        json_object("kernels", kernels_fields, info->kernels);
    if (stats) {
        json_list("executors", executor_fields, stats->executors);
        counters_map_json("executor_counts", stats->executor_counts);
    }
    json_end('}');
}

static void kernels_text(const struct kops_kernels_info *k)
{
    printf("your own kernels: policy %s (%s), %s", k->policy, k->allowed ? "allowed to you" : "not allowed to you",
           k->compiler       ? k->compiler
           : k->compiler_why ? k->compiler_why
                             : "no compiler");
    for (const char *const *arch = k->arch; *arch; arch++)
        if (**arch)
            printf(", %s", *arch);
    for (const char *const *folder = k->include_extra; *folder; folder++)
        printf(", headers of %s", *folder);
    printf("\n");
    if (!k->remote)
        return;
    printf("remote cache: %s", k->remote);
    if (k->remote_why)
        printf(", last failure: %s", k->remote_why);
    printf("\n");
}

static void devices_text(kops_client *client, const struct kops_info *info)
{
    bool mps = false;
    struct table t;

    table_init(&t, ">#\tdevice\tbackend\tarch\tmps\t>GiB\t>units\tuuid");
    for (const struct kops_device *const *p = info->devices; *p; p++) {
        const struct kops_device *d = *p;

        table_row(&t, "%u%s\t%s\t%s\t%s\t%s\t%.1f\t%u\t%s", d->index, d->is_default ? "*" : "", d->name, d->backend,
                  d->arch, d->mps ? "yes" : "no", (double)d->memory_bytes / (double)(1U << 30), d->compute_units,
                  d->uuid);
        mps |= d->mps;
    }
    table_print(&t);
    printf("(* runs what names no device and lies in shared memory)\n");
    if (mps)
        printf("(mps: a fault of any process that shares the GPU so ends the others' work, too)\n");
    for (const struct kops_device *const *d = info->devices; *d; d++) {
        struct kops_conditions *now;
        char line[400];

        conditions_read(client, (*d)->uuid, &now);
        if (now)
            printf("device %u: %s\n", (*d)->index, conditions_text(now, now, line, sizeof(line)));
        kops_conditions_free(now);
    }
}

static void info_text(kops_client *client, const struct kops_info *info, const struct kops_stats *stats)
{
    printf("%s, pid %lld, at %s, protocol %u\n", info->server, (long long)info->pid, info->socket, info->protocol);
    if (*info->identity)
        printf("you count as the identity %s, whose socket that is\n", text_clean(info->identity));
    printf("\n");
    devices_text(client, info);
    printf("\nlimits:");
    for (const struct json_field *f = limits_fields; f->key; f++) {
        uint64_t value;

        memcpy(&value, (const char *)&info->limits + f->at, sizeof(value));
        printf(" %s %llu%s", f->key, (unsigned long long)value, f[1].key ? "," : "\n");
    }
    printf("features:");
    for (const char *const *f = info->features; *f; f++)
        printf(" %s", *f);
    printf("\n");
    if (*info->isolation)
        printf("isolation: %s\n", info->isolation);
    if (info->kernels)
        kernels_text(info->kernels);
    if (stats)
        executors_text(stats);
}

enum ctl_exit ctl_info(struct ctl *ctl, int argc, char **argv)
{
    struct kops_stats *stats = NULL;
    enum ctl_exit status;
    bool gpu = false;

    if (!ctl_begin(ctl, argc, argv, info_usage, NULL, 0, &status))
        return status;
    for (const struct kops_device *const *d = kops_info(ctl->client)->devices; *d; d++)
        gpu |= strcmp((*d)->backend, "host") != 0;
    /* Executors do the work of GPUs alone. */
    if (gpu && kops_stats_get(ctl->client, NULL, &stats, &ctl->error))
        return ctl_failed("info", &ctl->error);
    if (ctl->json)
        info_json(ctl->client, kops_info(ctl->client), stats);
    else
        info_text(ctl->client, kops_info(ctl->client), stats);
    kops_stats_free(stats);
    return CTL_OK;
}

/* ---- ops ---- */

static const char ops_usage[] = "Usage: kopsctl ops [NAME] [--json]\n\n"
                                "Lists the ops; with a name, prints all about one.\n";

static const char *attr_value(const struct kops_attr *a)
{
    switch (a->type) {
    case KOPS_ATTR_BOOL:
        return a->value.boolean ? "true" : "false";
    case KOPS_ATTR_INT:
        return text_format("%lld", (long long)a->value.integer);
    case KOPS_ATTR_FLOAT:
        return text_format("%g", a->value.real);
    case KOPS_ATTR_TEXT:
        break;
    }
    return a->value.text;
}

static void attr_json(const void *attr)
{
    const struct kops_op_attr *a = attr;
    static const char *const types[] = {
        [KOPS_ATTR_BOOL] = "bool", [KOPS_ATTR_INT] = "int", [KOPS_ATTR_FLOAT] = "float", [KOPS_ATTR_TEXT] = "choice"};

    json_text("name", a->name);
    json_text("type", types[a->fallback.type]);
    json_text("default", attr_value(&a->fallback));
    if (a->choices)
        json_texts("choices", a->choices);
    json_text("doc", a->doc);
}

#define F(member) JSON_FIELD(struct kops_op, member)
static const struct json_field op_fields[] = {F(name), F(summary), F(doc), F(inputs), F(outputs), F(dtypes), JSON_END};

static void op_json(const struct kops_op *op)
{
    json_begin(NULL, '{');
    json_fields(op_fields, op);
    json_begin("in_dtypes", '{');
    for (const struct kops_op_in_dtypes *const *d = op->in_dtypes; d && *d; d++)
        json_texts((*d)->input, (*d)->names);
    json_end('}');
    json_each("attrs", op->attrs, attr_json);
    json_begin("variants", '{');
    for (const struct kops_op_variants *const *v = op->variants; *v; v++)
        json_texts((*v)->device, (*v)->names);
    json_end('}');
    json_end('}');
}

static void print_texts(const char *title, const char *const *texts)
{
    printf("  %-9s", title);
    for (; *texts; texts++)
        printf(" %s", *texts);
    printf("\n");
}

static void op_text(const struct kops_op *op)
{
    printf("%s: %s\n\n  %s\n\n", op->name, op->summary, op->doc);
    print_texts("inputs", op->inputs);
    print_texts("outputs", op->outputs);
    print_texts("dtypes", op->dtypes);
    for (const struct kops_op_in_dtypes *const *d = op->in_dtypes; d && *d; d++)
        print_texts((*d)->input, (*d)->names);
    for (const struct kops_op_attr *const *a = op->attrs; *a; a++) {
        printf("  %-9s  %s = %s", a == op->attrs ? "attrs" : "", (*a)->name, attr_value(&(*a)->fallback));
        for (const char *const *c = (*a)->choices; c && *c; c++)
            printf("%s%s", c == (*a)->choices ? " (" : " | ", *c);
        printf("%s: %s\n", (*a)->choices ? ")" : "", (*a)->doc);
    }
    for (const struct kops_op_variants *const *v = op->variants; *v; v++) {
        printf("  %-9s  %s:", v == op->variants ? "variants" : "", (*v)->device);
        for (const char *const *n = (*v)->names; *n; n++)
            printf(" %s", *n);
        printf("\n");
    }
}

static void ops_table(const struct kops_info *info)
{
    struct table t;

    table_init(&t, "op\twhat\tdtypes\tattributes");
    for (const struct kops_op *const *op = info->ops; *op; op++) {
        const char *attrs = "";

        for (const struct kops_op_attr *const *a = (*op)->attrs; *a; a++)
            attrs = text_format("%s%s%s", attrs, *attrs ? " " : "", (*a)->name);
        table_row(&t, "%s\t%s\t%s\t%s", (*op)->name, (*op)->summary, text_list((*op)->dtypes), attrs);
    }
    table_print(&t);
}

enum ctl_exit ctl_ops(struct ctl *ctl, int argc, char **argv)
{
    const struct kops_op *only = NULL;
    enum ctl_exit status;

    if (!ctl_begin(ctl, argc, argv, ops_usage, NULL, 1, &status))
        return status;
    if (optind < argc && !(only = kops_info_op(ctl->client, argv[optind])))
        return ctl_usage("the daemon has no op `%s`; `kopsctl ops` lists them", argv[optind]);
    if (only && !ctl->json) {
        op_text(only);
    } else if (!ctl->json) {
        ops_table(kops_info(ctl->client));
    } else {
        json_begin(NULL, '[');
        for (const struct kops_op *const *op = kops_info(ctl->client)->ops; *op; op++)
            if (!only || *op == only)
                op_json(*op);
        json_end(']');
    }
    return CTL_OK;
}

/* ---- kopsctl ping ---- */

static const char ping_usage[] =
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

static void print_ping(const struct ctl *ctl, const double *sorted, size_t n)
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

    if (!ctl_parse(ctl, argc, argv, ping_usage, options, 0, &status))
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
        print_ping(ctl, samples, count);
    }
    free(samples);
    return status;
}

/* ---- kopsctl drain ---- */

static const char drain_usage[] =
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

static void print_drain(const struct ctl *ctl, const struct kops_drain_options *options,
                        const struct kops_drain_result *r)
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

    if (!ctl_parse(ctl, argc, argv, drain_usage, options, 0, &status))
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
    print_drain(ctl, &request, &result);
    return result.drained || request.resume ? CTL_OK : CTL_NOT_DRAINED;
}
