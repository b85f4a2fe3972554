#include "counters.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/json.h"

enum { STALLS_SHOWN = 3 };

bool counters_parse(const char *text, enum kops_counter_caches *ret)
{
    *ret = strcmp(text, "warm") ? KOPS_CACHES_COLD : KOPS_CACHES_WARM;
    return *ret == KOPS_CACHES_WARM || !strcmp(text, "cold");
}

/* ---- text ---- */

/* NAN: the device does not count it. */
static double find(const struct kops_counters *c, const char *name)
{
    for (size_t i = 0; i < c->n_values; i++)
        if (!strcmp(c->values[i].name, name))
            return c->values[i].value;
    return (double)NAN;
}

static void print_percent(const char *what, double value, bool first)
{
    printf("%s%s ", first ? "" : ", ", what);
    if (isnan(value))
        printf("-");
    else
        printf("%.1f %%", value);
}

static void print_percents(const struct kops_counters *c)
{
    static const struct {
        const char *title, *what[4], *names[4];
    } lines[] = {
        {"of peak", {"DRAM", "L2", "L1", "SM"}, {"dram_pct", "l2_pct", "l1_pct", "sm_pct"}},
        {"in use", {"tensor cores", "issue slots"}, {"tensor_pct", "issue_pct"}},
        {"cache hits", {"L2", "L1"}, {"l2_hit_pct", "l1_hit_pct"}},
    };

    for (size_t i = 0; i < sizeof(lines) / sizeof(lines[0]); i++) {
        printf("  %-14s  ", lines[i].title);
        for (unsigned k = 0; k < 4 && lines[i].names[k]; k++)
            print_percent(lines[i].what[k], find(c, lines[i].names[k]), k == 0);
        printf("\n");
    }
}

static const char *limiter_text(const char *limiter)
{
    if (!strcmp(limiter, "warps"))
        return "block size";
    return strcmp(limiter, "shared_memory") ? limiter : "shared memory";
}

static void print_launch(const struct kops_counters *c)
{
    const struct kops_counter_launch *l = &c->launch;

    printf("  %-14s  ", "occupancy");
    print_percent("achieved", find(c, "occupancy_pct"), true);
    if (c->has_launch && l->occupancy_pct < 100) /* not where it is NAN */
        printf(", allowed %.1f %% (limit: %s)", l->occupancy_pct, limiter_text(l->limiter));
    printf("\n");
    if (!c->has_launch)
        return;
    printf("  %-14s  grid %" PRIu64 " x %" PRIu64 " x %" PRIu64 ", block %" PRIu64 " x %" PRIu64 " x %" PRIu64
           ", %" PRIu64 " registers, ",
           "launch", l->grid[0], l->grid[1], l->grid[2], l->block[0], l->block[1], l->block[2], l->registers);
    if (l->local_bytes)
        printf("%" PRIu64 " bytes of local memory (spills)\n", l->local_bytes);
    else
        printf("no spills\n");
}

static bool is_wait(const struct kops_figure *stall)
{
    return strcmp(stall->name, "selected") != 0 && strcmp(stall->name, "not_selected") != 0 && stall->value > 0;
}

/* The largest below `before`; NULL: none. */
static const struct kops_figure *next_stall(const struct kops_counters *c, double before)
{
    const struct kops_figure *next = NULL;

    for (size_t i = 0; i < c->n_stalls; i++)
        if (is_wait(&c->stalls[i]) && c->stalls[i].value < before && (!next || c->stalls[i].value > next->value))
            next = &c->stalls[i];
    return next;
}

static void print_stalls(const struct kops_counters *c)
{
    const struct kops_figure *stall = next_stall(c, (double)INFINITY);

    printf("  %-14s  ", "warps wait for");
    if (!stall)
        printf("-");
    for (unsigned i = 0; stall && i < STALLS_SHOWN; i++, stall = next_stall(c, stall->value))
        printf("%s%s %.0f %%", i ? ", " : "", stall->name, stall->value);
    printf("\n");
}

void counters_print(const struct kops_counters *c)
{
    const double conflicts = find(c, "bank_conflicts"), wavefronts = find(c, "shared_wavefronts");

    printf("%s is bound by %s", *c->kernel ? c->kernel : "the kernel", c->verdict);
    if (c->kernels > 1)
        printf(", the longest of %" PRIu64 " kernels", c->kernels);
    printf(": %s\n", c->why);
    printf("  %-14s  %.2f us, %" PRIu64 " passes\n", "duration", find(c, "duration_us"), c->passes);
    print_percents(c);
    if (!isnan(conflicts) && wavefronts > 0)
        printf("  %-14s  %.0f of %.0f accesses of shared memory\n", "bank conflicts", conflicts, wavefronts);
    print_launch(c);
    print_stalls(c);
    if (c->others > 0)
        printf("  %-14s  %" PRId64 " other processes have the GPU: figures of L2 and DRAM may be theirs, too\n",
               "beware", c->others);
}

/* ---- JSON ---- */

static void json_figures(const char *key, const struct kops_figure *figures, size_t n)
{
    json_begin(key, '{');
    for (size_t i = 0; i < n; i++)
        json_number(figures[i].name, figures[i].value);
    json_end('}');
}

static void json_sizes(const char *key, const uint64_t sizes[3])
{
    const int64_t signed_sizes[3] = {(int64_t)sizes[0], (int64_t)sizes[1], (int64_t)sizes[2]};

    json_ints(key, signed_sizes, 3);
}

static void json_launch(const struct kops_counter_launch *l)
{
    json_begin("launch", '{');
    json_sizes("grid", l->grid);
    json_sizes("block", l->block);
    json_uint("registers", l->registers);
    json_uint("static_shared", l->static_shared);
    json_uint("dynamic_shared", l->dynamic_shared);
    json_uint("local_bytes", l->local_bytes);
    json_number("occupancy_pct", l->occupancy_pct);
    json_text("limiter", l->limiter);
    json_end('}');
}

void counters_json(const char *key, const struct kops_counters *c)
{
    json_begin(key, '{');
    json_text("verdict", c->verdict);
    json_text("why", c->why);
    json_text("kernel", c->kernel);
    json_text("device", c->device);
    json_text("variant", c->variant);
    json_uint("kernels", c->kernels);
    json_uint("passes", c->passes);
    json_uint("copied_bytes", c->copied_bytes);
    if (c->others >= 0)
        json_int("others", c->others);
    json_figures("values", c->values, c->n_values);
    json_figures("stalls", c->stalls, c->n_stalls);
    if (c->has_launch)
        json_launch(&c->launch);
    json_end('}');
}
