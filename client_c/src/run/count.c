/* Counters: of an op as kops_run() sends it, of a kernel as kops_kernel_launch() does. */
#include <stdlib.h>

#include "base/fail.h"
#include "kernel.h"
#include "run.h"
#include "wire/wire.h"

static enum kops_code new_result(enum kops_counter_caches caches, struct wire_counters **ret, struct dispatch *d,
                                 struct kops_error *e)
{
    static const char *const names[] = {[KOPS_CACHES_COLD] = "cold", [KOPS_CACHES_WARM] = "warm"};

    if (caches != KOPS_CACHES_COLD && caches != KOPS_CACHES_WARM)
        return fail(e, KOPS_ERR_BAD_ARGUMENT, "caches is %d: KOPS_CACHES_COLD or KOPS_CACHES_WARM", (int)caches);
    *ret = calloc(1, sizeof(**ret));
    if (!*ret)
        return fail(e, KOPS_ERR_NO_MEMORY, "there is no memory for counters");
    *d = (struct dispatch){.way = DISPATCH_COUNT, .counters = *ret, .caches = names[caches]};
    return KOPS_OK;
}

static enum kops_code finish(enum kops_code code, struct wire_counters *w, struct kops_counters **ret,
                             struct kops_error *e)
{
    if (code)
        kops_counters_free(&w->counters);
    else
        *ret = &w->counters;
    return fail_older(e, code, "counters");
}

enum kops_code kops_counters_run(kops_client *client, const struct kops_request *request,
                                 enum kops_counter_caches caches, struct kops_counters **ret_counters,
                                 struct kops_error *ret_error)
{
    struct kops_error unwanted, *e = ret_error ? ret_error : &unwanted;
    struct wire_counters *w;
    struct dispatch d;
    enum kops_code r = new_result(caches, &w, &d, e);

    return r ? r : finish(run_request(client, request, &d, e), w, ret_counters, e);
}

enum kops_code kops_counters_launch(kops_kernel *kernel, const struct kops_argument *args, size_t n_args,
                                    const struct kops_launch_options *how, enum kops_counter_caches caches,
                                    struct kops_counters **ret_counters, struct kops_error *ret_error)
{
    struct kops_error unwanted, *e = ret_error ? ret_error : &unwanted;
    struct wire_counters *w;
    struct dispatch d;
    enum kops_code r = new_result(caches, &w, &d, e);

    return r ? r : finish(launch_request(kernel, args, n_args, how, &d, e), w, ret_counters, e);
}

struct kops_counters *kops_counters_free(struct kops_counters *counters)
{
    struct wire_counters *w = (struct wire_counters *)(void *)counters;

    if (!w)
        return NULL;
    arena_free(&w->arena);
    free(w);
    return NULL;
}
