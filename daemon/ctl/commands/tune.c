/* kopsctl tune, kopsctl tuning */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/output.h"
#include "commands.h"
#include "run.h"

static const char tune_usage[] =
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

/* Candidates without a time come last, equal ones as the daemon has them. */
static int by_time(const void *a, const void *b, void *tune)
{
    const unsigned i = *(const unsigned *)a, k = *(const unsigned *)b;
    const struct kops_tune *t = tune;
    const double x = t->candidates[i]->us, y = t->candidates[k]->us;

    if (isnan(x) || isnan(y) || x == y)
        return isnan(x) != isnan(y) ? (isnan(x) ? 1 : -1) : (i > k) - (i < k);
    return x > y ? 1 : -1;
}

/* "usual, before, now", as far as they are true; "-" for none. */
static const char *roles(const struct kops_tune *t, unsigned i)
{
    const struct {
        const char *name;
        unsigned which;
    } all[] = {{"usual", t->usual}, {"before", t->before}, {"now", t->best}};
    const char *text = "";

    for (size_t k = 0; k < sizeof(all) / sizeof(all[0]); k++)
        if (all[k].which == i)
            text = text_format("%s%s%s", text, *text ? ", " : "", all[k].name);
    return *text ? text : "-";
}

static void print_outcome(const struct kops_tune *t)
{
    const struct kops_candidate *best = t->candidates[t->best], *before = t->candidates[t->before];

    if (t->best == t->before)
        printf("nothing is faster beyond noise (%s)\n", text_percent(t->noise));
    else if (isnan(before->us))
        printf("%s runs from now on: %s us; %s, which ran before, was not measured\n", best->what, text_us(best->us),
               before->what);
    else
        printf("%s runs from now on: %s us, %s faster than before\n", best->what, text_us(best->us),
               text_gain(before->us, best->us));
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
    const size_t size = t->n_candidates * sizeof(unsigned);
    unsigned *sorted = malloc(size);
    struct table table;

    if (!sorted)
        return ctl_no_memory(size);
    for (unsigned i = 0; i < t->n_candidates; i++)
        sorted[i] = i;
    qsort_r(sorted, t->n_candidates, sizeof(*sorted), by_time, (void *)t);
    printf("%s on %s\n", t->problem, t->machine);
    table_init(&table, "candidate\tvariant\t>us\t>gain\tstate\truns");
    for (unsigned i = 0; i < t->n_candidates; i++) {
        const struct kops_candidate *c = t->candidates[sorted[i]];

        table_row(&table, "%s\t%s\t%s\t%s\t%s\t%s", c->what, c->variant, text_us(c->us),
                  text_gain(t->candidates[t->usual]->us, c->us), c->state, roles(t, sorted[i]));
    }
    table_print(&table);
    if (!t->goes_on)
        print_outcome(t);
    print_rest(t);
    free(sorted);
    return CTL_OK;
}

#define F(member) JSON_FIELD(struct kops_candidate, member)
static const struct json_field candidate_fields[] = {F(variant), F(what), F(state), F(us), JSON_END};
#undef F

enum ctl_exit ctl_tune(struct ctl *ctl, int argc, char **argv)
{
    struct run_args args = {.dtype = KOPS_F32};
    const struct ctl_option options[] = {RUN_PROBLEM_OPTIONS(&args), {0}};
    struct run r = {.args = &args};
    struct kops_request request;
    struct kops_tune *tune;
    enum ctl_exit status;

    if (!ctl_parse(ctl, argc, argv, tune_usage, options, argc, &status))
        return status;
    status = run_take_op(&args, argc, argv);
    if (!status)
        status = ctl_connect(ctl);
    if (!status)
        status = run_resolve(ctl, &r);
    if (status)
        return status;
    request = run_make_request(&r, NULL);
    if (kops_tune(ctl->client, &request, &tune, &ctl->error))
        return ctl_failed("tune", &ctl->error);
    if (ctl->json)
        JSON_MAP(NULL, json_text("device", tune->device), json_text("machine", tune->machine),
                 json_text("problem", tune->problem), json_list("candidates", candidate_fields, tune->candidates),
                 json_uint("best", tune->best), json_uint("before", tune->before), json_uint("usual", tune->usual),
                 json_number("noise", tune->noise), json_number("took_us", tune->took_us),
                 json_uint("tried", tune->tried), json_bool("goes_on", tune->goes_on));
    else
        status = print_text(tune);
    kops_tune_free(tune);
    return status;
}

