/* kopsctl compile */
#include <stdio.h>
#include <string.h>

#include "base/complain.h"
#include "base/json.h"
#include "base/options.h"
#include "commands.h"
#include "data/source.h"
#include "view/module.h"

static const char usage[] =
    "Usage: kopsctl compile FILE [--entry NAME]... [OPTION]...\n\n"
    "Makes the daemon compile CUDA C++, and prints the resulting kernels. A source that was compiled before, for any\n"
    "client, is not compiled again. Files beside FILE that it includes in quotes are sent along.\n\n"
    "  -e, --entry NAME       a __global__ function, or an instantiation such as 'scale<float, 4>'; may be repeated.\n"
    "                         Default: all functions of the file that are no templates, or, where it has\n"
    "                         none, those of a file that it includes\n" SOURCE_USAGE
    "      --json             print JSON\n\n"
    "Exit status 1: it was not compiled; the compiler's output is on stderr.\n";

static enum ctl_exit compile(struct ctl *ctl, struct source *s, const char *path)
{
    kops_module *module;
    enum ctl_exit status = source_read(s, path);

    if (!status && !s->s.n_entries)
        status = source_find_entries(s);
    if (!status)
        status = ctl_connect(ctl);
    if (!status)
        status = source_compile(ctl, s, &module);
    if (status)
        return status;
    if (ctl->json) {
        json_begin(NULL, '{');
        module_json(kops_module_info(module));
        json_end('}');
    } else {
        module_print(kops_module_info(module), s->s.name);
    }
    kops_module_free(module);
    return CTL_OK;
}

enum ctl_exit ctl_compile(struct ctl *ctl, int argc, char **argv)
{
    static const struct option options[] = {
        {"entry", required_argument, NULL, 'e'}, SOURCE_OPTIONS, CTL_COMMON_OPTIONS};
    struct source s = {.n_texts = 0};
    enum ctl_exit status;
    int option, end = -1;

    while (end < 0 && (option = getopt_long(argc, argv, "e:" SOURCE_LETTERS "h", options, NULL)) != -1) {
        if (option == 'e')
            end = source_add_entry(&s, optarg) ? CTL_USAGE : -1;
        else
            end = strchr(SOURCE_LETTERS, option) ? source_option(&s, option) : ctl_common(ctl, option, usage);
    }
    if (end >= 0)
        status = (enum ctl_exit)end;
    else if (optind + 1 != argc)
        status = ctl_usage("compile takes one file");
    else
        status = compile(ctl, &s, argv[optind]);
    source_free(&s);
    return status;
}
