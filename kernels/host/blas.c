#include "blas.h"

#include <stdlib.h>
#include <string.h>

#include "cpu.h"

enum { ROW_MAJOR = 101, NO_TRANS = 111, TRANS = 112 }; /* CBLAS's values */

/* Best first. */
static const char *const usual[] = {"libopenblasp.so.0", "libopenblas.so.0", "libmkl_rt.so.2", "libmkl_rt.so",
                                    "libblis-mt.so.4",   "libblis.so.4",     "libblis.so",     NULL};

static const char *name_of(const char *path)
{
    static const char *const known[] = {"openblas", "mkl", "blis"};
    const char *file = strrchr(path, '/');

    for (unsigned i = 0; i < sizeof(known) / sizeof(known[0]); i++)
        if (strstr(file ? file : path, known[i]))
            return known[i];
    return "blas";
}

void blas_init(struct blas *blas, const char *setting)
{
    *blas = (struct blas){0};
    library_init(&blas->library, "BLAS", "host_blas", setting, usual);
    if (!blas->library.path[0])
        return;
    blas->name = name_of(blas->library.path);
}

void blas_prepare_process(void)
{
    /* OpenBLAS does not recognise AVX-512 on several processors (Zen 4, models newer than the library). */
    if (cpu_has(CPU_AVX512))
        setenv("OPENBLAS_CORETYPE", "SkylakeX", 0);
    /* Keeps OpenBLAS from starting threads when it is loaded. */
    setenv("OPENBLAS_NUM_THREADS", "1", 1);
}

void blas_deinit(struct blas *blas)
{
    library_deinit(&blas->library);
}

static void prepare(void *context)
{
    const struct blas *blas = context;

    if (blas->set_threads)
        blas->set_threads(1);
    else if (blas->set_threads_int64)
        blas->set_threads_int64(1);
}

int blas_load(struct blas *blas, struct error *e)
{
    const struct library_symbol symbols[] = {{"cblas_sgemm", &blas->sgemm, false},
                                             {"cblas_dgemm", &blas->dgemm, false},
                                             {"cblas_sgemv", &blas->sgemv, false},
                                             {"cblas_dgemv", &blas->dgemv, false},
                                             {"openblas_set_num_threads", &blas->set_threads, true},
                                             {"MKL_Set_Num_Threads", &blas->set_threads, true},
                                             {"bli_thread_set_num_threads", &blas->set_threads_int64, true},
                                             {"omp_set_num_threads", &blas->set_openmp_threads, true}};

    if (!blas->name)
        return error_set(e, ERROR_UNSUPPORTED, "no BLAS library was found; install libopenblas0 or set host_blas");
    return library_load(&blas->library, symbols, sizeof(symbols) / sizeof(symbols[0]), prepare, blas, e);
}

/* ---- products ---- */

/* y = alpha·x·v + beta·y, where x is `rows` × `columns` in memory, used as its transpose if `transposed`. Several times
 * faster than a product with one column. */
static void multiply_vector(const struct blas *blas, enum dtype dtype, bool transposed, int64_t rows, int64_t columns,
                            double alpha, const struct gemm_block *x, const void *v, int v_step, double beta, void *y,
                            int y_step)
{
    const int trans = transposed ? TRANS : NO_TRANS;
    float *y32 = y;
    double *y64 = y;

    /* With beta = 0 some libraries multiply y by 0, which keeps its NaNs, so y is zeroed first. */
    for (int64_t i = 0; beta == 0 && i < (transposed ? columns : rows); i++)
        if (dtype == DTYPE_F64)
            y64[i * y_step] = 0;
        else
            y32[i * y_step] = 0;
    if (dtype == DTYPE_F64)
        blas->dgemv(ROW_MAJOR, trans, (int)rows, (int)columns, alpha, x->at, x->ld, v, v_step, beta, y64, y_step);
    else
        blas->sgemv(ROW_MAJOR, trans, (int)rows, (int)columns, (float)alpha, x->at, x->ld, v, v_step, (float)beta, y32,
                    y_step);
}

static int multiply(const void *library, enum dtype dtype, int64_t m, int64_t n, int64_t k, double alpha,
                    const struct gemm_block *a, const struct gemm_block *b, double beta, const struct gemm_block *out)
{
    const int trans_a = a->transposed ? TRANS : NO_TRANS, trans_b = b->transposed ? TRANS : NO_TRANS;
    const struct blas *blas = library;

    if (blas->set_openmp_threads)
        blas->set_openmp_threads(1);
    if (n == 1)
        multiply_vector(blas, dtype, a->transposed, a->transposed ? k : m, a->transposed ? m : k, alpha, a, b->at,
                        b->transposed ? 1 : b->ld, beta, out->at, out->ld);
    else if (m == 1)
        multiply_vector(blas, dtype, !b->transposed, b->transposed ? n : k, b->transposed ? k : n, alpha, b, a->at,
                        a->transposed ? a->ld : 1, beta, out->at, 1);
    else if (dtype == DTYPE_F64)
        blas->dgemm(ROW_MAJOR, trans_a, trans_b, (int)m, (int)n, (int)k, alpha, a->at, a->ld, b->at, b->ld, beta,
                    out->at, out->ld);
    else
        blas->sgemm(ROW_MAJOR, trans_a, trans_b, (int)m, (int)n, (int)k, (float)alpha, a->at, a->ld, b->at, b->ld,
                    (float)beta, out->at, out->ld);
    return 0;
}

struct gemm_way blas_way(const struct blas *blas)
{
    return (struct gemm_way){blas, multiply, DTYPE_BIT(DTYPE_F32) | DTYPE_BIT(DTYPE_F64)};
}
