/* The library's candidates for a problem, to be measured. */
#include <stdio.h>
#include <string.h>

#include "plan.h"

/* Adds those of the list that are not there yet. */
static unsigned add_candidates(const cublasLtMatmulHeuristicResult_t *from, int n_from, struct tuning_candidate *ret,
                               unsigned n, unsigned max)
{
    for (int i = 0; i < n_from && n < max; i++) {
        struct tuning_candidate c = {
            .choice = {.workspace_bytes = (uint32_t)from[i].workspaceSize, .has_algorithm = 1}};
        unsigned known = 0;

        step_copy_variant(c.choice.variant, "cublaslt");
        memcpy(c.choice.algorithm, &from[i].algo, sizeof(from[i].algo));
        snprintf(c.text, sizeof(c.text), "cublaslt %u, scratch %u KiB", n + 1, c.choice.workspace_bytes >> 10);
        while (known < n && memcmp(ret[known].choice.algorithm, c.choice.algorithm, sizeof(c.choice.algorithm)) != 0)
            known++;
        if (known == n)
            ret[n++] = c;
    }
    return n;
}

int blaslt_plan_candidates(struct cuda_device *d, cublasLtHandle_t handle, const struct blaslt_problem *problem,
                           uint64_t workspace_bytes, struct tuning_candidate *ret, unsigned max, unsigned *ret_n,
                           struct error *e)
{
    /* Those with little scratch are others than the first of those with much. */
    const uint64_t workspaces[] = {workspace_bytes, workspace_bytes / 8, 0};
    cublasLtMatmulHeuristicResult_t found[BLASLT_TUNED_FROM];
    struct blaslt_plan *p = NULL;
    cublasStatus_t status;
    int n;

    *ret_n = 0;
    if (blaslt_plan_describe(d, handle, problem, &p, e) < 0)
        return -1;
    for (unsigned i = 0; i < sizeof(workspaces) / sizeof(workspaces[0]); i++) {
        status = blaslt_plan_ask(p, workspaces[i], BLASLT_TUNED_FROM, found, &n);
        if (status != CUBLAS_STATUS_SUCCESS)
            break;
        *ret_n = add_candidates(found, n, ret, *ret_n, max);
    }
    blaslt_plan_unref(p);
    return *ret_n || status == CUBLAS_STATUS_SUCCESS ? 0 : blaslt_fail(status, "cublasLtMatmulAlgoGetHeuristic", e);
}
