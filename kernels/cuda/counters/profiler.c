/* Finds and loads CUPTI. */
#include "profiler.h"

#include <dlfcn.h>
#include <glob.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static const char *chosen_path;
static void *library;
static struct cupti_profiling functions;

/* Names for the loader, which knows LD_LIBRARY_PATH and the system's folders. */
static const char *const names[] = {"libcupti.so.13", "libcupti.so.12"};

/* Where toolkits and the package nvidia-cuda-cupti of pip put it. The newest comes last in each. */
static const char *const places[] = {
    "/usr/local/cuda*/extras/CUPTI/lib64/libcupti.so.1[23]",
    "/usr/local/cuda*/targets/*/lib/libcupti.so.1[23]",
    "/usr/local/cuda*/lib*/libcupti.so.1[23]",
    "/opt/cuda/extras/CUPTI/lib64/libcupti.so.1[23]",
    "/usr/lib/*-linux-gnu/libcupti.so.1[23]",
    "/usr/local/lib/python3*/*-packages/nvidia/*/lib/libcupti.so.1[23]",
    "/usr/lib/python3*/*-packages/nvidia/*/lib/libcupti.so.1[23]",
};

void cupti_choose(const char *path)
{
    pthread_mutex_lock(&lock);
    chosen_path = path;
    pthread_mutex_unlock(&lock);
}

/* ---- loading ---- */

static int resolve(void *from, struct cupti_profiling *ret_functions, const char **ret_missing)
{
    static const struct {
        const char *symbol;
        size_t offset;
    } wanted[] = {
#define X(field, symbol, type) {#symbol, offsetof(struct cupti_profiling, field)},
        CUPTI_PROFILER_FUNCTIONS(X)
#undef X
    };

    for (size_t i = 0; i < sizeof(wanted) / sizeof(wanted[0]); i++) {
        void *symbol = dlsym(from, wanted[i].symbol);

        if (!symbol) {
            *ret_missing = wanted[i].symbol;
            return -1;
        }
        memcpy((char *)ret_functions + wanted[i].offset, &symbol, sizeof(symbol));
    }
    return 0;
}

static bool load_from(const char *path, char *why, size_t why_size)
{
    void *found = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    const char *missing = NULL;

    if (!found) {
        snprintf(why, why_size, "%s", dlerror());
        return false;
    }
    if (resolve(found, &functions, &missing) < 0) {
        snprintf(why, why_size, "%s has no %s: it is older than CUDA 12.6", path, missing);
        dlclose(found);
        return false;
    }
    library = found;
    return true;
}

static bool load_from_place(const char *place, char *why, size_t why_size)
{
    bool loaded = false;
    glob_t found;

    if (glob(place, 0, NULL, &found) != 0)
        return false;
    for (size_t i = found.gl_pathc; !loaded && i > 0; i--)
        loaded = load_from(found.gl_pathv[i - 1], why, why_size);
    globfree(&found);
    return loaded;
}

static bool load_usual(char *why, size_t why_size)
{
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        if (load_from(names[i], why, why_size))
            return true;
    snprintf(why, why_size, "it is in no usual place");
    for (size_t i = 0; i < sizeof(places) / sizeof(places[0]); i++)
        if (load_from_place(places[i], why, why_size))
            return true;
    return false;
}

const struct cupti_profiling *cupti_get(struct error *e)
{
    char why[200] = "";
    bool off, loaded;

    pthread_mutex_lock(&lock);
    off = chosen_path && !strcmp(chosen_path, "off");
    if (!library && !off && chosen_path)
        load_from(chosen_path, why, sizeof(why));
    else if (!library && !off)
        load_usual(why, sizeof(why));
    loaded = library && !off;
    pthread_mutex_unlock(&lock);
    if (loaded)
        return &functions;
    if (off)
        error_set(e, ERROR_UNSUPPORTED, "counters are switched off here: the daemon's setting executors.cupti is off");
    else
        error_set(
            e, ERROR_UNSUPPORTED,
            "counters need CUPTI, which cannot be loaded (%s): install the toolkit's cuda-cupti or pip's "
            "nvidia-cuda-cupti, and name libcupti.so in the daemon's setting executors.cupti where it is in no usual "
            "place",
            why);
    return NULL;
}

/* ---- errors ---- */

int cupti_fail(int result, const char *call, struct error *e)
{
    switch (result) {
    case CUPTI_INSUFFICIENT_PRIVILEGES:
    case CUPTI_VIRTUAL_INSUFFICIENT_PRIVILEGES:
        error_set(
            e, ERROR_PERMISSION_DENIED,
            "the GPU's driver lets administrators alone read counters (RmProfilingAdminOnly is 1): an "
            "administrator loads the kernel module nvidia with NVreg_RestrictProfilingToAdminUsers=0, or runs the "
            "daemon with CAP_SYS_ADMIN and executors.sandbox = off");
        break;
    case CUPTI_HARDWARE_BUSY:
        error_set(e, ERROR_DEVICE_ERROR,
                  "another profiler has the GPU's counters: stop it, or pause it (dcgmi profile --pause for DCGM), and "
                  "try again");
        break;
    case CUPTI_MULTIPLE_SUBSCRIBERS:
        error_set(e, ERROR_UNSUPPORTED,
                  "another tool watches the daemon's processes through CUPTI: start the daemon without it");
        break;
    case CUPTI_NOT_COMPATIBLE:
        error_set(e, ERROR_UNSUPPORTED,
                  "CUPTI does not fit the GPU's driver: name one of the driver's CUDA version in executors.cupti");
        break;
    case CUPTI_OUT_OF_MEMORY:
        error_set(e, ERROR_OUT_OF_MEMORY, "CUPTI has too little memory: use smaller tensors");
        break;
    default:
        error_set(e, ERROR_DEVICE_ERROR, "%s failed with CUPTI's result %d", call, result);
        break;
    }
    return error_detail_number(e, "cupti", result);
}
