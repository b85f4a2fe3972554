/* Owns the cuBLASLt library: searches and loads it. */
#include "plan.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "blaslt.h"
#include "util/log.h"
#include "util/packages.h"

struct blaslt_api blaslt_api;

static struct blaslt_context_api in_context;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static const char *chosen_path;
static bool still_to_load;

/* Libraries of both versions have this interface. The loader's folders are searched first, then the toolkit's. */
static const char *const usual_names[] = {
    "libcublasLt.so.13", /* the bare names are searched in a Python package beside this program first */
    "libcublasLt.so.12", "/usr/local/cuda/lib64/libcublasLt.so.13", "/usr/local/cuda/lib64/libcublasLt.so.12", NULL,
};

static const struct cuda_symbol functions[] = {
#define X(Name) {"cublasLt" #Name, offsetof(struct blaslt_api, Name), false},
    BLASLT_FUNCTIONS(X)
#undef X
};

static const struct cuda_symbol context_functions[] = {
#define X(Name) {"cublasLt" #Name, offsetof(struct blaslt_context_api, Name), false},
    BLASLT_CONTEXT_FUNCTIONS(X)
#undef X
};

static int load_from(const char *path, char *why, size_t why_size)
{
    struct blaslt_api api = {.library = dlopen(path, RTLD_NOW | RTLD_LOCAL)};
    struct blaslt_context_api context_api;
    const char *missing;

    if (!api.library) {
        snprintf(why, why_size, "%s", dlerror());
        return -1;
    }
    missing = cuda_resolve(api.library, functions, sizeof(functions) / sizeof(functions[0]), &api);
    if (!missing)
        missing = cuda_resolve(api.library, context_functions, sizeof(context_functions) / sizeof(context_functions[0]),
                               &context_api);
    if (missing) {
        snprintf(why, why_size, "%s has no %s", path, missing);
        dlclose(api.library);
        return -1;
    }
    blaslt_api = api;
    in_context = context_api;
    return 0;
}

const struct blaslt_context_api *blaslt_on(const struct cuda_device *d)
{
    cuda_on(d);
    return &in_context;
}

static bool is_none(const char *path)
{
    return path && strcmp(path, "none") == 0;
}

static int load(const char *path, char *why, size_t why_size)
{
    char packaged[PATH_MAX];

    if (is_none(path)) {
        snprintf(why, why_size, "switched off");
        return -1;
    }
    if (path)
        return load_from(path, why, why_size);
    if (packages_find_library(usual_names, 2, packaged) && load_from(packaged, why, why_size) == 0)
        return 0;
    for (const char *const *name = usual_names; *name; name++)
        if (load_from(*name, why, why_size) == 0)
            return 0;
    return -1;
}

static bool load_chosen(void)
{
    char why[256], quoted[300];

    still_to_load = false;
    if (load(chosen_path, why, sizeof(why)) == 0)
        return true;
    log_debug("cublaslt_unavailable", "reason=%s", log_quote(quoted, sizeof(quoted), why, strlen(why)));
    return false;
}

bool blaslt_choose(const char *path, bool late)
{
    bool there;

    pthread_mutex_lock(&lock);
    blaslt_api.library = NULL;
    chosen_path = path;
    still_to_load = late && !is_none(path);
    there = still_to_load || load_chosen();
    pthread_mutex_unlock(&lock);
    return there;
}

int blaslt_ready(struct error *e)
{
    bool there;

    pthread_mutex_lock(&lock);
    there = still_to_load ? load_chosen() : blaslt_api.library != NULL;
    pthread_mutex_unlock(&lock);
    return there ? 0 : error_set(e, ERROR_UNSUPPORTED, "cuBLASLt cannot be loaded here; leave the variant out");
}

size_t blaslt_version(void)
{
    struct error ignored;

    return blaslt_ready(&ignored) == 0 ? blaslt_api.GetVersion() : 0;
}

int blaslt_fail(cublasStatus_t status, const char *call, struct error *e)
{
    const char *name = blaslt_api.GetStatusName(status);

    if (status == CUBLAS_STATUS_ALLOC_FAILED)
        error_set(e, ERROR_OUT_OF_MEMORY, "%s found too little memory", call);
    else if (status == CUBLAS_STATUS_NOT_SUPPORTED || status == CUBLAS_STATUS_ARCH_MISMATCH)
        error_set(e, ERROR_UNSUPPORTED, "cuBLASLt has no algorithm for this product here; leave the variant out");
    else
        error_set(e, ERROR_DEVICE_ERROR, "%s failed with %s", call, name);
    return error_detail_text(e, "driver", name);
}
