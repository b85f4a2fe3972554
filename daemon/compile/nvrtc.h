/* NVRTC, loaded at run time; only ever in a helper process.
 *
 * Thread: the process's only one. */
#ifndef KOPS_COMPILE_NVRTC_H
#define KOPS_COMPILE_NVRTC_H

#include <stddef.h>

#include "util/error.h"

/* The functions used, as nvrtc.h declares them: X(name, (parameters)). All return a result code. */
#define NVRTC_FUNCTIONS(X)                                                                                             \
    X(Version, (int *major, int *minor))                                                                               \
    X(CreateProgram, (void **program, const char *source, const char *name, int n_headers, const char *const *texts,   \
                      const char *const *names))                                                                       \
    X(DestroyProgram, (void **program))                                                                                \
    X(CompileProgram, (void *program, int n_options, const char *const *options))                                      \
    X(AddNameExpression, (void *program, const char *expression))                                                      \
    X(GetLoweredName, (void *program, const char *expression, const char **lowered))                                   \
    X(GetCUBINSize, (void *program, size_t *size))                                                                     \
    X(GetCUBIN, (void *program, char *cubin))                                                                          \
    X(GetProgramLogSize, (void *program, size_t *size))                                                                \
    X(GetProgramLog, (void *program, char *log))

enum nvrtc_result {
    NVRTC_SUCCESS = 0,
    NVRTC_OUT_OF_MEMORY = 1,
    NVRTC_INVALID_INPUT = 3,
    NVRTC_INVALID_OPTION = 5,
    NVRTC_COMPILATION = 6,
    NVRTC_NO_BINARY = 1000, /* our own: compiled, but not to a cubin */
};

struct nvrtc {
    void *library;
    int major, minor;
#define X(name, parameters) int(*name) parameters;
    NVRTC_FUNCTIONS(X)
#undef X
};

/* Loads the library at `path` and all that it would load later, when files can no longer be opened. It stays loaded. */
int nvrtc_open(struct nvrtc *n, const char *path, struct error *e);

/* The readable form of a C++ symbol, or NULL; the caller frees it. */
char *nvrtc_demangle(const char *symbol);

#endif
