/* kopsctl info, kopsctl ops */
#include <stdio.h>
#include <string.h>

#include "base/complain.h"
#include "base/json.h"
#include "base/options.h"
#include "base/table.h"
#include "base/text.h"
#include "commands.h"
#include "view/conditions.h"
#include "view/executors.h"

static const char info_usage[] = "Usage: kopsctl info [--json]\n\n"
                                 "Prints the daemon's version and process, its devices, limits and features, and the\n"
                                 "processes that do its GPU work.\n";

static const char ops_usage[] = "Usage: kopsctl ops [NAME] [--json]\n\n"
                                "Lists the ops; with a name, prints all about one.\n";

/* Takes the common options only; *ret_name: the one operand that the command allows, or NULL. */
static int parse(struct ctl *ctl, int argc, char **argv, const char *usage, const char **ret_name)
{
    static const struct option options[] = {CTL_COMMON_OPTIONS};
    int option, end;

    while ((option = getopt_long(argc, argv, "h", options, NULL)) != -1) {
        end = ctl_common(ctl, option, usage);
        if (end >= 0)
            return end;
    }
    if (ret_name)
        *ret_name = optind < argc ? argv[optind++] : NULL;
    if (optind < argc)
        return (int)ctl_usage("%s takes no `%s`", argv[0], argv[optind]);
    return -1;
}

/* ---- info ---- */

static const struct {
    const char *name;
    size_t offset;
} limit_names[] = {
#define LIMIT(name)                                                                                                    \
    {                                                                                                                  \
#name, offsetof(struct kops_limits, name)                                                                      \
    }
    LIMIT(message_bytes), LIMIT(depth),   LIMIT(nfds),         LIMIT(inflight), LIMIT(buffers),
    LIMIT(streams),       LIMIT(rank),    LIMIT(repeat),       LIMIT(warmup),   LIMIT(inline_mappings),
    LIMIT(sequence_ops),  LIMIT(spin_us), LIMIT(source_bytes),
#undef LIMIT
};

static uint64_t limit(const struct kops_info *info, size_t i)
{
    uint64_t value;

    memcpy(&value, (const char *)&info->limits + limit_names[i].offset, sizeof(value));
    return value;
}

static void kernels_json(const struct kops_kernels_info *k)
{
    json_begin("kernels", '{');
    if (k->compiler)
        json_text("compiler", k->compiler);
    if (k->compiler_why)
        json_text("compiler_why", k->compiler_why);
    json_text("policy", k->policy);
    json_bool("allowed", k->allowed);
    json_texts("arch", k->arch);
    json_texts("include_extra", k->include_extra);
    if (k->remote)
        json_text("remote", k->remote);
    if (k->remote_why)
        json_text("remote_why", k->remote_why);
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
    json_begin("devices", '[');
    for (const struct kops_device *const *d = info->devices; *d; d++) {
        json_begin(NULL, '{');
        json_uint("index", (*d)->index);
        json_text("name", (*d)->name);
        json_text("uuid", (*d)->uuid);
        json_text("backend", (*d)->backend);
        json_text("arch", (*d)->arch);
        json_uint("memory_bytes", (*d)->memory_bytes);
        json_uint("compute_units", (*d)->compute_units);
        json_bool("default", (*d)->is_default);
        json_bool("mps", (*d)->mps);
        conditions_read(client, (*d)->uuid, &now);
        if (now)
            conditions_json("conditions", now);
        now = kops_conditions_free(now);
        json_end('}');
    }
    json_end(']');
    json_begin("limits", '{');
    for (size_t i = 0; i < sizeof(limit_names) / sizeof(limit_names[0]); i++)
        json_uint(limit_names[i].name, limit(info, i));
    json_end('}');
    json_texts("features", info->features);
    if (info->kernels)
        kernels_json(info->kernels);
    if (stats)
        executors_json(stats);
    json_end('}');
}

static bool runs_under_mps(const struct kops_info *info)
{
    for (const struct kops_device *const *d = info->devices; *d; d++)
        if ((*d)->mps)
            return true;
    return false;
}

static void conditions_lines(kops_client *client, const struct kops_info *info)
{
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
    char text[TABLE_CELL];
    struct table t;

    printf("%s, pid %lld, at %s, protocol %u\n", info->server, (long long)info->pid, info->socket, info->protocol);
    if (*info->identity)
        printf("you count as the identity %s, whose socket that is\n", text_clean(info->identity, text, sizeof(text)));
    printf("\n");
    table_init(&t, "rllllrrl", (const char *const[]){"#", "device", "backend", "arch", "mps", "GiB", "units", "uuid"});
    for (const struct kops_device *const *d = info->devices; *d; d++) {
        table_cell(&t, "%u%s", (*d)->index, (*d)->is_default ? "*" : "");
        table_cell(&t, "%s", (*d)->name);
        table_cell(&t, "%s", (*d)->backend);
        table_cell(&t, "%s", (*d)->arch);
        table_cell(&t, "%s", (*d)->mps ? "yes" : "no");
        table_cell(&t, "%.1f", (double)(*d)->memory_bytes / (double)(1U << 30));
        table_cell(&t, "%u", (*d)->compute_units);
        table_cell(&t, "%s", (*d)->uuid);
    }
    table_print(&t);
    printf("(* runs what names no device and lies in shared memory)\n");
    if (runs_under_mps(info))
        printf("(mps: a fault of any process that shares the GPU so ends the others' work, too)\n");
    conditions_lines(client, info);
    printf("\nlimits:");
    for (size_t i = 0; i < sizeof(limit_names) / sizeof(limit_names[0]); i++)
        printf(" %s %llu%s", limit_names[i].name, (unsigned long long)limit(info, i),
               i + 1 < sizeof(limit_names) / sizeof(limit_names[0]) ? "," : "\n");
    printf("features:");
    for (const char *const *f = info->features; *f; f++)
        printf(" %s", *f);
    printf("\n");
    if (info->kernels)
        kernels_text(info->kernels);
    if (stats)
        executors_text(stats);
}

