/* The helper processes' program: `kopsd --compile-helper`.
 *
 * The first process, which the daemon starts, loads NVRTC, gives up its privileges, enters the sandbox, compiles a
 * small kernel, and then only forks. Each fork makes its own pages present, waits for one source, answers and ends. So
 * a source meets a warm compiler that no other source has touched. */
#ifndef KOPS_COMPILE_HELPER_H
#define KOPS_COMPILE_HELPER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "compile/compiler.h"
#include "compile/helper_wire.h"
#include "compile/toolkit.h"
#include "util/error.h"

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

/* ---- the sandbox of a helper process: before it reads a source it gives up privileges, files, and most system calls.
 * Nothing here can be undone. ---- */

/* Tells whether this kernel supports the sandbox. Changes nothing; any thread, any process. */
bool sandbox_available(struct error *e);

/* Drops privileges: no new ones, not dumpable, dies with its parent; for root: another user. Call it before libraries
 * are loaded. `parent`: the process that must still be there. */
int sandbox_drop_privileges(const char *user, int parent, struct error *e);

/* Allows only files below the directories, read only, and no connection by name or address. */
int sandbox_enter_landlock(const char *const *directories, unsigned n, struct error *e);

/* Allows only the system calls that a compile needs; for the helper that forks (`forks`) also those for forking. Other
 * calls fail with EPERM. */
int sandbox_enter_seccomp(bool forks, struct error *e);

/* Returns a process's address space now. `statm`: a descriptor of /proc/self/statm, which describes the process that
 * opened it. 0: gone. */
uint64_t sandbox_address_space(int statm);

struct sandbox_limits {
    uint64_t memory_bytes; /* address space, in all */
    unsigned cpu_s;        /* more than used so far */
    unsigned files;        /* open at one time */
};

/* Sets soft and hard limits; no core dumps, no file may grow. */
int sandbox_limit(const struct sandbox_limits *limits, struct error *e);

#endif
