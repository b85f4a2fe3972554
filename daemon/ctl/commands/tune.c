/* kopsctl tune */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/complain.h"
#include "base/json.h"
#include "base/options.h"
#include "base/table.h"
#include "base/text.h"
#include "commands.h"
#include "run.h"

static const char usage[] =
    "Usage: kopsctl tune OP [--shape SHAPES] [--dtype DTYPE] [--attr NAME=VALUE]... [--device DEVICE] [--json]\n\n"
    "Measures what can run the op, on memory of the daemon's own. The fastest runs from then on, for every client,\n"
    "also in the next daemon. It takes less than a second; other work goes first. What there is no time for is tried\n"
    "by the next tuning, or while the GPU is idle. `kopsctl tuning` lists the choices.\n\n"
    "  -s, --shape SHAPES     the inputs' shapes, as for `kopsctl run`: such as 640x640,640x333; one shape is that of\n"
    "                         all inputs. Default: 1024x1024\n"
    "  -t, --dtype DTYPE      f32 (default, where the op takes it), f64, f16, bf16, f8_e4m3, f8_e5m2\n"
    "  -a, --attr NAME=VALUE  an attribute of the op; may be repeated\n"
    "  -d, --device DEVICE    UUID, or index of `kopsctl info`; default: the daemon's own\n"
    "      --out-shape SHAPE  the output's shape, for an op that kopsctl does not know\n"
    "      --json             print JSON\n\n"
    "Prints the candidates, the fastest first. `usual` runs where nothing was tuned, `before` ran until now, `now`\n"
    "runs from now on. The gain is how many times faster than the usual one a candidate is. Of the states `slower` is\n"
    "left behind after its first measurement, `left_out` not measured for want of time, `unfit` unable to run this.\n";

enum { TEXT = 32 };

/* ---- as a table ---- */

static const struct kops_candidate *candidate(const struct kops_tune *t, unsigned i)
{
    return t->candidates[i];
}

static double time_of(const struct kops_candidate *c)
{
    return isnan(c->us) ? INFINITY : c->us;
}

/* Of places in the list: those that have no time come last, equal ones as the daemon has them. */
static int by_time(const void *a, const void *b)
{
    const struct kops_candidate *const *x = *(const struct kops_candidate *const *const *)a;
    const struct kops_candidate *const *y = *(const struct kops_candidate *const *const *)b;
    const double x_us = time_of(*x), y_us = time_of(*y);

    return x_us == y_us ? (x > y) - (x < y) : (x_us > y_us) - (x_us < y_us);
}

/* "usual, before, now", as far as they are true. */
static void roles(const struct kops_tune *t, unsigned i, char *into, size_t size)
{
    const struct {
        const char *name;
        unsigned which;
    } all[] = {{"usual", t->usual}, {"before", t->before}, {"now", t->best}};
    size_t n = 0;

    *into = 0;
    for (size_t k = 0; k < sizeof(all) / sizeof(all[0]); k++)
        if (all[k].which == i)
            n += (size_t)snprintf(into + n, size - n, "%s%s", n ? ", " : "", all[k].name);
}

static void print_row(struct table *table, const struct kops_tune *t, unsigned i)
{
    const struct kops_candidate *c = candidate(t, i);
    char text[TEXT];

    table_cell(table, "%s", c->what);
    table_cell(table, "%s", c->variant);
    table_us(table, c->us);
    table_cell(table, "%s", text_gain(candidate(t, t->usual)->us, c->us, text, sizeof(text)));
    table_cell(table, "%s", c->state);
    roles(t, i, text, sizeof(text));
    table_cell(table, "%s", *text ? text : "-");
}

static void print_outcome(const struct kops_tune *t)
{
    const struct kops_candidate *best = candidate(t, t->best), *before = candidate(t, t->before);
    char us[TEXT], more[TEXT];

    if (t->best == t->before)
        printf("nothing is faster beyond noise (%s)\n", text_percent(t->noise, more, sizeof(more)));
    else if (isnan(before->us))
        printf("%s runs from now on: %s us; %s, which ran before, was not measured\n", best->what,
               text_us(best->us, us, sizeof(us)), before->what);
    else
        printf("%s runs from now on: %s us, %s faster than before\n", best->what, text_us(best->us, us, sizeof(us)),
               text_gain(before->us, best->us, more, sizeof(more)));
}