static bool has_gpu(const struct kops_info *info)
{
    for (const struct kops_device *const *d = info->devices; *d; d++)
        if (strcmp((*d)->backend, "host") != 0)
            return true;
    return false;
}

enum ctl_exit ctl_info(struct ctl *ctl, int argc, char **argv)
{
    int end = parse(ctl, argc, argv, info_usage, NULL);
    enum ctl_exit status = end >= 0 ? (enum ctl_exit)end : ctl_connect(ctl);
    struct kops_stats *stats = NULL;
    struct kops_error error;

    if (end >= 0 || status)
        return status;
    /* Executors do the work of GPUs alone. */
    if (has_gpu(kops_info(ctl->client)) && kops_stats_get(ctl->client, NULL, &stats, &error))
        return ctl_failed("info", &error);
    if (ctl->json)
        info_json(ctl->client, kops_info(ctl->client), stats);
    else
        info_text(ctl->client, kops_info(ctl->client), stats);
    kops_stats_free(stats);
    return CTL_OK;
}

/* ---- ops ---- */

static void attr_value(const struct kops_attr *a, char *into, size_t size)
{
    switch (a->type) {
    case KOPS_ATTR_BOOL:
        snprintf(into, size, "%s", a->value.boolean ? "true" : "false");
        break;
    case KOPS_ATTR_INT:
        snprintf(into, size, "%lld", (long long)a->value.integer);
        break;
    case KOPS_ATTR_FLOAT:
        snprintf(into, size, "%g", a->value.real);
        break;
    case KOPS_ATTR_TEXT:
        snprintf(into, size, "%s", a->value.text);
        break;
    }
}

static void op_json(const struct kops_op *op)
{
    static const char *const types[] = {
        [KOPS_ATTR_BOOL] = "bool", [KOPS_ATTR_INT] = "int", [KOPS_ATTR_FLOAT] = "float", [KOPS_ATTR_TEXT] = "choice"};
    char value[64];

    json_begin(NULL, '{');
    json_text("name", op->name);
    json_text("summary", op->summary);
    json_text("doc", op->doc);
    json_texts("inputs", op->inputs);
    json_texts("outputs", op->outputs);
    json_texts("dtypes", op->dtypes);
    json_begin("in_dtypes", '{');
    for (const struct kops_op_in_dtypes *const *d = op->in_dtypes; d && *d; d++)
        json_texts((*d)->input, (*d)->names);
    json_end('}');
    json_begin("attrs", '[');
    for (const struct kops_op_attr *const *a = op->attrs; *a; a++) {
        attr_value(&(*a)->fallback, value, sizeof(value));
        json_begin(NULL, '{');
        json_text("name", (*a)->name);
        json_text("type", types[(*a)->fallback.type]);
        json_text("default", value);
        if ((*a)->choices)
            json_texts("choices", (*a)->choices);
        json_text("doc", (*a)->doc);
        json_end('}');
    }
    json_end(']');
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
    char value[64];

    printf("%s: %s\n\n  %s\n\n", op->name, op->summary, op->doc);
    print_texts("inputs", op->inputs);
    print_texts("outputs", op->outputs);
    print_texts("dtypes", op->dtypes);
    for (const struct kops_op_in_dtypes *const *d = op->in_dtypes; d && *d; d++)
        print_texts((*d)->input, (*d)->names);
    for (const struct kops_op_attr *const *a = op->attrs; *a; a++) {
        attr_value(&(*a)->fallback, value, sizeof(value));
        printf("  %-9s  %s = %s", a == op->attrs ? "attrs" : "", (*a)->name, value);
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

    table_init(&t, "llll", (const char *const[]){"op", "what", "dtypes", "attributes"});
    for (const struct kops_op *const *op = info->ops; *op; op++) {
        char dtypes[TABLE_CELL] = "", attrs[TABLE_CELL] = "";
        size_t n = 0;

        for (const char *const *d = (*op)->dtypes; *d && n < sizeof(dtypes); d++)
            n += (size_t)snprintf(dtypes + n, sizeof(dtypes) - n, "%s%s", n ? " " : "", *d);
        n = 0;
        for (const struct kops_op_attr *const *a = (*op)->attrs; *a && n < sizeof(attrs); a++)
            n += (size_t)snprintf(attrs + n, sizeof(attrs) - n, "%s%s", n ? " " : "", (*a)->name);
        table_cell(&t, "%s", (*op)->name);
        table_cell(&t, "%s", (*op)->summary);
        table_cell(&t, "%s", dtypes);
        table_cell(&t, "%s", attrs);
    }
    table_print(&t);
}

enum ctl_exit ctl_ops(struct ctl *ctl, int argc, char **argv)
{
    const char *name = NULL;
    int end = parse(ctl, argc, argv, ops_usage, &name);
    enum ctl_exit status = end >= 0 ? (enum ctl_exit)end : ctl_connect(ctl);
    const struct kops_op *only = NULL;

    if (end >= 0 || status)
        return status;
    if (name && !(only = kops_info_op(ctl->client, name)))
        return ctl_usage("the daemon has no op `%s`; `kopsctl ops` lists them", name);
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
