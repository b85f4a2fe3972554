/* Clocks of the processors, as the system's cpufreq tells them. */
#ifndef KOPS_HOST_CPUFREQ_H
#define KOPS_HOST_CPUFREQ_H

#include "backend/conditions.h"

/* The fastest clock at this time of the processors that this process may use (busy ones are the fast ones; of many,
 * some are looked at), and the highest that one of them can have. `root`: /sys/devices/system/cpu. Thread: any. */
void cpufreq_conditions(const char *root, struct backend_conditions *ret);

#endif
