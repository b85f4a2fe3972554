/* Finds and loads CUPTI. */
#include "cupti.h"

#include <dlfcn.h>
#include <glob.h>
#include <stdio.h>
#include <string.h>

/* The versions with these functions: where the loader looks (LD_LIBRARY_PATH, the system's folders), then in the
 * toolkits, the last version first, then in the packages of Python. */
static const char *const usual_names[] = {"libcupti.so.13", "libcupti.so.12"};
static const char *const usual_places[] = {
    "/usr/local/cuda/lib64/libcupti.so.1[23]",
    "/usr/local/cuda/extras/CUPTI/lib64/libcupti.so.1[23]",
    "/usr/local/cuda-1[23].*/lib64/libcupti.so.1[23]",
    "/usr/local/cuda-1[23].*/extras/CUPTI/lib64/libcupti.so.1[23]",
    "/opt/cuda/extras/CUPTI/lib64/libcupti.so.1[23]",
    "/usr/lib/python3*/*-packages/nvidia/*/lib/libcupti.so.1[23]",
    "/usr/local/lib/python3*/*-packages/nvidia/*/lib/libcupti.so.1[23]",
};

static int load_from(const char *path, struct cupti *ret, char *why, size_t why_size)
{
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL), *symbol;

    if (!library) {
        snprintf(why, why_size, "%s", dlerror());
        return -1;
    }
#define X(Name)                                                                                                        \
    symbol = dlsym(library, "cupti" #Name);                                                                            \
    if (!symbol)                                                                                                       \
        goto incomplete;                                                                                               \
    memcpy(&ret->Name, &symbol, sizeof(symbol));
    CUPTI_FUNCTIONS(X)
#undef X
    return 0;

incomplete:
    snprintf(why, why_size, "%s is too old", path);
    dlclose(library);
    return -1;
}

static int load_from_place(const char *pattern, struct cupti *ret, char *why, size_t why_size)
{
    glob_t found;
    int r = -1;

    if (glob(pattern, 0, NULL, &found) != 0)
        return -1;
    for (size_t i = found.gl_pathc; r < 0 && i-- > 0;)
        r = load_from(found.gl_pathv[i], ret, why, why_size);
    globfree(&found);
    return r;
}

int cupti_load(const char *path, struct cupti *ret, char *why, size_t why_size)
{
    if (path)
        return load_from(path, ret, why, why_size);
    for (size_t i = 0; i < sizeof(usual_names) / sizeof(usual_names[0]); i++)
        if (load_from(usual_names[i], ret, why, why_size) == 0)
            return 0;
    for (size_t i = 0; i < sizeof(usual_places) / sizeof(usual_places[0]); i++)
        if (load_from_place(usual_places[i], ret, why, why_size) == 0)
            return 0;
    return -1;
}
