/* Conditions that a device's speed depends on at one time: clocks, temperature, power, and the reasons why the clocks
 * are not higher. */
#ifndef KOPS_BACKEND_CONDITIONS_H
#define KOPS_BACKEND_CONDITIONS_H

#include <stdint.h>

/* Reasons for a device's clocks: X(NAME, word on the wire), in the order of NVML's bits. */
#define CONDITION_REASONS(X)                                                                                           \
    X(IDLE, "idle")                                                                                                    \
    X(CLOCKS_SETTING, "clocks_setting")                                                                                \
    X(POWER_CAP, "power_cap")                                                                                          \
    X(HW_SLOWDOWN, "hw_slowdown")                                                                                      \
    X(SYNC_BOOST, "sync_boost")                                                                                        \
    X(THERMAL, "thermal")                                                                                              \
    X(HW_THERMAL, "hw_thermal")                                                                                        \
    X(POWER_BRAKE, "power_brake")                                                                                      \
    X(DISPLAY, "display")                                                                                              \
    X(OTHER, "other")

enum condition_reason {
#define X(NAME, word) CONDITION_##NAME,
    CONDITION_REASONS(X)
#undef X
        CONDITION_REASON_COUNT
};

extern const char *const condition_reason_names[CONDITION_REASON_COUNT];

/* Numbers are NAN where the device does not tell them. */
struct backend_conditions {
    char missing[160]; /* reason why nothing is known; "": something is known */
    /* Clocks of the multiprocessors, or of the host's fastest processor at this time. */
    double clock_mhz, clock_max_mhz;
    double memory_clock_mhz, memory_clock_max_mhz;
    double temperature_c, power_w, power_limit_w;
    /* Time that power or heat kept the clocks down, since the driver's start. */
    double power_slowed_us, thermal_slowed_us;
    uint32_t reasons; /* bits 1 << enum condition_reason */
};

/* Sets that nothing is known, for the reason `why` (printf-style). */
void conditions_miss(struct backend_conditions *c, const char *why, ...) __attribute__((format(printf, 2, 3)));

/* Sets every number to unknown, with no reason yet. */
void conditions_clear(struct backend_conditions *c);

/* ---- GPUs: NVML, the driver's library for monitoring ----
 *
 * NVML needs no context on a GPU, so the daemon itself asks it. libnvidia-ml is loaded at the first question; a machine
 * without it serves all the same.
 *
 * Thread: any; questions wait for each other, and may block as long as the driver does. */

struct backend_device;

/* Reads the conditions of the GPU with device->info.uuid; backend->conditions() of the backends for GPUs. */
void nvml_conditions(struct backend_device *device, struct backend_conditions *ret);

#endif
