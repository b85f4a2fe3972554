/* Owns the driver's library and its tables of functions, and CUPTI's library. */
#include "driver.h"

#include <dlfcn.h>
#include <glob.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "util/packages.h"

struct cuda_driver cuda;

static struct cuda_context_driver in_context;

/* The thread's current context; no other code changes it. */
static _Thread_local CUcontext current;

enum need { OPTIONAL, REQUIRED };

static const struct cuda_symbol functions[] = {
#define X(Name, suffix, need) {"cu" #Name suffix, offsetof(struct cuda_driver, Name), need == OPTIONAL},
    CUDA_DRIVER_FUNCTIONS(X)
#undef X
};

static const struct cuda_symbol context_functions[] = {
#define X(Name, suffix, need) {"cu" #Name suffix, offsetof(struct cuda_context_driver, Name), need == OPTIONAL},
    CUDA_CONTEXT_FUNCTIONS(X)
#undef X
};

static const struct cuda_symbol elapsed_time = {"cuEventElapsedTime",
                                                offsetof(struct cuda_context_driver, EventElapsedTime), false};

const char *cuda_resolve(void *library, const struct cuda_symbol *wanted, size_t n, void *table)
{
    for (size_t i = 0; i < n; i++) {
        void *symbol = dlsym(library, wanted[i].name);

        if (!symbol && !wanted[i].optional)
            return wanted[i].name;
        memcpy((char *)table + wanted[i].offset, &symbol, sizeof(symbol));
    }
    return NULL;
}

int cuda_driver_load(const char *path, char *why, size_t why_size)
{
    struct cuda_context_driver context_table;
    struct cuda_driver table;
    const char *missing;
    void *library;
    CUresult r;

    library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        snprintf(why, why_size, "%s", dlerror());
        return -1;
    }
    missing = cuda_resolve(library, functions, sizeof(functions) / sizeof(functions[0]), &table);
    if (!missing)
        missing = cuda_resolve(library, context_functions, sizeof(context_functions) / sizeof(context_functions[0]),
                               &context_table);
    if (!missing && !context_table.EventElapsedTime)
        missing = cuda_resolve(library, &elapsed_time, 1, &context_table);
    if (missing) {
        snprintf(why, why_size, "the driver has no %s: it is too old", missing);
        goto close_library;
    }

    /* cuInit() reads the variable. Eager loading would load all of cuBLASLt with its first kernel, 1.5 s on an H200.
     * Our own kernels are still loaded before their first launch, since loading takes the context's lock and waits
     * for the device. */
    setenv("CUDA_MODULE_LOADING", "LAZY", 0);
    r = table.Init(0);
    if (r != CUDA_SUCCESS) {
        const char *name = NULL;

        table.GetErrorName(r, &name);
        snprintf(why, why_size, "cuInit: %s", name ? name : "unknown error");
        goto close_library;
    }
    cuda = table;
    in_context = context_table;
    return 0;

close_library:
    dlclose(library);
    return -1;
}

CUresult cuda_driver_enter(CUcontext context)
{
    CUresult r;

    if (context && current == context)
        return CUDA_SUCCESS;
    r = cuda.CtxSetCurrent(context);
    current = r == CUDA_SUCCESS ? context : NULL;
    return r;
}

const struct cuda_context_driver *cuda_driver_in(CUcontext context)
{
    if (__builtin_expect(current != context, 0) && cuda_driver_enter(context) != CUDA_SUCCESS)
        cuda_driver_enter(NULL);
    return &in_context;
}

bool cuda_driver_has(size_t offset)
{
    void *symbol;

    memcpy(&symbol, (const char *)&in_context + offset, sizeof(symbol));
    return symbol != NULL;
}

const char *cuda_result_name(CUresult result)
{
    const char *name = NULL;

    if (cuda.GetErrorName(result, &name) != CUDA_SUCCESS || !name)
        return "an unknown CUDA error";
    return name;
}

