/* The range profiler of the stand-in CUPTI: the same calls in the same order, with figures that the
 * environment names.
 *
 * | variable | meaning |
 * | --- | --- |
 * | KOPS_STANDIN_CUPTI | "metric=value,…": what a metric says; one that is not named says 1, "metric=-" is unknown |
 * | KOPS_STANDIN_CUPTI_FAIL | "call:result": that call answers with that result |
 * | KOPS_STANDIN_CUPTI_PASSES | passes that a series takes (3) |
 * | KOPS_STANDIN_CUPTI_RANGES | kernels that it saw in each pass (2) |
 * | KOPS_STANDIN_CUPTI_ADMIN | set: as with RmProfilingAdminOnly, the thread that enables the profiler needs
 * CAP_PERFMON in effect (or CAP_SYS_ADMIN); "thread": which also starts a thread that stays; "masked": one that blocks
 * all signals that the C library has it block; "deaf": one that blocks all signals |
 *
 * One process at a time has the counters, of those with the same KOPS_STANDIN_CONTROL. Calls out of order abort. */
#include <fcntl.h>
#include <linux/capability.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "../../kernels/cuda/counters/profiler.h"

#define API __attribute__((visibility("default"))) int

#define X(field, symbol, type) int symbol(struct type *);
CUPTI_PROFILER_FUNCTIONS(X)
#undef X

enum { CONFIG_BYTES = 64, COUNTERS_BYTES = 256, AVAILABILITY_BYTES = 32 };
enum { INVALID_PARAMETER = 1, INVALID_METRIC_NAME = 17 };
enum { COUNTERS_LOCK = 1 << 30 /* a byte of the control page's file, behind all that others lock */ };

static char host_object, profiler_object;
static bool enabled, configured, started;
static unsigned passes;
static size_t room; /* ranges */

static void demand(bool condition, const char *what)
{
    if (condition)
        return;
    fprintf(stderr, "stand-in CUPTI: %s\n", what);
    abort();
}

static unsigned number_of(const char *variable, unsigned otherwise)
{
    const char *text = getenv(variable);

    return text ? (unsigned)strtoul(text, NULL, 10) : otherwise;
}

static size_t number_of_ranges(void)
{
    return number_of("KOPS_STANDIN_CUPTI_RANGES", 2);
}

/* What the environment has the call answer. */
static int result_of(const char *call)
{
    const char *text = getenv("KOPS_STANDIN_CUPTI_FAIL");
    const size_t length = strlen(call);

    return text && !strncmp(text, call, length) && text[length] == ':' ? (int)strtol(text + length + 1, NULL, 10) : 0;
}

/* The text behind "metric="; NULL: it is not named. */
static const char *find(const char *metric)
{
    const size_t length = strlen(metric);

    for (const char *at = getenv("KOPS_STANDIN_CUPTI"); at && *at; at = strchr(at, ',') ? strchr(at, ',') + 1 : NULL)
        if (!strncmp(at, metric, length) && at[length] == '=')
            return at + length + 1;
    return NULL;
}

API cuptiProfilerInitialize(struct cupti_initialize *p)
{
    demand(p->size == CUPTI_SIZE(cupti_initialize, none), "a size");
    return result_of("initialize");
}

API cuptiDeviceGetChipName(struct cupti_chip_name *p)
{
    p->name = "STANDIN";
    return result_of("chip_name");
}

API cuptiProfilerGetCounterAvailability(struct cupti_availability *p)
{
    demand(p->context != NULL, "no context");
    if (p->image)
        memset(p->image, 1, p->image_size);
    p->image_size = AVAILABILITY_BYTES;
    return result_of("availability");
}

API cuptiProfilerHostInitialize(struct cupti_host_initialize *p)
{
    demand(p->profiler == CUPTI_RANGE_PROFILER && !strcmp(p->chip, "STANDIN") && p->availability[0] == 1, "a host");
    p->host = &host_object;
    return result_of("host_initialize");
}

API cuptiProfilerHostGetMetricProperties(struct cupti_metric_properties *p)
{
    const char *value = find(p->metric);

    return value && *value == '-' ? INVALID_METRIC_NAME : 0;
}

API cuptiProfilerHostConfigAddMetrics(struct cupti_add_metrics *p)
{
    demand(p->host == &host_object && p->n, "no metrics");
    return result_of("add_metrics");
}

API cuptiProfilerHostGetConfigImageSize(struct cupti_config_size *p)
{
    p->image_size = CONFIG_BYTES;
    return 0;
}

API cuptiProfilerHostGetConfigImage(struct cupti_config *p)
{
    demand(p->image_size == CONFIG_BYTES, "a configuration's size");
    memset(p->image, 2, CONFIG_BYTES);
    return result_of("config");
}

/* In the first half of a pass all takes a hundred times as long; in the second the last kernel is the longest. */
API cuptiProfilerHostEvaluateToGpuValues(struct cupti_evaluate *p)
{
    const size_t first = number_of_ranges() / 2;

    demand(p->counters[0] == 3, "counters that were not decoded");
    demand(p->range < number_of_ranges(), "a range that there is not");
    for (size_t i = 0; i < p->n; i++) {
        const char *value = find(p->metrics[i]);

        p->values[i] = value ? strtod(value, NULL) : 1;
        if (p->range < first)
            p->values[i] *= 100;
        else if (!strcmp(p->metrics[i], "gpu__time_duration.sum"))
            p->values[i] *= (double)(p->range - first + 1);
    }
    return result_of("evaluate");
}

