/* The machine's processor, as far as this process may use it. Thread: any; reads the kernel's files. */
#ifndef KOPS_HOST_CPU_H
#define KOPS_HOST_CPU_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "backend/conditions.h"

/* Instruction sets for which kernels are built, in ascending order. Builds for those in between would gain little. */
enum cpu_isa { CPU_GENERIC, CPU_AVX2, CPU_AVX512, CPU_ISAS };

bool cpu_has(enum cpu_isa isa);

/* Returns "avx512", "avx2", "x86-64", "aarch64", … */
const char *cpu_arch(void);

/* Writes the processor's model as the kernel names it. */
void cpu_name(char *into, size_t size);

/* Counts threads that can run at once: processors of the affinity mask, bounded by the cgroups' quota. At least 1. */
unsigned cpu_threads(void);

/* Returns the cgroups' quota, in processors, rounded up; 0: none. `memberships`: /proc/self/cgroup; `root`: where the
 * cgroup file systems are mounted. */
unsigned cpu_quota(const char *memberships, const char *root);

uint64_t cpu_memory_bytes(void);
/* Finds the bytes of memory that programs can take without swapping. Returns -1 if the kernel does not tell. */
int cpu_memory_free(uint64_t *ret_bytes);

/* Returns the bytes of the last-level cache. */
size_t cpu_cache_bytes(void);

/* Reads the present and the highest possible clock. Of the processors that this process may use, the fastest counts,
 * since busy ones are fast; of many processors, some are read. `root`: /sys/devices/system/cpu. Thread: any. */
void cpu_conditions(const char *root, struct backend_conditions *ret);

#endif
