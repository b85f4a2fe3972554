/* The command line of `kopsctl launch`. */
#include <stdio.h>
#include <string.h>

#include "base/complain.h"
#include "base/options.h"
#include "launch.h"
#include "view/counters.h"

static const char usage[] =
    "Usage: kopsctl launch FILE ENTRY --param PARAM... --grid SIZES --block SIZES [OPTION]...\n\n"
    "Compiles ENTRY of FILE unless the daemon has it, makes tensors, launches, and prints the time and the written\n"
    "tensors. Example:\n\n"
    "  kopsctl launch add2.cu add2_kernel -p 'float* c[n]' -p 'const float* a[n]' -p 'const float* b[n]=arange' \\\n"
    "      -p 'int n=1000' --grid 'ceil_div(n, 256)' --block 256\n\n"
    "  -p, --param PARAM      one a parameter, in order: TYPE NAME=NUMBER, or TYPE* NAME[SHAPE]=DATA. A pointer to "
    "const is\n"
    "                         read; another one is written, and with DATA also read. SHAPE: 640x333, or numbers and\n"
    "                         names of integer parameters with commas: n,4. DATA: random (the default of tensors that\n"
    "                         are read), zeros, arange, a number, null, or @FILE with the elements' bytes. TYPE: C's,\n"
    "                         or f32, i64, bf16 ... For a tensor map: tma TYPE* NAME[SHAPE] box[64,64] swizzle 128\n"
    "  -g, --grid SIZES       blocks, up to three numbers or expressions with commas: 'ceil_div(n, 256), 2'\n"
    "  -b, --block SIZES      threads of a block\n"
    "      --cluster SIZES    blocks of a cluster\n"
    "      --cooperative      all blocks run at one time, as grid.sync() needs\n"
    "      --shared BYTES     dynamic shared memory of a block, a number or an expression\n" SOURCE_USAGE
    "  -n, --repeat N         timed executions (default 1); 1 where a tensor is both read and written\n"
    "  -w, --warmup N         untimed executions before them (default 0)\n"
    "  -m, --memory WHERE     `shared` (default): shared memory, copied where a GPU runs it; `device`: memory on the "
    "device\n"
    "      --show N           elements of each written tensor that are printed (default 8)\n"
    "      --save NAME=FILE   the bytes of a written tensor; may be repeated\n"
    "      --counters         in place of times, what the GPU's counters say while it runs alone on copies;\n"
    "                         docs/profiling.md explains the figures\n"
    "      --cache CACHES     with --counters: `cold` (default) or `warm`\n"
    "      --seed N           other random data\n"
    "      --json             print JSON\n";

/* Up to three expressions with commas between them that are in no parentheses. `room` gets a copy. */
static int take_sizes(const char *what, const char *text, char *room, const char **ret_sizes)
{
    unsigned n = 0, depth = 0;

    if (strlen(text) >= LAUNCH_TEXT)
        return (int)ctl_usage("--%s is longer than %d characters", what, LAUNCH_TEXT);
    memcpy(room, text, strlen(text) + 1);
    ret_sizes[n++] = room;
    for (char *c = room; *c; c++) {
        depth += *c == '(';
        depth -= *c == ')' && depth;
        if (*c != ',' || depth)
            continue;
        if (n == 3)
            return (int)ctl_usage("--%s takes up to three sizes, not `%s`", what, text);
        *c = 0;
        ret_sizes[n++] = c + 1;
    }
    return -1;
}

static int take_param(struct launch *l, const char *text)
{
    if (l->n_params == KOPS_MAX_PARAMS)
        return (int)ctl_usage("a kernel has at most %d parameters", KOPS_MAX_PARAMS);
    return launch_param_parse(&l->params[l->n_params++], text) ? CTL_USAGE : -1;
}

static int take_number(const char *what, uint64_t min, uint64_t *ret)
{
    if (ctl_parse_uint(optarg, min, UINT32_MAX, ret))
        return -1;
    return (int)ctl_usage("--%s takes a number from %u on, not `%s`", what, (unsigned)min, optarg);
}

