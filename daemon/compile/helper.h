/* The program of the helper processes: `kopsd --compile-helper`.
 *
 * A first process, started by the daemon, loads NVRTC, gives up its privileges, enters the sandbox, compiles a small
 * kernel, and then only forks: each fork makes its own pages present, waits for one source, answers and
 * ends. So a source meets a warm compiler, and never one that another source has touched. */
#ifndef KOPS_COMPILE_HELPER_H
#define KOPS_COMPILE_HELPER_H

#include <stdbool.h>
#include <stdint.h>

#include "compile/compiler.h"
#include "compile/helper_compile.h"

/* The first argument of a helper. */
#define HELPER_ARGUMENT "--compile-helper"

enum { HELPER_CONTROL_FD = 3, HELPER_SOCKET_FD = 4 /* of a process that compiles */ };

/* From the arguments "key=value" behind the first. */
struct helper_settings {
    const char *nvrtc, *user;
    struct helper_toolkit toolkit;
    enum compiler_sandbox sandbox;
    unsigned memory_mib, time_s, processes;
    int parent; /* process id of the daemon */
    bool alone; /* for tests: behave as if forking were unsafe */
};

int helper_settings_parse(int argc, char **argv, struct helper_settings *ret_settings);

/* Whether main() was called for a helper. */
bool compile_helper_wanted(int argc, char **argv);

/* Runs the helper; returns the status to end with. To be called before anything else in main(). */
int compile_helper_main(int argc, char **argv);

/* The part of a process that compiles, with its socket as HELPER_SOCKET_FD: does not return. `space`: its address space
 * now. `hurry`: a source waits already, so that warming up would only delay it. */
void helper_serve_one(const struct helper_settings *settings, uint64_t space, bool hurry) __attribute__((noreturn));

#endif
