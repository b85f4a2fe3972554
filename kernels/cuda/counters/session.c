/* Drives CUPTI's range profiler. */
#include "session.h"

#include <dlfcn.h>
#include <math.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "driver/driver.h"
#include "profiler.h"

/* ---- the range profiler's functions and errors ---- */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* guards the variables below */
static bool resolved;
static struct cupti_profiling functions;

const struct cupti_profiling *cupti_get(struct error *e)
{
    static const struct cuda_symbol wanted[] = {
#define X(field, symbol, type) {#symbol, offsetof(struct cupti_profiling, field), false},
        CUPTI_PROFILER_FUNCTIONS(X)
#undef X
    };
    const char *missing = NULL;
    char why[200] = "";
    void *library;
    bool found;

    pthread_mutex_lock(&lock);
    library = cupti_library(why, sizeof(why));
    if (library && !resolved) {
        missing = cuda_resolve(library, wanted, sizeof(wanted) / sizeof(wanted[0]), &functions);
        resolved = !missing;
    }
    found = resolved;
    pthread_mutex_unlock(&lock);
    if (found)
        return &functions;
    if (missing)
        snprintf(why, sizeof(why), "it has no %s, and is older than CUDA 12.6", missing);
    error_set(e, ERROR_UNSUPPORTED,
              "counters need CUPTI, and cannot have it: %s. It comes with the toolkit (cuda-cupti) and with pip "
              "(nvidia-cuda-cupti); where it is in no usual place, executors.cupti names libcupti.so",
              why);
    return NULL;
}

/* ---- errors ---- */

static int cupti_fail(int result, const char *call, struct error *e)
{
    switch (result) {
    case CUPTI_INSUFFICIENT_PRIVILEGES:
    case CUPTI_VIRTUAL_INSUFFICIENT_PRIVILEGES:
        error_set(
            e, ERROR_PERMISSION_DENIED,
            "counters are the administrator's here (RmProfilingAdminOnly is 1), who can load the module nvidia "
            "with NVreg_RestrictProfilingToAdminUsers=0, or set executors.counters_privileged; where that is set, "
            "event=counters_privilege in the log says what is missing");
        break;
    case CUPTI_HARDWARE_BUSY:
        error_set(e, ERROR_DEVICE_ERROR,
                  "another profiler has the GPU's counters: stop it, or pause it (dcgmi profile --pause for DCGM), and "
                  "try again");
        break;
    case CUPTI_MULTIPLE_SUBSCRIBERS:
        error_set(e, ERROR_UNSUPPORTED,
                  "another tool watches the daemon's processes through CUPTI: start the daemon without it");
        break;
    case CUPTI_NOT_COMPATIBLE:
        error_set(e, ERROR_UNSUPPORTED,
                  "CUPTI does not fit the GPU's driver: name one of the driver's CUDA version in executors.cupti");
        break;
    case CUPTI_OUT_OF_MEMORY:
        error_set(e, ERROR_OUT_OF_MEMORY, "CUPTI has too little memory: use smaller tensors");
        break;
    default:
        error_set(e, ERROR_DEVICE_ERROR, "%s failed with CUPTI's result %d", call, result);
        break;
    }
    return error_detail_number(e, "cupti", result);
}

/* ---- metrics ---- */

#define OF_PEAK_ELAPSED ".avg.pct_of_peak_sustained_elapsed"
#define OF_PEAK_ACTIVE  ".avg.pct_of_peak_sustained_active"

