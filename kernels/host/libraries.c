/* Finds and loads the libraries, and calls their products. */
#include "libraries.h"

#include <dlfcn.h>
#include <elf.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cpu.h"
#include "guard.h"
#include "util/log.h"

/* A function whose address is written to *into. *into is unchanged if the library lacks an `optional` function. */
struct library_symbol {
    const char *name;
    void *into; /* address of a function pointer */
    bool optional;
};

/* ---- finding a library ---- */

/* Whether the file is a shared library of this process's class and machine. */
static bool is_loadable(const char *path)
{
    Elf64_Ehdr ours, theirs;
    bool equal = false;
    int fd = open("/proc/self/exe", O_RDONLY | O_CLOEXEC), other = open(path, O_RDONLY | O_CLOEXEC);

    if (fd >= 0 && other >= 0 && read(fd, &ours, sizeof(ours)) == sizeof(ours) &&
        read(other, &theirs, sizeof(theirs)) == sizeof(theirs))
        equal = !memcmp(theirs.e_ident, ELFMAG, SELFMAG) && theirs.e_type == ET_DYN &&
                theirs.e_ident[EI_CLASS] == ours.e_ident[EI_CLASS] && theirs.e_machine == ours.e_machine;
    if (fd >= 0)
        close(fd);
    if (other >= 0)
        close(other);
    return equal;
}

static bool try_folder(const char *folder, size_t length, const char *file, char *into, size_t size)
{
    return length > 0 && (size_t)snprintf(into, size, "%.*s/%s", (int)length, folder, file) < size && is_loadable(into);
}

/* Searches the loader's cache for strings that end in the name, and tries them as paths. */
static bool find_in_cache(const char *cache, size_t length, const char *file, char *into, size_t size)
{
    char wanted[64];
    size_t n = (size_t)snprintf(wanted, sizeof(wanted), "/%s", file) + 1; /* with the terminator */
    const char *at = cache, *end = cache + length;

    while (at && at < end && (at = memmem(at, (size_t)(end - at), wanted, n))) {
        const char *start = at;

        while (start > cache && start[-1])
            start--;
        if (*start == '/' && try_folder(start, (size_t)(at - start), file, into, size))
            return true;
        at += n;
    }
    return false;
}

/* Searches as dlopen() does: LD_LIBRARY_PATH, the cache, the standard folders. */
static bool find(const char *file, const char *cache, size_t length, char *into, size_t size)
{
    static const char *const folders[] = {"/lib64", "/usr/lib64", "/lib", "/usr/lib"};
    const char *list = getenv("LD_LIBRARY_PATH");

    while (list && *list) {
        size_t n = strcspn(list, ":;");

        if (try_folder(list, n, file, into, size))
            return true;
        list += n + (list[n] != '\0');
    }
    if (cache && find_in_cache(cache, length, file, into, size))
        return true;
    for (unsigned i = 0; i < sizeof(folders) / sizeof(folders[0]); i++)
        if (try_folder(folders[i], strlen(folders[i]), file, into, size))
            return true;
    return false;
}

static bool find_usual(const char *const *usual, char *into, size_t size)
{
    int fd = open("/etc/ld.so.cache", O_RDONLY | O_CLOEXEC);
    struct stat st = {0};
    void *cache = MAP_FAILED;
    bool found = false;

    if (fd >= 0 && fstat(fd, &st) == 0 && st.st_size > 0)
        cache = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
    for (; *usual && !found; usual++)
        found = find(*usual, cache == MAP_FAILED ? NULL : cache, (size_t)st.st_size, into, size);
    if (cache != MAP_FAILED)
        munmap(cache, (size_t)st.st_size);
    if (fd >= 0)
        close(fd);
    return found;
}

/* Finds the library, without loading it. `named`: a path; "none"; "auto" or NULL: the first one found of `usual`, which
 * is NULL-terminated. Call while no other thread changes the environment. */
static void library_init(struct library *library, const char *what, const char *setting, const char *named,
                         const char *const *usual)
{
    *library = (struct library){.what = what, .setting = setting};
    pthread_mutex_init(&library->lock, NULL);
    if (named && !strcmp(named, "none"))
        return;
    if (named && strcmp(named, "auto") != 0)
        snprintf(library->path, sizeof(library->path), "%s", named);
    else if (!find_usual(usual, library->path, sizeof(library->path)))
        library->path[0] = '\0';
}

