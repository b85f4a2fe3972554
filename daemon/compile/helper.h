/* The helper processes' program: `kopsd --compile-helper`.
 *
 * The first process, which the daemon starts, loads NVRTC, gives up its privileges, enters the sandbox, compiles a
 * small kernel, and then only forks. Each fork makes its own pages present, waits for one source, answers and ends. So
 * a source meets a warm compiler that no other source has touched. */
#ifndef KOPS_COMPILE_HELPER_H
#define KOPS_COMPILE_HELPER_H

#include <stdbool.h>

#include "compile/compiler.h"
#include "compile/helper_wire.h"
#include "compile/toolkit.h"

/* The first argument of a helper. */
#define HELPER_ARGUMENT "--compile-helper"

enum { HELPER_CONTROL_FD = 3 };

/* Tells whether main() was called for a helper. */
bool compile_helper_wanted(int argc, char **argv);

/* Runs the helper; returns the exit status. Call it before anything else in main(). */
int compile_helper_main(int argc, char **argv);

/* ---- compiling a source with NVRTC, in the process that was made for it ---- */

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