static int take_option(struct launch *l, int option)
{
    switch (option) {
    case 'p':
        return take_param(l, optarg);
    case 'g':
        return take_sizes("grid", optarg, l->sizes[0], l->geometry.grid);
    case 'b':
        return take_sizes("block", optarg, l->sizes[1], l->geometry.block);
    case 'c':
        return take_sizes("cluster", optarg, l->sizes[2], l->geometry.cluster);
    case 's':
        l->geometry.shared = optarg;
        return -1;
    case 'n':
        return take_number("repeat", 1, &l->repeat);
    case 'w':
        return take_number("warmup", 0, &l->warmup);
    case 'N':
        return take_number("show", 0, &l->show);
    case 'e':
        return take_number("seed", 0, &l->seed);
    case 'm':
        l->device_memory = !strcmp(optarg, "device");
        if (l->device_memory || !strcmp(optarg, "shared"))
            return -1;
        return (int)ctl_usage("--memory is `shared` or `device`, not `%s`", optarg);
    case 'C':
        l->cooperative = true;
        return -1;
    case 'K':
        l->counters = true;
        return -1;
    case 'H':
        if (counters_parse(optarg, &l->caches))
            return -1;
        return (int)ctl_usage("--cache is `cold` or `warm`, not `%s`", optarg);
    default: /* 'f' */
        if (!strchr(optarg, '=') || l->n_saves == LAUNCH_MAX_SAVES)
            return (int)ctl_usage("--save takes NAME=FILE, not `%s` (and at most %d of them)", optarg,
                                  LAUNCH_MAX_SAVES);
        l->saves[l->n_saves++] = optarg;
        return -1;
    }
}

/* Before the launch: only tensors that it writes can be saved. */
static int check_saves(const struct launch *l)
{
    for (size_t i = 0; i < l->n_saves; i++) {
        const size_t length = strcspn(l->saves[i], "=");
        bool found = false;

        for (size_t p = 0; p < l->n_params; p++)
            found |= launch_is_written(&l->params[p]) && strlen(l->params[p].name) == length &&
                     !memcmp(l->params[p].name, l->saves[i], length);
        if (!found)
            return (int)ctl_usage("--save %s: no written tensor has that name", l->saves[i]);
    }
    return -1;
}

int launch_parse(struct ctl *ctl, int argc, char **argv, struct launch *l)
{
    static const struct option options[] = {{"param", required_argument, NULL, 'p'},
                                            {"grid", required_argument, NULL, 'g'},
                                            {"block", required_argument, NULL, 'b'},
                                            {"cluster", required_argument, NULL, 'c'},
                                            {"cooperative", no_argument, NULL, 'C'},
                                            {"shared", required_argument, NULL, 's'},
                                            {"repeat", required_argument, NULL, 'n'},
                                            {"warmup", required_argument, NULL, 'w'},
                                            {"memory", required_argument, NULL, 'm'},
                                            {"show", required_argument, NULL, 'N'},
                                            {"save", required_argument, NULL, 'f'},
                                            {"seed", required_argument, NULL, 'e'},
                                            {"counters", no_argument, NULL, 'K'},
                                            {"cache", required_argument, NULL, 'H'},
                                            SOURCE_OPTIONS,
                                            CTL_COMMON_OPTIONS};
    int option, end;

    l->repeat = l->seed = 1;
    l->show = 8;
    while ((option = getopt_long(argc, argv, "p:g:b:n:w:m:" SOURCE_LETTERS "h", options, NULL)) != -1) {
        if (strchr("pgbcsnwmNfeKHC", option))
            end = take_option(l, option);
        else
            end = strchr(SOURCE_LETTERS, option) ? source_option(&l->source, option) : ctl_common(ctl, option, usage);
        if (end >= 0)
            return end;
    }
    if (optind + 2 != argc)
        return (int)ctl_usage("launch takes a file and an entry; `kopsctl launch --help` has an example");
    if (!l->geometry.grid[0] || !l->geometry.block[0])
        return (int)ctl_usage("launch needs --grid and --block");
    l->path = argv[optind];
    l->entry = argv[optind + 1];
    return check_saves(l);
}
