/* CUPTI's range profiler, which reads hardware counters around kernels, loaded at run time. The structs are those of
 * CUDA 12.6; each states its size, so later versions accept them. */
#ifndef KOPS_CUDA_PROFILER_H
#define KOPS_CUDA_PROFILER_H

#include <stddef.h>
#include <stdint.h>

#include "driver/device.h"

/* Results that become specific errors; 0 is success. */
enum {
    CUPTI_OUT_OF_MEMORY = 8,
    CUPTI_NOT_COMPATIBLE = 14,
    CUPTI_HARDWARE_BUSY = 26,
    CUPTI_INSUFFICIENT_PRIVILEGES = 35,
    CUPTI_MULTIPLE_SUBSCRIBERS = 39,
    CUPTI_VIRTUAL_INSUFFICIENT_PRIVILEGES = 40,
};

enum { CUPTI_RANGE_PROFILER = 0, CUPTI_AUTO_RANGE = 1, CUPTI_USER_REPLAY = 3 };

#define CUPTI_HEAD                                                                                                     \
    size_t size;                                                                                                       \
    void *none

/* Each call takes one struct, which begins with its size up to the last member, and a null pointer. */
struct cupti_initialize {
    CUPTI_HEAD;
};

struct cupti_chip_name {
    CUPTI_HEAD;
    size_t device;
    const char *name; /* out */
};

struct cupti_availability {
    CUPTI_HEAD;
    CUcontext context;
    size_t image_size; /* in and out */
    uint8_t *image;    /* NULL asks for the size */
};

struct cupti_host_initialize {
    CUPTI_HEAD;
    int profiler;
    const char *chip;
    const uint8_t *availability;
    void *host; /* out */
};

struct cupti_metric_properties {
    CUPTI_HEAD;
    void *host;
    const char *metric;
    const char *description, *unit, *dimension; /* out */
    int type;                                   /* out */
};

struct cupti_add_metrics {
    CUPTI_HEAD;
    void *host;
    const char **metrics;
    size_t n;
};

struct cupti_config_size {
    CUPTI_HEAD;
    void *host;
    size_t image_size; /* out */
};

struct cupti_config {
    CUPTI_HEAD;
    void *host;
    size_t image_size;
    uint8_t *image;
};

struct cupti_evaluate {
    CUPTI_HEAD;
    void *host;
    const uint8_t *counters;
    size_t counters_size, range;
    const char **metrics;
    size_t n;
    double *values; /* out: room for n */
};

struct cupti_enable {
    CUPTI_HEAD;
    CUcontext context;
    void *profiler; /* out */
};

/* The parameters of Disable, Start, … */
struct cupti_profiler {
    CUPTI_HEAD;
    void *profiler;
};

struct cupti_stop {
    CUPTI_HEAD;
    void *profiler;
    size_t pass, level; /* out */
    uint8_t all;        /* out: the last pass has been submitted */
};

struct cupti_decode {
    CUPTI_HEAD;
    void *profiler;
    size_t dropped; /* out */
};

struct cupti_counters_size {
    CUPTI_HEAD;
    void *profiler;
    const char **metrics;
    size_t n, ranges;
    uint32_t nodes;
    size_t counters_size; /* out */
};

struct cupti_counters_initialize {
    CUPTI_HEAD;
    void *profiler;
    size_t counters_size;
    uint8_t *counters;
};

struct cupti_set_config {
    CUPTI_HEAD;
    void *profiler;
    size_t config_size;
    const uint8_t *config;
    size_t counters_size;
    uint8_t *counters;
    int range, replay;
    size_t ranges_a_pass;
    uint16_t levels, first_level;
    size_t pass;
    uint16_t level;
};

struct cupti_counters_info {
    CUPTI_HEAD;
    const uint8_t *counters;
    size_t counters_size;
    size_t ranges; /* out */
};

/* The size that a struct states: up to its last member, without padding. */
#define CUPTI_SIZE(type, last) (offsetof(struct type, last) + sizeof(((struct type *)0)->last))

/* X(field, symbol, struct) */
#define CUPTI_PROFILER_FUNCTIONS(X)                                                                                    \
    X(initialize, cuptiProfilerInitialize, cupti_initialize)                                                           \
    X(chip_name, cuptiDeviceGetChipName, cupti_chip_name)                                                              \
    X(availability, cuptiProfilerGetCounterAvailability, cupti_availability)                                           \
    X(host_initialize, cuptiProfilerHostInitialize, cupti_host_initialize)                                             \
    X(metric_properties, cuptiProfilerHostGetMetricProperties, cupti_metric_properties)                                \
    X(add_metrics, cuptiProfilerHostConfigAddMetrics, cupti_add_metrics)                                               \
    X(config_size, cuptiProfilerHostGetConfigImageSize, cupti_config_size)                                             \
    X(config, cuptiProfilerHostGetConfigImage, cupti_config)                                                           \
    X(evaluate, cuptiProfilerHostEvaluateToGpuValues, cupti_evaluate)                                                  \
    X(enable, cuptiRangeProfilerEnable, cupti_enable)                                                                  \
    X(disable, cuptiRangeProfilerDisable, cupti_profiler)                                                              \
    X(set_config, cuptiRangeProfilerSetConfig, cupti_set_config)                                                       \
    X(start, cuptiRangeProfilerStart, cupti_profiler)                                                                  \
    X(stop, cuptiRangeProfilerStop, cupti_stop)                                                                        \
    X(decode, cuptiRangeProfilerDecodeData, cupti_decode)                                                              \
    X(counters_size, cuptiRangeProfilerGetCounterDataSize, cupti_counters_size)                                        \
    X(counters_initialize, cuptiRangeProfilerCounterDataImageInitialize, cupti_counters_initialize)                    \
    X(counters_info, cuptiRangeProfilerGetCounterDataInfo, cupti_counters_info)

struct cupti_profiling {
#define X(field, symbol, type) int (*field)(struct type *);
    CUPTI_PROFILER_FUNCTIONS(X)
#undef X
};

/* Returns the library's functions, loaded by the first call. NULL: *e says what is missing. Thread: any. */
const struct cupti_profiling *cupti_get(struct error *e);

#endif
