/* Stands in for the other files of this folder where the toolkit has no cublasLt.h: no variant "cublaslt". */
#include "blaslt.h"
#include "util/log.h"

bool blaslt_choose(const char *path, bool late)
{
    (void)path, (void)late;
    log_debug("cublaslt_unavailable", "reason=\"built without cublasLt.h\"");
    return false;
}

bool blaslt_is_absent(const struct blaslt *b)
{
    (void)b;
    return true;
}

struct blaslt *blaslt_new(struct cuda_device *d, uint64_t workspace_bytes)
{
    (void)d, (void)workspace_bytes;
    return NULL;
}

struct blaslt *blaslt_free(struct blaslt *b)
{
    return b;
}

static int absent(struct error *e)
{
    return error_set(e, ERROR_UNSUPPORTED, "this daemon was built without cuBLASLt");
}

size_t blaslt_version(void)
{
    return 0;
}

int blaslt_plan_get(struct blaslt *b, const struct plan *plan, const uint64_t *addresses,
                    const struct tuning_choice *choice, struct blaslt_plan **ret_plan, struct error *e)
{
    (void)b, (void)plan, (void)addresses, (void)choice, (void)ret_plan;
    return absent(e);
}

bool blaslt_plan_is_cached(struct blaslt *b, const struct plan *plan, const uint64_t *addresses,
                           const struct tuning_choice *choice)
{
    (void)b, (void)plan, (void)addresses, (void)choice;
    return true;
}

int blaslt_candidates(struct blaslt *b, const struct plan *plan, const uint64_t *addresses,
                      struct tuning_candidate *ret, unsigned max, unsigned *ret_n, struct error *e)
{
    (void)b, (void)plan, (void)addresses, (void)ret, (void)max, (void)ret_n;
    return absent(e);
}

size_t blaslt_plan_workspace(const struct blaslt_plan *p)
{
    (void)p;
    return 0;
}

struct blaslt_plan *blaslt_plan_unref(struct blaslt_plan *p)
{
    return p;
}

int blaslt_plan_run(const struct cuda_queue *queue, struct blaslt_plan *p, const struct plan *plan,
                    const uint64_t *addresses, struct error *e)
{
    (void)queue, (void)p, (void)plan, (void)addresses;
    return absent(e);
}
