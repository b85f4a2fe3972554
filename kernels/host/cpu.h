/* The machine's processor, as far as this process may use it. Thread: any; plain reads of the kernel's files. */
#ifndef KOPS_HOST_CPU_H
#define KOPS_HOST_CPU_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "backend/conditions.h"

/* Instruction sets that kernels are built for, in ascending order; those between them are not worth a build. */
enum cpu_isa { CPU_GENERIC, CPU_AVX2, CPU_AVX512, CPU_ISAS };

bool cpu_has(enum cpu_isa isa);

/* "avx512", "avx2", "x86-64", "aarch64", … */
const char *cpu_arch(void);

/* The processor's model as the kernel names it. */
void cpu_name(char *into, size_t size);

/* Threads that can run at once: the affinity mask, cut down by the processor quota of the cgroups. At least 1. */
unsigned cpu_threads(void);

/* The quota alone, in whole processors, rounded up; 0: none. `memberships` is /proc/self/cgroup, `root` where the
 * cgroup file systems are mounted. */
unsigned cpu_quota(const char *memberships, const char *root);

uint64_t cpu_memory_bytes(void);
/* Bytes of memory that programs may take without swapping. -1: the kernel does not say. */
int cpu_memory_free(uint64_t *ret_bytes);

/* Bytes of the last cache before memory. */
size_t cpu_cache_bytes(void);

/* The fastest clock at this time of the processors that this process may use (busy ones are the fast ones; of many,
 * some are looked at), and the highest that one of them can have. `root`: /sys/devices/system/cpu. Thread: any. */
void cpu_conditions(const char *root, struct backend_conditions *ret);

#endif
