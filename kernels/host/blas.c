#include "blas.h"

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
#include "util/log.h"

/* Best first. Their threads must be their own: "libopenblas.so.0" is the serial build where "libopenblasp" exists. */
static const char *const usual[] = {"libopenblasp.so.0", "libopenblas.so.0", "libmkl_rt.so.2", "libmkl_rt.so",
                                    "libblis-mt.so.4",   "libblis.so.4",     "libblis.so"};

static const char *name_of(const char *path)
{
    static const char *const known[] = {"openblas", "mkl", "blis"};
    const char *file = strrchr(path, '/');

    for (unsigned i = 0; i < sizeof(known) / sizeof(known[0]); i++)
        if (strstr(file ? file : path, known[i]))
            return known[i];
    return "blas";
}

/* A shared library that this process could load: same class and machine. */
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

/* The loader's cache holds paths as strings: any that ends in the name is tried. */
static bool find_in_cache(const char *cache, size_t length, const char *file, char *into, size_t size)
{
    char wanted[64];
    size_t n = (size_t)snprintf(wanted, sizeof(wanted), "/%s", file) + 1; /* with its terminator */
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

/* The places where dlopen() looks, in its order: LD_LIBRARY_PATH, the cache, the standard folders. */
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

static bool find_usual(char *into, size_t size)
{
    int fd = open("/etc/ld.so.cache", O_RDONLY | O_CLOEXEC);
    struct stat st = {0};
    void *cache = MAP_FAILED;
    bool found = false;

    if (fd >= 0 && fstat(fd, &st) == 0 && st.st_size > 0)
        cache = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
    for (unsigned i = 0; i < sizeof(usual) / sizeof(usual[0]) && !found; i++)
        found = find(usual[i], cache == MAP_FAILED ? NULL : cache, (size_t)st.st_size, into, size);
    if (cache != MAP_FAILED)
        munmap(cache, (size_t)st.st_size);
    if (fd >= 0)
        close(fd);
    return found;
}

void blas_init(struct blas *blas, const char *setting, unsigned threads)
{
    *blas = (struct blas){.threads = threads};
    pthread_mutex_init(&blas->lock, NULL);
    if (setting && !strcmp(setting, "none"))
        return;
    if (!setting || !strcmp(setting, "auto")) {
        if (!find_usual(blas->path, sizeof(blas->path)))
            return;
    } else {
        snprintf(blas->path, sizeof(blas->path), "%s", setting);
    }
    blas->name = name_of(blas->path);
    /* OpenBLAS takes several processors with AVX-512 for ones without (Zen 4, models newer than the library). */
    if (cpu_has(CPU_AVX512))
        setenv("OPENBLAS_CORETYPE", "SkylakeX", 0);
    /* OpenBLAS threads poll for 2^26 cycles after each product, which starves the clients on this machine. */
    setenv("OPENBLAS_THREAD_TIMEOUT", "20", 0);
}

void blas_deinit(struct blas *blas)
{
    pthread_mutex_destroy(&blas->lock); /* the library stays loaded: its threads live in it */
}

static int load(struct blas *blas, struct error *e)
{
    const struct {
        void *into;
        const char *name;
        bool optional;
    } symbols[] = {{&blas->sgemm, "cblas_sgemm", false},
                   {&blas->dgemm, "cblas_dgemm", false},
                   {&blas->sgemv, "cblas_sgemv", false},
                   {&blas->dgemv, "cblas_dgemv", false},
                   {&blas->set_threads_int, "openblas_set_num_threads", true},
                   {&blas->set_threads_int, "MKL_Set_Num_Threads", true},
                   {&blas->set_threads_int64, "bli_thread_set_num_threads", true}};
    void *library = dlopen(blas->path, RTLD_NOW | RTLD_LOCAL);

    if (!library)
        return error_set(e, ERROR_UNSUPPORTED,
                         "the BLAS %s cannot be loaded (%s); set host_blas to another or \"none\"", blas->path,
                         dlerror());
    for (unsigned i = 0; i < sizeof(symbols) / sizeof(symbols[0]); i++) {
        void *symbol = dlsym(library, symbols[i].name);

        if (symbol)
            memcpy(symbols[i].into, &symbol, sizeof(symbol));
        else if (!symbols[i].optional)
            return error_set(e, ERROR_UNSUPPORTED, "the BLAS %s has no %s; set host_blas to another or \"none\"",
                             blas->path, symbols[i].name);
    }
    blas_set_threads(blas, blas->threads);
    return 0;
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

bool blas_is_loaded(const struct blas *blas)
{
    return atomic_load_explicit(&blas->ready, memory_order_acquire);
}

int blas_load(struct blas *blas, struct error *e)
{
    if (blas_is_loaded(blas))
        return 0;
    if (!blas->name)
        return error_set(e, ERROR_UNSUPPORTED, "no BLAS library was found; install libopenblas0 or set host_blas");
    pthread_mutex_lock(&blas->lock);
    if (!blas->tried) {
        blas->tried = true;
        if (load(blas, &blas->why) == 0)
            atomic_store_explicit(&blas->ready, true, memory_order_release);
        else
            log_warning("blas_not_loaded", "path=%s", blas->path);
    }
    if (!atomic_load(&blas->ready))
        *e = blas->why;
    pthread_mutex_unlock(&blas->lock);
    return atomic_load(&blas->ready) ? 0 : -1;
}
