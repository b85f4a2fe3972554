#include "cpu.h"

#include <limits.h>
#include <math.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#ifdef __x86_64__
#include <cpuid.h>

/* Answers of cpuid, since __builtin_cpu_supports() differs between compilers, and with one it always says no. */
struct features {
    unsigned basic;     /* ECX of leaf 1 */
    unsigned extended;  /* EBX of leaf 7 */
    unsigned registers; /* lower half of XCR0: the registers that the system saves for threads */
};

static struct features ask(void)
{
    struct features f = {0};
    unsigned a, b, c, d;

    if (__get_cpuid(1, &a, &b, &c, &d))
        f.basic = c;
    if (__get_cpuid_count(7, 0, &a, &b, &c, &d))
        f.extended = b;
    if (f.basic & bit_OSXSAVE)
        __asm__("xgetbv" : "=a"(f.registers), "=d"(d) : "c"(0));
    return f;
}

static bool has_all(unsigned features, unsigned wanted)
{
    return (features & wanted) == wanted;
}

static bool detect(enum cpu_isa isa, const struct features *f)
{
    enum { YMM = 0x6, ZMM = 0xe6 }; /* registers of SSE and AVX; of AVX-512, too */

    switch (isa) {
    case CPU_AVX512:
        if (!has_all(f->registers, ZMM) ||
            !has_all(f->extended, bit_AVX512F | bit_AVX512BW | bit_AVX512CD | bit_AVX512DQ | bit_AVX512VL))
            return false;
        /* fall through */
    case CPU_AVX2:
        return has_all(f->registers, YMM) && has_all(f->basic, bit_AVX | bit_FMA | bit_F16C) &&
               has_all(f->extended, bit_AVX2 | bit_BMI2);
    default:
        return true;
    }
}

static bool supported[CPU_ISAS];

static void detect_all(void)
{
    const struct features f = ask();

    for (int isa = CPU_GENERIC; isa < CPU_ISAS; isa++)
        supported[isa] = detect((enum cpu_isa)isa, &f);
}

static pthread_once_t once = PTHREAD_ONCE_INIT;

/* Runs cpuid once, since each takes microseconds in a virtual machine, where it calls the hypervisor. */
bool cpu_has(enum cpu_isa isa)
{
    pthread_once(&once, detect_all);
    return supported[isa];
}

const char *cpu_arch(void)
{
    return cpu_has(CPU_AVX512) ? "avx512" : cpu_has(CPU_AVX2) ? "avx2" : "x86-64";
}

#else

bool cpu_has(enum cpu_isa isa)
{
    return isa == CPU_GENERIC;
}

const char *cpu_arch(void)
{
#ifdef __aarch64__
    return "aarch64";
#else
    return "generic";
#endif
}

#endif

void cpu_name(char *into, size_t size)
{
    FILE *f = fopen("/proc/cpuinfo", "re");
    char line[512];

    snprintf(into, size, "%s processor", cpu_arch());
    if (!f)
        return;
    while (fgets(line, sizeof(line), f)) {
        char *value = strchr(line, ':');

        if (strncmp(line, "model name", 10) || !value)
            continue;
        value += strspn(value, ": \t");
        value[strcspn(value, "\n")] = '\0';
        snprintf(into, size, "%s", value);
        break;
    }
    fclose(f);
}

/* Reads up to two numbers from a file; "max" and missing numbers become -1. */
static void read_numbers(const char *path, long long into[2])
{
    FILE *f = fopen(path, "re");
    char text[64] = "", *second;

    into[0] = into[1] = -1;
    if (!f)
        return;
    if (fgets(text, sizeof(text), f)) {
        into[0] = strncmp(text, "max", 3) ? strtoll(text, NULL, 10) : -1;
        second = strchr(text, ' ');
        if (second)
            into[1] = strtoll(second, NULL, 10);
    }
    fclose(f);
}

/* Returns the quota of a cgroup folder, in processors, rounded up; 0: none. */
static unsigned folder_quota(const char *folder, bool unified)
{
    char path[PATH_MAX + 32];
    long long quota[2];

    snprintf(path, sizeof(path), "%s/%s", folder, unified ? "cpu.max" : "cpu.cfs_quota_us");
    read_numbers(path, quota);
    if (!unified) {
        long long period[2];

        snprintf(path, sizeof(path), "%s/cpu.cfs_period_us", folder);
        read_numbers(path, period);
        quota[1] = period[0];
    }
    if (quota[0] <= 0 || quota[1] <= 0)
        return 0;
    return (unsigned)((quota[0] + quota[1] - 1) / quota[1]);
}

/* Returns the smallest quota of the folders from `path` up to the mount point. In a container the first of them may not
 * exist below the mount. */
static unsigned branch_quota(const char *mount, const char *path, bool unified)
{
    unsigned least = 0;
    char folder[PATH_MAX];
    size_t end = strlen(mount);

    snprintf(folder, sizeof(folder), "%s%s", mount, path);
    for (;;) {
        unsigned quota = folder_quota(folder, unified);
        char *slash;

        if (quota && (!least || quota < least))
            least = quota;
        if (strlen(folder) <= end)
            return least;
        slash = strrchr(folder, '/');
        *(slash && slash >= folder + end ? slash : folder + end) = '\0';
    }
}

