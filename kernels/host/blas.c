#include "blas.h"

#include <stdlib.h>
#include <string.h>

#include "cpu.h"

/* Best first. Their threads must be their own: "libopenblas.so.0" is the serial build where "libopenblasp" exists. */
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

void blas_init(struct blas *blas, const char *setting, unsigned threads)
{
    *blas = (struct blas){.threads = threads};
    library_init(&blas->library, "BLAS", "host_blas", setting, usual);
    if (!blas->library.path[0])
        return;
    blas->name = name_of(blas->library.path);
    /* OpenBLAS takes several processors with AVX-512 for ones without (Zen 4, models newer than the library). */
    if (cpu_has(CPU_AVX512))
        setenv("OPENBLAS_CORETYPE", "SkylakeX", 0);
    /* OpenBLAS threads poll for 2^26 cycles after each product, which starves the clients on this machine. */
    setenv("OPENBLAS_THREAD_TIMEOUT", "20", 0);
}

void blas_deinit(struct blas *blas)
{
    library_deinit(&blas->library);
}

bool blas_set_threads(const struct blas *blas, unsigned threads)
{
    if (blas->set_threads_int)
        blas->set_threads_int((int)threads);
    else if (blas->set_threads_int64)
        blas->set_threads_int64(threads);
    else
        return false;
    return true;
}

static void prepare(void *context)
{
    const struct blas *blas = context;

    blas_set_threads(blas, blas->threads);
}

bool blas_is_loaded(const struct blas *blas)
{
    return library_is_loaded(&blas->library);
}

int blas_load(struct blas *blas, struct error *e)
{
    const struct library_symbol symbols[] = {{"cblas_sgemm", &blas->sgemm, false},
                                             {"cblas_dgemm", &blas->dgemm, false},
                                             {"cblas_sgemv", &blas->sgemv, false},
                                             {"cblas_dgemv", &blas->dgemv, false},
                                             {"openblas_set_num_threads", &blas->set_threads_int, true},
                                             {"MKL_Set_Num_Threads", &blas->set_threads_int, true},
                                             {"bli_thread_set_num_threads", &blas->set_threads_int64, true}};

    if (!blas->name)
        return error_set(e, ERROR_UNSUPPORTED, "no BLAS library was found; install libopenblas0 or set host_blas");
    return library_load(&blas->library, symbols, sizeof(symbols) / sizeof(symbols[0]), prepare, blas, e);
}