static const char tuning_usage[] =
    "Usage: kopsctl tuning [--clear] [--json]\n\n"
    "Lists what tuning has chosen, the newest first. For each problem: what runs, and what would run without tuning\n"
    "(usual), with their times in microseconds when it was tuned; how many times faster the choice is (gain); its\n"
    "age; how many of the candidates were tried, where the others wait for a later tuning; the kind of machine and\n"
    "the software that it is for. Administrators see all problems, others those that their own user had tuned.\n"
    "`kopsctl tune` tunes a problem.\n\n"
    "      --clear   forget all choices; for administrators, by default root and the daemon's own user\n"
    "      --json    print JSON\n";

/* ---- tuning: the choices, which come in pages ---- */

struct choices {
    struct kops_tuning **pages;
    size_t n_pages;
    uint64_t n; /* choices in them */
};

static void free_choices(struct choices *c)
{
    for (size_t i = 0; i < c->n_pages; i++)
        kops_tuning_free(c->pages[i]);
    free(c->pages);
}

static enum ctl_exit add_page(struct choices *c, struct kops_tuning *page)
{
    const size_t size = (c->n_pages + 1) * sizeof(*c->pages);
    struct kops_tuning **pages = realloc(c->pages, size);

    if (!pages) {
        kops_tuning_free(page);
        return ctl_no_memory(size);
    }
    c->pages = pages;
    c->pages[c->n_pages++] = page;
    for (size_t i = 0; page->choices[i]; i++)
        c->n++;
    return CTL_OK;
}

/* Reads all choices, or none after `clear`. Another tuning meanwhile may move a choice to the next page. */
static enum ctl_exit read_choices(struct ctl *ctl, bool clear, struct choices *ret)
{
    struct kops_tuning *page;
    enum ctl_exit status;

    do {
        if (kops_tuning(ctl->client, ret->n, clear, &page, &ctl->error))
            return ctl_failed("tuning", &ctl->error);
        status = add_page(ret, page);
    } while (!status && !clear && page->choices[0] && ret->n < page->total);
    return status;
}

static void print_choices(const struct choices *all)
{
    const double now_s = (double)time(NULL);
    struct table t;

    table_init(&t, "problem\truns\t>us\tusual\t>usual us\t>gain\t>age\ttried\tmachine\tsoftware");
    for (size_t i = 0; i < all->n_pages; i++)
        for (const struct kops_choice *const *p = all->pages[i]->choices; *p; p++) {
            const struct kops_choice *c = *p;
            const size_t n = strcspn(c->machine, ";"); /* "GPU; driver; library; kernels" is wider than a cell */
            const char *software = c->machine + n + strspn(c->machine + n, "; ");

            table_row(&t, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%.*s\t%s", c->problem, c->what, text_us(c->us), c->usual,
                      text_us(c->usual_us), text_gain(c->usual_us, c->us), text_duration(now_s - c->at),
                      c->candidates ? text_format("%u of %u", c->tried, c->candidates) : "-", (int)n, c->machine,
                      *software ? software : "-");
        }
    table_print(&t);
}

#define F(member) JSON_FIELD(struct kops_choice, member)
static const struct json_field choice_fields[] = {F(machine), F(problem), F(variant),    F(what),
                                                  F(us),      F(usual),   F(usual_us),   F(noise),
                                                  F(at),      F(tried),   F(candidates), JSON_END};

static void choices_json(const struct choices *all)
{
    json_begin(NULL, '{');
    json_uint("total", all->n);
    json_begin("choices", '[');
    for (size_t i = 0; i < all->n_pages; i++)
        for (const struct kops_choice *const *c = all->pages[i]->choices; *c; c++)
            json_object(NULL, choice_fields, *c);
    json_end(']');
    json_end('}');
}

enum ctl_exit ctl_tuning(struct ctl *ctl, int argc, char **argv)
{
    bool clear = false;
    const struct ctl_option options[] = {{"--clear", 0, OPTION_FLAG, &clear}, {0}};
    struct choices all = {0};
    enum ctl_exit status;

    if (!ctl_begin(ctl, argc, argv, tuning_usage, options, 0, &status))
        return status;
    status = read_choices(ctl, clear, &all);
    if (!status && ctl->json)
        choices_json(&all);
    else if (!status && clear)
        printf("all choices are forgotten\n");
    else if (!status && all.n)
        print_choices(&all);
    else if (!status)
        printf("nothing has been tuned; `kopsctl tune` does it\n");
    free_choices(&all);
    return status;
}
