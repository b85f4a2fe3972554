#include "cpufreq.h"

#include <math.h>
#include <sched.h>
#include <stdio.h>

enum { LOOKED_AT = 64 /* processors: the system asks each of them, which wakes it */ };

/* A file with a number of kHz, in MHz; NAN: there is none. */
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

void cpufreq_conditions(const char *root, struct backend_conditions *ret)
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