static sem_t stays;

/* `argument`: the mode of KOPS_STANDIN_CUPTI_ADMIN. */
static void *stay(void *argument)
{
    const uint64_t every = UINT64_MAX;
    const char *mode = argument;
    sigset_t all;

    sigfillset(&all);
    if (!strcmp(mode, "masked"))
        demand(pthread_sigmask(SIG_SETMASK, &all, NULL) == 0, "a mask");
    if (!strcmp(mode, "deaf"))
        demand(syscall(SYS_rt_sigprocmask, SIG_SETMASK, &every, NULL, sizeof(every)) == 0, "a whole mask");
    sem_post(&stays);
    for (;;)
        pause();
    return argument;
}

static void start_thread(char *mode)
{
    pthread_t thread;

    sem_init(&stays, 0, 0);
    demand(pthread_create(&thread, NULL, stay, mode) == 0, "a thread");
    while (sem_wait(&stays) < 0)
        ;
}

/* What the driver does when the profiler's object is made, and in no later call. */
static bool may_enable(void)
{
    enum { SYS_ADMIN = 21, PERFMON = 38 };
    char *restricted = getenv("KOPS_STANDIN_CUPTI_ADMIN");
    struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct has[_LINUX_CAPABILITY_U32S_3] = {{0}};

    if (!restricted)
        return true;
    demand(syscall(SYS_capget, &header, has) == 0, "capget");
    if (!(has[CAP_TO_INDEX(PERFMON)].effective & CAP_TO_MASK(PERFMON)) &&
        !(has[CAP_TO_INDEX(SYS_ADMIN)].effective & CAP_TO_MASK(SYS_ADMIN)))
        return false;
    if (strcmp(restricted, "1") != 0)
        start_thread(restricted);
    return true;
}

static int counters_fd = -1; /* locked by the process that has them */

static bool take_counters(void)
{
    const char *control = getenv("KOPS_STANDIN_CONTROL");
    struct flock all = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = COUNTERS_LOCK, .l_len = 1};

    if (!control)
        return true;
    counters_fd = open(control, O_RDWR | O_CLOEXEC);
    demand(counters_fd >= 0, "the control page");
    if (fcntl(counters_fd, F_OFD_SETLK, &all) == 0)
        return true;
    close(counters_fd);
    counters_fd = -1;
    return false;
}

static void give_counters(void)
{
    if (counters_fd >= 0)
        close(counters_fd);
    counters_fd = -1;
}

static int try_to_enable(void)
{
    int result;

    if (!may_enable())
        return CUPTI_INSUFFICIENT_PRIVILEGES;
    if (!take_counters())
        return CUPTI_HARDWARE_BUSY;
    result = result_of("enable");
    if (result)
        give_counters();
    return result;
}

API cuptiRangeProfilerEnable(struct cupti_enable *p)
{
    const int result = try_to_enable();

    demand(p->context && !enabled, "enabled twice");
    p->profiler = &profiler_object;
    enabled = result == 0;
    return result;
}

API cuptiRangeProfilerDisable(struct cupti_profiler *p)
{
    demand(p->profiler == &profiler_object && enabled, "not enabled");
    enabled = configured = started = false;
    give_counters();
    return 0;
}

API cuptiRangeProfilerGetCounterDataSize(struct cupti_counters_size *p)
{
    demand(p->profiler && p->ranges && p->nodes >= p->ranges, "ranges");
    room = p->ranges;
    p->counters_size = COUNTERS_BYTES;
    return 0;
}

API cuptiRangeProfilerCounterDataImageInitialize(struct cupti_counters_initialize *p)
{
    demand(p->counters_size == COUNTERS_BYTES, "the counters' size");
    memset(p->counters, 0, COUNTERS_BYTES);
    return 0;
}

static uint8_t *counters;

API cuptiRangeProfilerSetConfig(struct cupti_set_config *p)
{
    demand(enabled && !started && p->config[0] == 2 && p->config_size == CONFIG_BYTES, "a configuration");
    demand(p->range == CUPTI_AUTO_RANGE && p->replay == CUPTI_USER_REPLAY, "another mode");
    demand(p->ranges_a_pass == room, "another number of ranges than there is room for");
    counters = p->counters;
    configured = true;
    passes = 0;
    return result_of("set_config");
}

API cuptiRangeProfilerStart(struct cupti_profiler *p)
{
    demand(configured && !started, "started twice");
    started = result_of("start") == 0;
    return result_of("start");
}

API cuptiRangeProfilerStop(struct cupti_stop *p)
{
    demand(started, "not started");
    started = false;
    p->pass = ++passes;
    p->all = passes >= number_of("KOPS_STANDIN_CUPTI_PASSES", 3);
    return result_of("stop");
}

API cuptiRangeProfilerDecodeData(struct cupti_decode *p)
{
    demand(!started && passes, "nothing to decode");
    counters[0] = 3;
    p->dropped = number_of_ranges() > room ? number_of_ranges() - room : 0;
    return result_of("decode");
}

API cuptiRangeProfilerGetCounterDataInfo(struct cupti_counters_info *p)
{
    p->ranges = number_of_ranges() < room ? number_of_ranges() : room;
    return 0;
}
