/* The helper processes' program: `kopsd --compile-helper`.
 *
 * The first process, which the daemon starts, loads NVRTC, gives up its privileges, enters the sandbox, compiles a
 * small kernel, and then only forks. Each fork makes its own pages present, waits for one source, answers and ends. So
 * a source meets a warm compiler that no other source has touched. */
#ifndef KOPS_COMPILE_HELPER_H
#define KOPS_COMPILE_HELPER_H

#include <stdbool.h>

/* The first argument of a helper. */
#define HELPER_ARGUMENT "--compile-helper"

enum { HELPER_CONTROL_FD = 3 };

/* Tells whether main() was called for a helper. */
bool compile_helper_wanted(int argc, char **argv);

/* Runs the helper; returns the exit status. Call it before anything else in main(). */
int compile_helper_main(int argc, char **argv);

#endif