unsigned cpu_quota(const char *memberships, const char *root)
{
    FILE *f = fopen(memberships, "re");
    char line[PATH_MAX];
    unsigned least = 0;

    if (!f)
        return 0;
    while (fgets(line, sizeof(line), f)) { /* hierarchy:controllers:path */
        char *controllers = strchr(line, ':'), *path = controllers ? strchr(controllers + 1, ':') : NULL;
        const char *mounts[2] = {NULL, NULL};
        bool unified;

        if (!path)
            continue;
        controllers++;
        *path++ = '\0';
        path[strcspn(path, "\n")] = '\0';
        unified = *controllers == '\0';
        if (unified) {
            mounts[0] = "";
            mounts[1] = "/unified";
        } else if (!strcmp(controllers, "cpu") || !strncmp(controllers, "cpu,", 4) || strstr(controllers, ",cpu,") ||
                   (strlen(controllers) > 4 && !strcmp(controllers + strlen(controllers) - 4, ",cpu"))) {
            mounts[0] = "/cpu";
            mounts[1] = "/cpu,cpuacct";
        }
        for (unsigned i = 0; i < 2 && mounts[i]; i++) {
            char mount[PATH_MAX / 2];
            unsigned quota;

            snprintf(mount, sizeof(mount), "%s%s", root, mounts[i]);
            quota = branch_quota(mount, path, unified);
            if (quota && (!least || quota < least))
                least = quota;
        }
    }
    fclose(f);
    return least;
}

unsigned cpu_threads(void)
{
    unsigned threads = 0, quota;

    for (int cpus = 1024; cpus <= 1 << 16 && !threads; cpus *= 4) { /* the kernel refuses masks that are too small */
        cpu_set_t *set = CPU_ALLOC(cpus);

        if (!set)
            break;
        if (sched_getaffinity(0, CPU_ALLOC_SIZE(cpus), set) == 0)
            threads = (unsigned)CPU_COUNT_S(CPU_ALLOC_SIZE(cpus), set);
        CPU_FREE(set);
    }
    if (!threads)
        threads = 1;
    quota = cpu_quota("/proc/self/cgroup", "/sys/fs/cgroup");
    return quota && quota < threads ? quota : threads;
}

uint64_t cpu_memory_bytes(void)
{
    return (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);
}

int cpu_memory_free(uint64_t *ret_bytes)
{
    FILE *f = fopen("/proc/meminfo", "re");
    unsigned long long kib;
    char line[128];
    int found = -1;

    if (!f)
        return -1;
    while (found < 0 && fgets(line, sizeof(line), f))
        if (sscanf(line, "MemAvailable: %llu kB", &kib) == 1) {
            *ret_bytes = kib * UINT64_C(1024);
            found = 0;
        }
    fclose(f);
    return found;
}

size_t cpu_cache_bytes(void)
{
    long l3 = -1, l2 = -1;

#ifdef _SC_LEVEL3_CACHE_SIZE
    l3 = sysconf(_SC_LEVEL3_CACHE_SIZE);
    l2 = sysconf(_SC_LEVEL2_CACHE_SIZE);
#endif
    return l3 > 0 ? (size_t)l3 : l2 > 0 ? (size_t)l2 : (size_t)8 << 20;
}

/* ---- clocks ---- */

enum { LOOKED_AT = 64 /* most processors to ask, since asking wakes them */ };

/* Reads a file in kHz and returns MHz; NAN: there is no such file. */
static double read_mhz(const char *root, int cpu, const char *name)
{
    unsigned long long khz;
    double mhz = (double)NAN;
    char path[512];
    FILE *file;

    snprintf(path, sizeof(path), "%s/cpu%d/cpufreq/%s", root, cpu, name);
    file = fopen(path, "re");
    if (!file)
        return mhz;
    if (fscanf(file, "%llu", &khz) == 1)
        mhz = (double)khz * 1e-3;
    fclose(file);
    return mhz;
}

void cpu_conditions(const char *root, struct backend_conditions *ret)
{
    cpu_set_t usable;
    int step;

    conditions_clear(ret);
    if (sched_getaffinity(0, sizeof(usable), &usable) < 0 || !CPU_COUNT(&usable)) {
        conditions_miss(ret, "the system does not tell which processors may be used");
        return;
    }
    step = (CPU_COUNT(&usable) + LOOKED_AT - 1) / LOOKED_AT;
    for (int cpu = 0, n = 0; cpu < CPU_SETSIZE; cpu++) {
        if (!CPU_ISSET(cpu, &usable) || n++ % step)
            continue;
        ret->clock_mhz = fmax(ret->clock_mhz, read_mhz(root, cpu, "scaling_cur_freq"));
        ret->clock_max_mhz = fmax(ret->clock_max_mhz, read_mhz(root, cpu, "cpuinfo_max_freq"));
    }
    if (isnan(ret->clock_mhz))
        conditions_miss(ret, "no cpufreq in %s (virtual machines often have none)", root);
}
