/* Owns the cuBLASLt library. */
#include "library.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#include "blaslt.h"

struct blaslt_api blaslt_api;

static struct blaslt_context_api in_context;

/* The versions with this interface: where the loader looks (LD_LIBRARY_PATH, the system's folders), then in the
 * toolkit's folder. */
static const char *const usual_names[] = {
    "libcublasLt.so.13",
    "libcublasLt.so.12",
    "/usr/local/cuda/lib64/libcublasLt.so.13",
    "/usr/local/cuda/lib64/libcublasLt.so.12",
    NULL,
};

struct function {
    const char *symbol;
    size_t offset;
};

static const struct function functions[] = {
#define X(Name) {"cublasLt" #Name, offsetof(struct blaslt_api, Name)},
    BLASLT_FUNCTIONS(X)
#undef X
};

static const struct function context_functions[] = {
#define X(Name) {"cublasLt" #Name, offsetof(struct blaslt_context_api, Name)},
    BLASLT_CONTEXT_FUNCTIONS(X)
#undef X
};

/* The symbol that the library does not have, or NULL. */
static const char *resolve(void *library, const struct function *wanted, size_t n, void *table)
{
    for (size_t i = 0; i < n; i++) {
        void *symbol = dlsym(library, wanted[i].symbol);

        if (!symbol)
            return wanted[i].symbol;
        memcpy((char *)table + wanted[i].offset, &symbol, sizeof(symbol));
    }
    return NULL;
}

static int load_from(const char *path, char *why, size_t why_size)
{
    struct blaslt_api api = {.library = dlopen(path, RTLD_NOW | RTLD_LOCAL)};
    struct blaslt_context_api context_api;
    const char *missing;

    if (!api.library) {
        snprintf(why, why_size, "%s", dlerror());
        return -1;
    }
    missing = resolve(api.library, functions, sizeof(functions) / sizeof(functions[0]), &api);
    if (!missing)
        missing = resolve(api.library, context_functions, sizeof(context_functions) / sizeof(context_functions[0]),
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

int blaslt_load(const char *path, char *why, size_t why_size)
{
    blaslt_api.library = NULL;
    if (path && strcmp(path, "none") == 0) {
        snprintf(why, why_size, "switched off");
        return -1;
    }
    if (path)
        return load_from(path, why, why_size);
    for (const char *const *name = usual_names; *name; name++)
        if (load_from(*name, why, why_size) == 0)
            return 0;
    return -1;
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
