#include "onednn.h"

#include "guard.h"

/* Newest first. */
static const char *const usual[] = {"libdnnl.so.3", "libdnnl.so.2", "libdnnl.so.1", NULL};

void onednn_init(struct onednn *onednn, const char *setting)
{
    *onednn = (struct onednn){0};
    library_init(&onednn->library, "oneDNN", "host_onednn", setting, usual);
    onednn->found = onednn->library.path[0] != '\0';
}

void onednn_deinit(struct onednn *onednn)
{
    library_deinit(&onednn->library);
}

int onednn_load(struct onednn *onednn, struct error *e)
{
    /* The last function comes from the OpenMP library with which oneDNN is linked. A oneDNN with other threads lacks it
     * and is refused, since it could not be limited to one thread. */
    const struct library_symbol symbols[] = {{"dnnl_sgemm", &onednn->sgemm, false},
                                             {"dnnl_gemm_bf16bf16f32", &onednn->bf16gemm, true},
                                             {"omp_set_num_threads", &onednn->set_threads, false}};

    if (!onednn->found)
        return error_set(e, ERROR_UNSUPPORTED, "oneDNN was not found; install libdnnl2 or set host_onednn");
    return library_load(&onednn->library, symbols, sizeof(symbols) / sizeof(symbols[0]), NULL, NULL, e);
}

static int multiply(const void *library, enum dtype dtype, int64_t m, int64_t n, int64_t k, double alpha,
                    const struct gemm_block *a, const struct gemm_block *b, double beta, const struct gemm_block *out)
{
    const char trans_a = a->transposed ? 'T' : 'N', trans_b = b->transposed ? 'T' : 'N';
    const struct onednn *onednn = library;

    if (!guard_own_stack())
        return -1;
    onednn->set_threads(1);
    if (dtype == DTYPE_BF16)
        return onednn->bf16gemm(trans_a, trans_b, m, n, k, (float)alpha, a->at, a->ld, b->at, b->ld, (float)beta,
                                out->at, out->ld);
    return onednn->sgemm(trans_a, trans_b, m, n, k, (float)alpha, a->at, a->ld, b->at, b->ld, (float)beta, out->at,
                         out->ld);
}

struct gemm_way onednn_way(const struct onednn *onednn)
{
    return (struct gemm_way){onednn, multiply, DTYPE_BIT(DTYPE_F32) | (onednn->bf16gemm ? DTYPE_BIT(DTYPE_BF16) : 0)};
}
