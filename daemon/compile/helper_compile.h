/* Compiles a source with NVRTC, in the process that was made for it.
 *
 * Thread: the process's only one. */
#ifndef KOPS_COMPILE_HELPER_COMPILE_H
#define KOPS_COMPILE_HELPER_COMPILE_H

#include "compile/compiler.h"
#include "compile/helper_wire.h"
#include "compile/toolkit.h"

struct helper_toolkit {
    struct nvrtc nvrtc;
    const char *includes[TOOLKIT_MAX_INCLUDES]; /* directories */
    const char *shown[TOOLKIT_MAX_INCLUDES];    /* their names in a log */
    unsigned n_includes;
    unsigned n_trees; /* the last folders are trees of the administrator's */
    uint64_t stamp;   /* the trees': with another one no source is compiled */
};

/* `compiled`, or else the failure and its log. */
struct helper_outcome {
    struct compiled *compiled; /* with one reference */
    struct frame_failure failure;
    char *log; /* malloc'ed; may be NULL */
    size_t log_length;
};

void helper_compile(const struct helper_toolkit *toolkit, const struct compile_input *input,
                    struct helper_outcome *ret_outcome);

/* Compiles a small kernel, so that one-time work is done. */
int helper_warm(const struct helper_toolkit *toolkit, struct error *e);

#endif