bool cuda_result_is_sticky(CUresult result)
{
    switch (result) {
    case CUDA_ERROR_DEVICE_UNAVAILABLE:
    case CUDA_ERROR_ECC_UNCORRECTABLE:
    case CUDA_ERROR_NVLINK_UNCORRECTABLE:
    case 226: /* CUDA_ERROR_CONTAINED, missing in older cuda.h */
    case CUDA_ERROR_ILLEGAL_ADDRESS:
    case CUDA_ERROR_LAUNCH_TIMEOUT:
    case CUDA_ERROR_CONTEXT_IS_DESTROYED:
    case CUDA_ERROR_ASSERT:
    case CUDA_ERROR_HARDWARE_STACK_ERROR:
    case CUDA_ERROR_ILLEGAL_INSTRUCTION:
    case CUDA_ERROR_MISALIGNED_ADDRESS:
    case CUDA_ERROR_INVALID_ADDRESS_SPACE:
    case CUDA_ERROR_INVALID_PC:
    case CUDA_ERROR_LAUNCH_FAILED:
    case 721: /* CUDA_ERROR_TENSOR_MEMORY_LEAK */
    case CUDA_ERROR_MPS_CONNECTION_FAILED:
    case CUDA_ERROR_MPS_RPC_FAILURE:
    case CUDA_ERROR_MPS_CLIENT_TERMINATED:
    case CUDA_ERROR_EXTERNAL_DEVICE:
    case CUDA_ERROR_UNKNOWN:
        return true;
    default:
        return false;
    }
}

/* ---- CUPTI's library ---- */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* guards the variables below */
static const char *chosen;
static bool beside_named_driver;
static void *library;

/* Names for the loader, which searches LD_LIBRARY_PATH and the system's folders. */
static const char *const names[] = {"libcupti.so.13", "libcupti.so.12"};

/* Patterns for folders of toolkits, and of pip's package nvidia-cuda-cupti. Of the matches the last is the newest. */
static const char *const places[] = {
    "/usr/local/cuda*/extras/CUPTI/lib64/libcupti.so.1[23]",
    "/usr/local/cuda*/targets/*/lib/libcupti.so.1[23]",
    "/usr/local/cuda*/lib*/libcupti.so.1[23]",
    "/opt/cuda/extras/CUPTI/lib64/libcupti.so.1[23]",
    "/usr/lib/*-linux-gnu/libcupti.so.1[23]",
    "/usr/local/lib/python3*/*-packages/nvidia/*/lib/libcupti.so.1[23]",
    "/usr/lib/python3*/*-packages/nvidia/*/lib/libcupti.so.1[23]",
};

void cupti_choose(const char *setting, const char *driver)
{
    pthread_mutex_lock(&lock);
    chosen = setting;
    beside_named_driver = driver && !setting;
    pthread_mutex_unlock(&lock);
}

static void *load(const char *path, char *why, size_t why_size)
{
    void *found = dlopen(path, RTLD_NOW | RTLD_LOCAL);

    if (!found)
        snprintf(why, why_size, "%s", dlerror());
    return found;
}

static void *load_from_place(const char *place, char *why, size_t why_size)
{
    void *loaded = NULL;
    glob_t found;

    if (glob(place, 0, NULL, &found) != 0)
        return NULL;
    for (size_t i = found.gl_pathc; !loaded && i > 0; i--)
        loaded = load(found.gl_pathv[i - 1], why, why_size);
    globfree(&found);
    return loaded;
}

static void *load_usual(char *why, size_t why_size)
{
    char packaged[PATH_MAX];
    void *loaded = NULL;

    if (packages_find_library(names, sizeof(names) / sizeof(names[0]), packaged))
        loaded = load(packaged, why, why_size);
    for (size_t i = 0; !loaded && i < sizeof(names) / sizeof(names[0]); i++)
        loaded = load(names[i], why, why_size);
    if (!loaded)
        snprintf(why, why_size, "it is in no usual place");
    for (size_t i = 0; !loaded && i < sizeof(places) / sizeof(places[0]); i++)
        loaded = load_from_place(places[i], why, why_size);
    return loaded;
}

void *cupti_library(char *why, size_t why_size)
{
    void *loaded;

    pthread_mutex_lock(&lock);
    if (chosen && !strcmp(chosen, "off"))
        snprintf(why, why_size, "it is switched off by the daemon's setting executors.cupti");
    else if (beside_named_driver)
        snprintf(why, why_size, "the daemon's setting cuda.driver names a driver, and executors.cupti no CUPTI for it");
    else if (!library)
        library = chosen ? load(chosen, why, why_size) : load_usual(why, why_size);
    loaded = library;
    pthread_mutex_unlock(&lock);
    return loaded;
}
