/* The arguments of `kopsctl launch` (launch_args.c, launch_param.c, launch_map.c), the launch (launch.c), and its
 * report (launch_print.c). */
#ifndef KOPS_CTL_LAUNCH_H
#define KOPS_CTL_LAUNCH_H

#include "base/ctl.h"
#include "data/operand.h"
#include "data/source.h"
#include "view/conditions.h"

enum { LAUNCH_TEXT = 256, LAUNCH_MAX_SAVES = 16 };

/* A --param, such as "const float* a[n]=random" or "int n=1000". */
struct launch_param {
    char text[LAUNCH_TEXT]; /* cut into the parts below */
    char name[64];
    const char *dims, *value; /* dims: "640x333", "n,4"; NULL: a scalar. value: NULL: none */
    struct kops_param declared;
    struct kops_tensor_map map; /* of `declared`, where it is one */
    struct operand operand;     /* of a tensor */
    struct kops_argument argument;
};

struct launch {
    struct source source;
    const char *path, *entry;
    struct launch_param params[KOPS_MAX_PARAMS];
    size_t n_params;
    struct kops_geometry geometry;
    char sizes[3][LAUNCH_TEXT]; /* the texts of `geometry` */
    const char *saves[LAUNCH_MAX_SAVES];
    size_t n_saves;
    uint64_t repeat, warmup, seed, show;
    bool device_memory, cooperative;
    struct conditions_pair conditions; /* around several launches */
    bool counters;                     /* in place of times and results: what the GPU counts, with these caches */
    enum kops_counter_caches caches;
};

/* The command line. Returns -1 to go on, or the exit status. */
int launch_parse(struct ctl *ctl, int argc, char **argv, struct launch *l);

/* Takes one --param apart. */
enum ctl_exit launch_param_parse(struct launch_param *p, const char *text);

/* Takes "tma" and what follows the shape from a --param's text. Returns what is left, which is the text itself for any
 * other parameter; NULL: it is not understood. */
char *launch_map_cut(struct launch_param *p, char *text);

/* Shapes and scalars, once all parameters are known. */
enum ctl_exit launch_params_resolve(struct launch *l);

/* Writes a tensor's data, as its value says. */
enum ctl_exit launch_param_fill(struct launch_param *p, uint64_t seed);

static inline bool launch_is_written(const struct launch_param *p)
{
    return p->declared.kind == KOPS_PARAM_OUT || p->declared.kind == KOPS_PARAM_INOUT;
}

void launch_print(const struct ctl *ctl, const struct launch *l, const kops_module *module,
                  const struct kops_result *result, const double *samples);

#endif