static void library_deinit(struct library *library)
{
    pthread_mutex_destroy(&library->lock); /* the library stays loaded, since it may have threads */
}

/* ---- loading a library ---- */

static int load(const struct library *library, const struct library_symbol *symbols, unsigned count, struct error *e)
{
    void *handle = dlopen(library->path, RTLD_NOW | RTLD_LOCAL);

    if (!handle)
        return error_set(e, ERROR_UNSUPPORTED, "the %s %s cannot be loaded (%s); set %s to another or \"none\"",
                         library->what, library->path, dlerror(), library->setting);
    for (unsigned i = 0; i < count; i++) {
        void *symbol = dlsym(handle, symbols[i].name);

        if (symbol)
            memcpy(symbols[i].into, &symbol, sizeof(symbol));
        else if (!symbols[i].optional)
            return error_set(e, ERROR_UNSUPPORTED, "the %s %s has no %s; set %s to another or \"none\"", library->what,
                             library->path, symbols[i].name, library->setting);
    }
    return 0;
}

bool library_is_loaded(const struct library *library)
{
    return atomic_load_explicit(&library->ready, memory_order_acquire);
}

void library_give_up(struct library *library, const char *why)
{
    if (!atomic_exchange(&library->failed, true))
        log_warning("library_given_up", "path=%s why=\"%s\"", library->path, why);
}

bool library_has_failed(const struct library *library)
{
    return atomic_load_explicit(&library->failed, memory_order_acquire);
}

/* Loads the library once; later calls repeat the first outcome. `prepare` (may be NULL) runs once, before any other
 * thread can use the library. Errors: unsupported. */
static int library_load(struct library *library, const struct library_symbol *symbols, unsigned count,
                        void (*prepare)(void *context), void *context, struct error *e)
{
    if (library_is_loaded(library))
        return 0;
    pthread_mutex_lock(&library->lock);
    if (!library_is_loaded(library) && !library_has_failed(library)) {
        if (load(library, symbols, count, &library->why) == 0) {
            if (prepare)
                prepare(context);
            atomic_store_explicit(&library->ready, true, memory_order_release);
        } else {
            atomic_store_explicit(&library->failed, true, memory_order_release);
            log_warning("library_not_loaded", "path=%s", library->path);
        }
    }
    if (!atomic_load(&library->ready))
        *e = library->why;
    pthread_mutex_unlock(&library->lock);
    return atomic_load(&library->ready) ? 0 : -1;
}

/* ---- BLAS ---- */

enum { ROW_MAJOR = 101, NO_TRANS = 111, TRANS = 112 }; /* CBLAS's values */

/* Best first. */
static const char *const blas_usual[] = {"libopenblasp.so.0", "libopenblas.so.0", "libmkl_rt.so.2", "libmkl_rt.so",
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
    library_init(&blas->library, "BLAS", "host_blas", setting, blas_usual);
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

static int blas_multiply(const void *library, enum dtype dtype, int64_t m, int64_t n, int64_t k, double alpha,
                         const struct gemm_block *a, const struct gemm_block *b, double beta,
                         const struct gemm_block *out)
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
    return (struct gemm_way){blas, blas_multiply, DTYPE_BIT(DTYPE_F32) | DTYPE_BIT(DTYPE_F64)};
}

/* ---- oneDNN ---- */

/* Newest first. */
static const char *const onednn_usual[] = {"libdnnl.so.3", "libdnnl.so.2", "libdnnl.so.1", NULL};

void onednn_init(struct onednn *onednn, const char *setting)
{
    *onednn = (struct onednn){0};
    library_init(&onednn->library, "oneDNN", "host_onednn", setting, onednn_usual);
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

static int onednn_multiply(const void *library, enum dtype dtype, int64_t m, int64_t n, int64_t k, double alpha,
                           const struct gemm_block *a, const struct gemm_block *b, double beta,
                           const struct gemm_block *out)
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
    return (struct gemm_way){onednn, onednn_multiply,
                             DTYPE_BIT(DTYPE_F32) | (onednn->bf16gemm ? DTYPE_BIT(DTYPE_BF16) : 0)};
}
