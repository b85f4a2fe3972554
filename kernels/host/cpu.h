/* The machine's processor, as far as this process may use it. Thread: any; plain reads of the kernel's files. */
#ifndef KOPS_HOST_CPU_H
#define KOPS_HOST_CPU_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Instruction sets that kernels are built for, in ascending order; those between them are not worth a build. */
enum cpu_isa { CPU_GENERIC, CPU_AVX2, CPU_AVX512, CPU_ISAS };

bool cpu_has(enum cpu_isa isa);

/* AVX-512's products of bf16 pairs (AVX512_BF16). */
bool cpu_has_bf16(void);

/* AMX's products of bf16 matrices (AMX-BF16), and the system lets this process use them. The first cpu_has*() asks it
 * to, for all threads. */
bool cpu_has_amx(void);

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

#endif