/* How many candidates there was no time for. */
static void print_rest(const struct kops_tune *t)
{
    if (t->goes_on)
        printf("the time was over before all was measured: it is gone on with, ask again\n");
    else if (t->tried && t->tried < t->n_candidates)
        printf("tried so far: %u of %u candidates; the next tuning goes on with the others\n", t->tried,
               t->n_candidates);
}

static enum ctl_exit print_text(const struct kops_tune *t)
{
    const size_t size = t->n_candidates * sizeof(*t->candidates);
    const struct kops_candidate *const **sorted = malloc(size);
    struct table table;

    if (!sorted)
        return ctl_no_memory(size);
    for (unsigned i = 0; i < t->n_candidates; i++)
        sorted[i] = &t->candidates[i];
    qsort(sorted, t->n_candidates, sizeof(*sorted), by_time);
    printf("%s on %s\n", t->problem, t->machine);
    table_init(&table, "llrrll", (const char *const[]){"candidate", "variant", "us", "gain", "state", "runs"});
    for (unsigned i = 0; i < t->n_candidates; i++)
        print_row(&table, t, (unsigned)(sorted[i] - t->candidates));
    table_print(&table);
    if (!t->goes_on)
        print_outcome(t);
    print_rest(t);
    free(sorted);
    return CTL_OK;
}

/* ---- as JSON ---- */

static void print_json(const struct kops_tune *t)
{
    json_begin(NULL, '{');
    json_text("device", t->device);
    json_text("machine", t->machine);
    json_text("problem", t->problem);
    json_begin("candidates", '[');
    for (unsigned i = 0; i < t->n_candidates; i++) {
        const struct kops_candidate *c = candidate(t, i);

        json_begin(NULL, '{');
        json_text("variant", c->variant);
        json_text("what", c->what);
        json_text("state", c->state);
        json_number("us", c->us);
        json_end('}');
    }
    json_end(']');
    json_uint("best", t->best);
    json_uint("before", t->before);
    json_uint("usual", t->usual);
    json_number("noise", t->noise);
    json_number("took_us", t->took_us);
    json_uint("tried", t->tried);
    json_bool("goes_on", t->goes_on);
    json_end('}');
}

/* ---- the command ---- */

static int parse(struct ctl *ctl, int argc, char **argv, struct run_args *ret)
{
    static const struct option options[] = {
        {"shape", required_argument, NULL, 's'},     {"dtype", required_argument, NULL, 't'},
        {"attr", required_argument, NULL, 'a'},      {"device", required_argument, NULL, 'd'},
        {"out-shape", required_argument, NULL, 'O'}, CTL_COMMON_OPTIONS};
    int option;

    *ret = (struct run_args){.dtype = KOPS_F32};
    while ((option = getopt_long(argc, argv, "s:t:a:d:h", options, NULL)) != -1) {
        int end = strchr("stadO", option) ? run_take_option(ret, option) : ctl_common(ctl, option, usage);

        if (end >= 0)
            return end;
    }
    return run_take_op(ret, argc, argv);
}

enum ctl_exit ctl_tune(struct ctl *ctl, int argc, char **argv)
{
    struct kops_tensor inputs[CASE_MAX_INPUTS];
    struct kops_request request;
    struct kops_tune *tune;
    struct kops_error error;
    struct run_args args;
    struct run r = {.args = &args};
    enum ctl_exit status;
    int end = parse(ctl, argc, argv, &args);

    if (end >= 0)
        return (enum ctl_exit)end;
    status = ctl_connect(ctl);
    if (!status)
        status = run_resolve(ctl, &r);
    if (status)
        return status;
    request = run_make_request(&r, inputs, NULL);
    if (kops_tune(ctl->client, &request, &tune, &error))
        return ctl_failed("tune", &error);
    if (ctl->json)
        print_json(tune);
    else
        status = print_text(tune);
    kops_tune_free(tune);
    return status;
}
