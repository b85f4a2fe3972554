/* NVRTC and the headers of the toolkit: finding them, identifying them, and loading the library.
 *
 * Thread: any for the search, which reads whole directories, so not the loop once it runs; a helper process's only one
 * for the library. */
#ifndef KOPS_COMPILE_TOOLKIT_H
#define KOPS_COMPILE_TOOLKIT_H

#include <limits.h>
#include <stddef.h>
#include <stdint.h>

#include "compile/compiled.h"
#include "compile/compiler.h"
#include "util/error.h"

enum { TOOLKIT_MAX_INCLUDES = 16, TOOLKIT_MAX_TREES = 8, TOOLKIT_MAX_TREE_ENTRIES = 1 << 16 };

struct toolkit_place {
    char nvrtc[PATH_MAX];              /* "": there is no library */
    char name[COMPILED_COMPILER_SIZE]; /* "NVRTC 13.0" */
    char identity[192];                /* differs when library or headers differ */
    char includes[TOOLKIT_MAX_INCLUDES][PATH_MAX];
    unsigned n_includes;
    unsigned n_trees; /* the last folders: of kernels.include_extra, which an administrator has for all sources */
    uint64_t stamp;   /* the trees', see toolkit_stamp() */
};

/* Finds the toolkit. `nvrtc` and `include` as in compiler_config. Without a library the place is empty and `e` says
 * why. */
int toolkit_find(const char *nvrtc, const char *include, struct toolkit_place *ret_place, struct error *e);

/* Adds the trees of `extra`, folders with colons between them, to the headers and the identity. Refuses
 * (invalid_argument) trees that people other than root and the daemon's user could change: then they could change
 * others' kernels. */
int toolkit_add_trees(const char *extra, struct toolkit_place *place, struct error *e);

/* Returns a number that changes with any change of the trees, and is cheap to compute: from names, inodes, sizes and
 * times. */
uint64_t toolkit_stamp(const char *const *trees, unsigned n);

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
    NVRTC_INVALID_OPTION = 5,
    NVRTC_COMPILATION = 6,
    NVRTC_NO_BINARY = 1000, /* our own: compiled, but not to a cubin */
};

struct nvrtc {
    int major, minor;
#define X(name, parameters) int(*name) parameters;
    NVRTC_FUNCTIONS(X)
#undef X
};

/* Loads the library at `path`, and everything that it would load later, when files can no longer be opened. */
int nvrtc_open(struct nvrtc *n, const char *path, struct error *e);

/* Returns the readable form of a C++ symbol, or NULL; the caller frees it. */
char *nvrtc_demangle(const char *symbol);

/* Headers of the C and C++ libraries and of CUDA's runtime that sources include but a compiler for device code does not
 * have: just enough of each for kernels. Constant. */

/* The last `ret_n_fallback` ones are for toolkits that have no such file. */
const struct compile_file *headers_builtin(unsigned *ret_n, unsigned *ret_n_fallback);

#endif
