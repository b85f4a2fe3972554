/* Resolves the range profiler's functions, and explains its errors. */
#include "profiler.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "driver/cupti_library.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* guards the variables below */
static bool resolved;
static struct cupti_profiling functions;

const struct cupti_profiling *cupti_get(struct error *e)
{
    static const struct cuda_symbol wanted[] = {
#define X(field, symbol, type) {#symbol, offsetof(struct cupti_profiling, field), false},
        CUPTI_PROFILER_FUNCTIONS(X)
#undef X
    };
    const char *missing = NULL;
    char why[200] = "";
    void *library;
    bool found;

    pthread_mutex_lock(&lock);
    library = cupti_library(why, sizeof(why));
    if (library && !resolved) {
        missing = cuda_resolve(library, wanted, sizeof(wanted) / sizeof(wanted[0]), &functions);
        resolved = !missing;
    }
    found = resolved;
    pthread_mutex_unlock(&lock);
    if (found)
        return &functions;
    if (missing)
        snprintf(why, sizeof(why), "it has no %s, and is older than CUDA 12.6", missing);
    error_set(e, ERROR_UNSUPPORTED,
              "counters need CUPTI, and cannot have it: %s. It comes with the toolkit (cuda-cupti) and with pip "
              "(nvidia-cuda-cupti); where it is in no usual place, executors.cupti names libcupti.so",
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
            "counters are the administrator's here (RmProfilingAdminOnly is 1), who can load the module nvidia "
            "with NVreg_RestrictProfilingToAdminUsers=0, or set executors.counters_privileged; where that is set, "
            "event=counters_privilege in the log says what is missing");
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
