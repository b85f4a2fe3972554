/* kopsctl tuning */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/complain.h"
#include "base/json.h"
#include "base/options.h"
#include "base/table.h"
#include "base/text.h"
#include "commands.h"

static const char usage[] =
    "Usage: kopsctl tuning [--clear] [--json]\n\n"
    "Lists what tuning has chosen, the newest first. For each problem: what runs, and what would run without tuning\n"
    "(usual), with their times in microseconds when it was tuned; how many times faster the choice is (gain); its\n"
    "age; how many of the candidates were tried, where the others wait for a later tuning; the kind of machine and\n"
    "the software that it is for. Administrators see all problems, others those that their own user had tuned.\n"
    "`kopsctl tune` tunes a problem.\n\n"
    "      --clear   forget all choices; for administrators, by default root and the daemon's own user\n"
    "      --json    print JSON\n";

enum { TEXT = 32 };

/* ---- the choices, which come in pages ---- */

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

/* All of them, or none after `clear`. What others tune meanwhile may move a choice to the next page. */
static enum ctl_exit read_choices(struct ctl *ctl, bool clear, struct choices *ret)
{
    struct kops_tuning *page;
    struct kops_error error;
    enum ctl_exit status;

    do {
        if (kops_tuning(ctl->client, ret->n, clear, &page, &error))
            return ctl_failed("tuning", &error);
        status = add_page(ret, page);
    } while (!status && !clear && page->choices[0] && ret->n < page->total);
    return status;
}

/* ---- as a table, and as JSON ---- */

/* "GPU; driver; library; kernels" is wider than a cell. */
static void print_machine(struct table *t, const char *machine)
{
    const size_t n = strcspn(machine, ";");
    const char *software = machine + n + strspn(machine + n, "; ");

    table_cell(t, "%.*s", (int)n, machine);
    table_cell(t, "%s", *software ? software : "-");
}

static void print_row(struct table *t, const struct kops_choice *c, double now_s)
{
    char text[TEXT];

    table_cell(t, "%s", c->problem);
    table_cell(t, "%s", c->what);
    table_us(t, c->us);
    table_cell(t, "%s", c->usual);
    table_us(t, c->usual_us);
    table_cell(t, "%s", text_gain(c->usual_us, c->us, text, sizeof(text)));
    table_cell(t, "%s", text_duration(now_s - c->at, text, sizeof(text)));
    if (c->candidates)
        table_cell(t, "%u of %u", c->tried, c->candidates);
    else
        table_cell(t, "-");
    print_machine(t, c->machine);
}

static void print_text(const struct choices *all)
{
    const double now_s = (double)time(NULL);
    struct table t;

    table_init(&t, "llrlrrrlll",
               (const char *const[]){"problem", "runs", "us", "usual", "usual us", "gain", "age", "tried", "machine",
                                     "software"});
    for (size_t i = 0; i < all->n_pages; i++)
        for (const struct kops_choice *const *c = all->pages[i]->choices; *c; c++)
            print_row(&t, *c, now_s);
    table_print(&t);
}

static void print_json(const struct choices *all)
{
    json_begin(NULL, '{');
    json_uint("total", all->n);
    json_begin("choices", '[');
    for (size_t i = 0; i < all->n_pages; i++)
        for (const struct kops_choice *const *c = all->pages[i]->choices; *c; c++) {
            json_begin(NULL, '{');
            json_text("machine", (*c)->machine);
            json_text("problem", (*c)->problem);
            json_text("variant", (*c)->variant);
            json_text("what", (*c)->what);
            json_number("us", (*c)->us);
            json_text("usual", (*c)->usual);
            json_number("usual_us", (*c)->usual_us);
            json_number("noise", (*c)->noise);
            json_number("at", (*c)->at);
            json_uint("tried", (*c)->tried);
            json_uint("candidates", (*c)->candidates);
            json_end('}');
        }
    json_end(']');
    json_end('}');
}

/* ---- the command ---- */

enum ctl_exit ctl_tuning(struct ctl *ctl, int argc, char **argv)
{
    static const struct option options[] = {{"clear", no_argument, NULL, 'c'}, CTL_COMMON_OPTIONS};
    struct choices all = {0};
    enum ctl_exit status;
    bool clear = false;
    int option, end;

    while ((option = getopt_long(argc, argv, "h", options, NULL)) != -1) {
        if (option == 'c')
            clear = true;
        else if ((end = ctl_common(ctl, option, usage)) >= 0)
            return (enum ctl_exit)end;
    }
    if (optind < argc)
        return ctl_usage("tuning takes no `%s`", argv[optind]);
    status = ctl_connect(ctl);
    if (status)
        return status;
    status = read_choices(ctl, clear, &all);
    if (!status && ctl->json)
        print_json(&all);
    else if (!status && clear)
        printf("all choices are forgotten\n");
    else if (!status && all.n)
        print_text(&all);
    else if (!status)
        printf("nothing has been tuned; `kopsctl tune` does it\n");
    free_choices(&all);
    return status;
}
