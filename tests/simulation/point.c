/* What the compiler calls at every basic block of a build with KOPS_POINTS: libkops_simulation.so's function, where
 * that is preloaded. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <dlfcn.h>
#include <stdint.h>

void __sanitizer_cov_trace_pc(void);

static void (*at_point)(uintptr_t block);

__attribute__((constructor(101))) static void find(void)
{
    at_point = (void (*)(uintptr_t))(uintptr_t)dlsym(RTLD_DEFAULT, "kops_simulation_point");
}

void __sanitizer_cov_trace_pc(void)
{
    if (at_point)
        at_point((uintptr_t)__builtin_return_address(0));
}