static const struct cuda_metric metrics[METRICS_MAX] = {
    [COUNTER_DURATION] = {"gpu__time_duration.sum", 1e-3},
    [COUNTER_CYCLES] = {"sm__cycles_elapsed.max", 1},
    [COUNTER_SM] = {"sm__throughput" OF_PEAK_ELAPSED, 1},
    [COUNTER_MEMORY] = {"gpu__compute_memory_throughput" OF_PEAK_ELAPSED, 1},
    [COUNTER_DRAM] = {"dram__throughput" OF_PEAK_ELAPSED, 1},
    [COUNTER_L2] = {"lts__throughput" OF_PEAK_ELAPSED, 1},
    [COUNTER_L1] = {"l1tex__throughput" OF_PEAK_ACTIVE, 1},
    [COUNTER_L2_HIT] = {"lts__t_sector_hit_rate.pct", 1},
    [COUNTER_L1_HIT] = {"l1tex__t_sector_hit_rate.pct", 1},
    [COUNTER_DRAM_READ] = {"dram__bytes_read.sum", 1},
    [COUNTER_DRAM_WRITE] = {"dram__bytes_write.sum", 1},
    [COUNTER_TENSOR] = {"sm__pipe_tensor_cycles_active" OF_PEAK_ACTIVE, 1},
    [COUNTER_ISSUE] = {"smsp__issue_active" OF_PEAK_ACTIVE, 1},
    [COUNTER_OCCUPANCY] = {"sm__warps_active" OF_PEAK_ACTIVE, 1},
    [COUNTER_INSTRUCTIONS] = {"smsp__inst_executed.sum", 1},
    [COUNTER_BANK_CONFLICTS] = {"l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum", 1},
    [COUNTER_SHARED_WAVEFRONTS] = {"l1tex__data_pipe_lsu_wavefronts_mem_shared.sum", 1},
#define X(NAME, key, what)                                                                                             \
    [(int)COUNTER_COUNT + (int)STALL_##NAME] = {"smsp__average_warps_issue_stalled_" #key "_per_issue_active.ratio", 1},
    COUNTER_STALLS(X)
#undef X
};

const struct cuda_metric *cuda_metric(unsigned i)
{
    return &metrics[i];
}

/* CALL(s, e, start, &params) calls CUPTI. PARAMS(cupti_profiler, profiler, .profiler = …) makes the struct; `last` is
 * its last member. */
#define CALL(s, e, function, params) check((s)->cupti->function(params), "CUPTI's " #function, e)
#define PARAMS(type, last, ...)                                                                                        \
    {                                                                                                                  \
        .size = CUPTI_SIZE(type, last), __VA_ARGS__                                                                    \
    }

enum { RANGES_MAX = SESSION_EXECUTIONS * (int)COUNTER_RANGES_MAX };

static int check(int result, const char *call, struct error *e)
{
    return result ? cupti_fail(result, call, e) : 0;
}

static void *room(size_t size, struct error *e)
{
    void *memory = malloc(size ? size : 1);

    if (!memory)
        error_set(e, ERROR_OUT_OF_MEMORY, "no memory for counters");
    return memory;
}

/* ---- opening ---- */

static uint8_t *ask_availability(const struct cuda_session *s, const struct cuda_device *d, struct error *e)
{
    struct cupti_availability ask = PARAMS(cupti_availability, image, .context = d->context);

    if (CALL(s, e, availability, &ask) < 0)
        return NULL;
    ask.image = room(ask.image_size, e);
    if (!ask.image || CALL(s, e, availability, &ask) == 0)
        return ask.image;
    free(ask.image);
    return NULL;
}

static int make_host(struct cuda_session *s, const struct cuda_device *d, struct error *e)
{
    struct cupti_host_initialize host =
        PARAMS(cupti_host_initialize, host, .profiler = CUPTI_RANGE_PROFILER, .chip = s->chip);
    int r;

    s->availability = ask_availability(s, d, e);
    if (!s->availability)
        return -1;
    host.availability = s->availability;
    r = CALL(s, e, host_initialize, &host);
    s->host = host.host;
    return r;
}

static void list_metrics(struct cuda_session *s)
{
    s->n = 0;
    for (unsigned i = 0; i < METRICS_MAX; i++) {
        struct cupti_metric_properties properties =
            PARAMS(cupti_metric_properties, type, .host = s->host, .metric = cuda_metric(i)->name);

        if (s->cupti->metric_properties(&properties) != 0)
            continue;
        s->names[s->n] = cuda_metric(i)->name;
        s->which[s->n++] = i;
    }
}

static int make_config(struct cuda_session *s, struct error *e)
{
    struct cupti_add_metrics add = PARAMS(cupti_add_metrics, n, .host = s->host, .metrics = s->names, .n = s->n);
    struct cupti_config_size size = PARAMS(cupti_config_size, image_size, .host = s->host);
    struct cupti_config config = PARAMS(cupti_config, image, .host = s->host);

    /* All metrics in a single call: CUPTI then puts as many into a pass as possible. */
    if (CALL(s, e, add_metrics, &add) < 0 || CALL(s, e, config_size, &size) < 0)
        return -1;
    s->config_size = config.image_size = size.image_size;
    s->config = config.image = room(size.image_size, e);
    return s->config ? CALL(s, e, config, &config) : -1;
}

static int make_counters(struct cuda_session *s, struct error *e)
{
    struct cupti_counters_size size = PARAMS(cupti_counters_size, counters_size, .profiler = s->profiler,
                                             .metrics = s->names, .n = s->n, .ranges = RANGES_MAX, .nodes = RANGES_MAX);

    if (CALL(s, e, counters_size, &size) < 0)
        return -1;
    if (!s->counters || s->counters_size != size.counters_size) {
        free(s->counters);
        s->counters = room(size.counters_size, e);
        s->counters_size = size.counters_size;
    }
    return s->counters ? 0 : -1;
}

int cuda_session_load(struct cuda_session *s, const struct cuda_device *d, struct error *e)
{
    struct cupti_initialize initialize = PARAMS(cupti_initialize, none);
    struct cupti_chip_name chip = PARAMS(cupti_chip_name, name, .device = (size_t)d->ordinal);

    if (s->cupti)
        return 0;
    s->cupti = cupti_get(e);
    if (!s->cupti)
        return -1;
    if (CALL(s, e, initialize, &initialize) == 0 && CALL(s, e, chip_name, &chip) == 0) {
        s->chip = chip.name;
        return 0;
    }
    s->cupti = NULL;
    return -1;
}

static void session_close(struct cuda_session *s)
{
    cuda_session_end(s);
    free(s->config);
    free(s->counters);
    free(s->availability);
    memset(s, 0, sizeof(*s));
}

int cuda_session_open(struct cuda_session *s, const struct cuda_device *d, struct error *e)
{
    if (s->config)
        return 0;
    if (cuda_session_load(s, d, e) < 0)
        return -1;
    if (make_host(s, d, e) < 0)
        goto close;
    list_metrics(s);
    if (!s->n) {
        error_set(e, ERROR_UNSUPPORTED, "CUPTI counts nothing on %s", d->base.info.name);
        goto close;
    }
    if (make_config(s, e) == 0)
        return 0;

close:
    session_close(s);
    return -1;
}

/* ---- passes ---- */

static int set_config(struct cuda_session *s, struct error *e)
{
    struct cupti_counters_initialize counters = PARAMS(cupti_counters_initialize, counters, .profiler = s->profiler,
                                                       .counters_size = s->counters_size, .counters = s->counters);
    struct cupti_set_config config =
        PARAMS(cupti_set_config, level, .profiler = s->profiler, .config_size = s->config_size, .config = s->config,
               .counters_size = s->counters_size, .counters = s->counters, .range = CUPTI_AUTO_RANGE,
               .replay = CUPTI_USER_REPLAY, .ranges_a_pass = RANGES_MAX, .levels = 1, .first_level = 1, .level = 1);

    memset(s->counters, 0, s->counters_size);
    return CALL(s, e, counters_initialize, &counters) < 0 ? -1 : CALL(s, e, set_config, &config);
}

int cuda_session_begin(struct cuda_session *s, const struct cuda_device *d, struct error *e)
{
    struct cupti_enable enable = PARAMS(cupti_enable, profiler, .context = d->context);

    if (s->profiler)
        return 0;
    if (CALL(s, e, enable, &enable) < 0)
        return -1;
    s->profiler = enable.profiler;
    if (make_counters(s, e) == 0 && set_config(s, e) == 0)
        return 0;
    cuda_session_end(s);
    return -1;
}

void cuda_session_end(struct cuda_session *s)
{
    struct cupti_profiler disable = PARAMS(cupti_profiler, profiler, .profiler = s->profiler);

    if (s->profiler)
        s->cupti->disable(&disable);
    s->profiler = NULL;
}

int cuda_session_pass_begin(struct cuda_session *s, struct error *e)
{
    struct cupti_profiler start = PARAMS(cupti_profiler, profiler, .profiler = s->profiler);

    return CALL(s, e, start, &start);
}

int cuda_session_pass_end(struct cuda_session *s, bool *ret_more, struct error *e)
{
    struct cupti_stop stop = PARAMS(cupti_stop, all, .profiler = s->profiler);

    if (CALL(s, e, stop, &stop) < 0)
        return -1;
    *ret_more = !stop.all;
    return 0;
}

static int evaluate(struct cuda_session *s, size_t range, struct backend_counters *ret, struct error *e)
{
    double values[METRICS_MAX];
    struct cupti_evaluate ask =
        PARAMS(cupti_evaluate, values, .host = s->host, .counters = s->counters, .counters_size = s->counters_size,
               .range = range, .metrics = s->names, .n = s->n, .values = values);

    if (CALL(s, e, evaluate, &ask) < 0)
        return -1;
    for (unsigned i = 0; i < s->n; i++) {
        const unsigned n = s->which[i];

        *(n < COUNTER_COUNT ? &ret->values[n] : &ret->stalls[n - COUNTER_COUNT]) = values[i] * cuda_metric(n)->scale;
    }
    return 0;
}

/* Finds the kernels of one execution: each kernel of a pass is a range. */
static int count_kernels(size_t ranges, size_t dropped, size_t *ret, struct error *e)
{
    const size_t all = ranges + dropped;

    if (all % SESSION_EXECUTIONS)
        return error_set(e, ERROR_UNSUPPORTED,
                         "counters are read of work that launches as many kernels each time; %d executions of this "
                         "launched %zu",
                         SESSION_EXECUTIONS, all);
    if (dropped || !ranges)
        return error_set(e, ERROR_UNSUPPORTED, "counters are read of work that launches 1 to %d kernels; this has %zu",
                         COUNTER_RANGES_MAX, all / SESSION_EXECUTIONS);
    *ret = ranges / SESSION_EXECUTIONS;
    return 0;
}

int cuda_session_read(struct cuda_session *s, struct backend_counters *ret, unsigned *ret_longest, struct error *e)
{
    struct cupti_decode decode = PARAMS(cupti_decode, dropped, .profiler = s->profiler);
    struct cupti_counters_info info =
        PARAMS(cupti_counters_info, ranges, .counters = s->counters, .counters_size = s->counters_size);
    struct backend_counters one = *ret;
    double longest = -1;
    size_t n = 0;

    if (CALL(s, e, decode, &decode) < 0 || CALL(s, e, counters_info, &info) < 0 ||
        count_kernels(info.ranges, decode.dropped, &n, e) < 0)
        return -1;
    for (size_t i = 0; i < n; i++) {
        if (evaluate(s, info.ranges - n + i, &one, e) < 0)
            return -1;
        if (!(one.values[COUNTER_DURATION] > longest))
            continue;
        longest = one.values[COUNTER_DURATION];
        *ret = one;
        *ret_longest = (unsigned)i;
    }
    ret->kernels = (uint32_t)n;
    return 0;
}
