#include "compile/nvrtc.h"

#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The library with the compiler's own headers stands beside it, and NVRTC asks for it by this name. */
static int open_builtins(const struct nvrtc *n, const char *path, struct error *e)
{
    const char *slash = strrchr(path, '/');
    char full[PATH_MAX];

    snprintf(full, sizeof(full), "%.*slibnvrtc-builtins.so.%d.%d", slash ? (int)(slash - path) + 1 : 0, path, n->major,
             n->minor);
    if (!dlopen(full, RTLD_NOW | RTLD_LOCAL))
        return error_set(e, ERROR_UNSUPPORTED, "NVRTC is not complete: %.200s", dlerror());
    return 0;
}

int nvrtc_open(struct nvrtc *n, const char *path, struct error *e)
{
    static const char *const names[] = {
#define X(name, parameters) "nvrtc" #name,
        NVRTC_FUNCTIONS(X)
#undef X
    };
    void **const slots[] = {
#define X(name, parameters) (void **)&n->name,
        NVRTC_FUNCTIONS(X)
#undef X
    };

    *n = (struct nvrtc){.library = dlopen(path, RTLD_NOW | RTLD_LOCAL)};
    if (!n->library)
        return error_set(e, ERROR_UNSUPPORTED, "NVRTC cannot be loaded: %.200s", dlerror());
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        *slots[i] = dlsym(n->library, names[i]);
        if (!*slots[i])
            return error_set(e, ERROR_UNSUPPORTED, "%.150s is too old: it has no %s (kernels.nvrtc)", path, names[i]);
    }
    if (n->Version(&n->major, &n->minor) != NVRTC_SUCCESS)
        return error_set(e, ERROR_UNSUPPORTED, "%.150s does not tell its version", path);
    return open_builtins(n, path, e);
}

char *nvrtc_demangle(const char *symbol)
{
    /* NVRTC's libraries bring the C++ library along. */
    void *library = dlopen("libstdc++.so.6", RTLD_LAZY | RTLD_NOLOAD);
    char *(*demangle)(const char *, char *, size_t *, int *);
    int status;

    if (!library)
        return NULL;
    *(void **)&demangle = dlsym(library, "__cxa_demangle");
    return demangle ? demangle(symbol, NULL, NULL, &status) : NULL;
}
