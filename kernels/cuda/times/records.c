/* Owns the process's use of CUPTI. */
#include "records.h"

#include <cupti.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "driver/driver.h"
#include "util/clock.h"
#include "util/log.h"

#define CUPTI_FUNCTIONS(X)                                                                                             \
    X(ActivityRegisterCallbacks)                                                                                       \
    X(ActivityRegisterTimestampCallback)                                                                               \
    X(ActivityEnable)                                                                                                  \
    X(ActivityDisable)                                                                                                 \
    X(ActivityFlushAll)                                                                                                \
    X(ActivityGetNextRecord)                                                                                           \
    X(Subscribe)                                                                                                       \
    X(Unsubscribe)                                                                                                     \
    X(EnableCallback)                                                                                                  \
    X(GetResultString)

struct cupti {
#define X(Name) __typeof__(cupti##Name) *Name;
    CUPTI_FUNCTIONS(X)
#undef X
};

static int load_cupti(struct cupti *ret, char *why, size_t why_size)
{
    static const struct cuda_symbol wanted[] = {
#define X(Name) {"cupti" #Name, offsetof(struct cupti, Name), false},
        CUPTI_FUNCTIONS(X)
#undef X
    };
    void *library = cupti_library(why, why_size);
    const char *missing;

    if (!library)
        return -1;
    missing = cuda_resolve(library, wanted, sizeof(wanted) / sizeof(wanted[0]), ret);
    if (missing)
        snprintf(why, why_size, "CUPTI has no %s: it is too old", missing);
    return missing ? -1 : 0;
}

enum {
    CALLS = 16384, /* a launch's record must come within so many calls of the driver */
    BUFFER_BYTES = 16 << 10,
    BUFFER_ALIGN = 64
};

enum state { NOT_TRIED, ON, OFF };

struct entry {
    uint64_t ticket; /* 0: none */
    unsigned launched, recorded;
    struct cuda_span span;
};

/* A launch: CUPTI's number of the call, and the ticket. */
struct call {
    uint32_t correlation;
    uint64_t ticket;
};

static struct {
    atomic_int state; /* enum state */
    struct cupti cupti;
    CUpti_SubscriberHandle subscriber;
    uint64_t tickets;

    pthread_mutex_t lock; /* guards the members below, since CUPTI delivers full buffers on a thread of its own */
    struct entry entries[RECORDS_TICKETS];
    struct call calls[CALLS];
} records = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* Excludes flushes and loads, which would deadlock: CUPTI delivers records with its lock held and takes the context's,
 * while a thread that loads a kernel holds the context's lock and takes CUPTI's. */
static struct {
    pthread_mutex_t lock; /* held briefly, or while CUPTI switches records on or off */
    pthread_cond_t changed;
    unsigned loads;   /* threads between load_begin() and load_end() */
    unsigned waiting; /* threads that wait for exclusive use of CUPTI, which delays new loads */
    bool alone;       /* a thread uses CUPTI exclusively */
    bool flush_due;   /* a flush was refused during a load; no load begins before the flush */
    bool recording;   /* the loop wants records of kernels */
    bool on;          /* CUPTI records them */
} code = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};

static _Thread_local unsigned loading;

/* The ticket of this thread's launches; 0: none. */
static _Thread_local uint64_t current;

static struct entry *entry_of(uint64_t ticket)
{
    struct entry *entry = &records.entries[ticket % RECORDS_TICKETS];

    return entry->ticket == ticket ? entry : NULL;
}

/* ---- CUPTI's callbacks ---- */

static void CUPTIAPI on_launch(void *context, CUpti_CallbackDomain domain, CUpti_CallbackId id, const void *data)
{
    const CUpti_CallbackData *call = data;
    struct entry *entry;

    (void)context, (void)domain, (void)id;
    if (!current || call->callbackSite != CUPTI_API_ENTER)
        return;
    pthread_mutex_lock(&records.lock);
    entry = entry_of(current);
    if (entry) {
        entry->launched++;
        records.calls[call->correlationId % CALLS] =
            (struct call){.correlation = call->correlationId, .ticket = current};
    }
    pthread_mutex_unlock(&records.lock);
}

static uint64_t CUPTIAPI host_clock(void)
{
    return clock_now_ns();
}

static void CUPTIAPI on_buffer_wanted(uint8_t **buffer, size_t *size, size_t *max_records)
{
    *buffer = aligned_alloc(BUFFER_ALIGN, BUFFER_BYTES);
    *size = *buffer ? BUFFER_BYTES : 0;
    *max_records = 0;
}

static void note(uint32_t correlation, uint64_t begin_ns, uint64_t end_ns)
{
    const struct call *call = &records.calls[correlation % CALLS];
    struct entry *entry = call->correlation == correlation && call->ticket ? entry_of(call->ticket) : NULL;

    if (!entry)
        return;
    if (!entry->recorded++ || begin_ns < entry->span.begin_ns)
        entry->span.begin_ns = begin_ns;
    if (end_ns > entry->span.end_ns)
        entry->span.end_ns = end_ns;
}

/* Reads records by their first members, which later versions of CUPTI keep. */
static void CUPTIAPI on_buffer_done(CUcontext context, uint32_t stream, uint8_t *buffer, size_t size, size_t valid)
{
    CUpti_Activity *record = NULL;

    (void)context, (void)stream, (void)size;
    pthread_mutex_lock(&records.lock);
    while (valid && records.cupti.ActivityGetNextRecord(buffer, valid, &record) == CUPTI_SUCCESS) {
        if (record->kind == CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL) {
            const CUpti_ActivityKernel9 *kernel = (const void *)record;

            note(kernel->correlationId, kernel->start, kernel->end);
        } else if (record->kind == CUPTI_ACTIVITY_KIND_GRAPH_TRACE) {
            const CUpti_ActivityGraphTrace *graph = (const void *)record;

            note(graph->correlationId, graph->start, graph->end);
        }
    }
    pthread_mutex_unlock(&records.lock);
    free(buffer);
}

/* ---- loads of code ---- */

/* Switches records of kernels on or off as wanted. They are on during loads. Under the lock. */
static void switch_kernels(void)
{
    const bool wanted = code.recording || code.loads;

    if (code.alone || code.on == wanted || !cuda_records_are_on())
        return;
    code.on = wanted;
    if (wanted)
        records.cupti.ActivityEnable(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL);
    else
        records.cupti.ActivityDisable(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL);
}

/* Waits until no code is being loaded. */
static void take_alone(void)
{
    pthread_mutex_lock(&code.lock);
    code.waiting++;
    while (code.alone || code.loads)
        pthread_cond_wait(&code.changed, &code.lock);
    code.waiting--;
    code.alone = true;
    pthread_mutex_unlock(&code.lock);
}

static void give_alone(void)
{
    pthread_mutex_lock(&code.lock);
    code.alone = false;
    switch_kernels();
    pthread_cond_broadcast(&code.changed);
    pthread_mutex_unlock(&code.lock);
}

void cuda_records_load_begin(bool at_once)
{
    if (loading++)
        return;
    pthread_mutex_lock(&code.lock);
    while (code.alone || (!at_once && (code.waiting || code.flush_due)))
        pthread_cond_wait(&code.changed, &code.lock);
    code.loads++;
    switch_kernels();
    pthread_mutex_unlock(&code.lock);
}

void cuda_records_load_end(void)
{
    if (--loading)
        return;
    pthread_mutex_lock(&code.lock);
    if (--code.loads) {
        pthread_mutex_unlock(&code.lock);
        return;
    }
    code.alone = true;
    code.flush_due = false;
    pthread_mutex_unlock(&code.lock);
    if (cuda_records_are_on())
        records.cupti.ActivityFlushAll(0);
    give_alone();
}

/* ---- the start ---- */

static const CUpti_CallbackId launches[] = {
    CUPTI_DRIVER_TRACE_CBID_cuLaunchKernel,
    CUPTI_DRIVER_TRACE_CBID_cuLaunchKernel_ptsz,
    CUPTI_DRIVER_TRACE_CBID_cuLaunchKernelEx,
    CUPTI_DRIVER_TRACE_CBID_cuLaunchKernelEx_ptsz,
    CUPTI_DRIVER_TRACE_CBID_cuLaunchCooperativeKernel,
    CUPTI_DRIVER_TRACE_CBID_cuLaunchCooperativeKernel_ptsz,
    CUPTI_DRIVER_TRACE_CBID_cuGraphLaunch,
    CUPTI_DRIVER_TRACE_CBID_cuGraphLaunch_ptsz,
};

/* Returns the environment variable that loads a profiling tool, which needs CUPTI, into this process; NULL: none. */
static const char *tool_in_the_way(void)
{
    static const char *const variables[] = {"CUDA_INJECTION64_PATH", "CUDA_INJECTION32_PATH", "NVTX_INJECTION64_PATH"};

    for (size_t i = 0; i < sizeof(variables) / sizeof(variables[0]); i++) {
        const char *value = getenv(variables[i]);

        if (value && *value)
            return variables[i];
    }
    return NULL;
}

static int refuse(CUptiResult result, const char *call, char *why, size_t why_size)
{
    const char *text = NULL;

    if (result == CUPTI_SUCCESS)
        return 0;
    records.cupti.GetResultString(result, &text);
    snprintf(why, why_size, "cupti%s: %s", call, text ? text : "unknown error");
    return -1;
}

#define CUPTI_CALL(why, why_size, Name, ...) refuse(records.cupti.Name(__VA_ARGS__), #Name, why, why_size)

/* The subscription comes first, since it fails if CUPTI has another user in this process. */
static int start(char *why, size_t why_size)
{
    const char *tool = tool_in_the_way();
    char ignored[256];

    if (tool) {
        snprintf(why, why_size, "%s is set: a tool has CUPTI", tool);
        return -1;
    }
    if (load_cupti(&records.cupti, why, why_size) < 0 ||
        CUPTI_CALL(why, why_size, Subscribe, &records.subscriber, (CUpti_CallbackFunc)on_launch, NULL) < 0)
        return -1;
    for (size_t i = 0; i < sizeof(launches) / sizeof(launches[0]); i++)
        if (CUPTI_CALL(why, why_size, EnableCallback, 1, records.subscriber, CUPTI_CB_DOMAIN_DRIVER_API, launches[i]) <
            0)
            goto unsubscribe;
    if (CUPTI_CALL(why, why_size, ActivityRegisterTimestampCallback, host_clock) < 0 ||
        CUPTI_CALL(why, why_size, ActivityRegisterCallbacks, on_buffer_wanted, on_buffer_done) < 0 ||
        CUPTI_CALL(why, why_size, ActivityEnable, CUPTI_ACTIVITY_KIND_GRAPH_TRACE) < 0)
        goto unsubscribe;
    return 0;

unsubscribe:
    CUPTI_CALL(ignored, sizeof(ignored), Unsubscribe, records.subscriber);
    return -1;
}

bool cuda_records_start(void)
{
    char why[256] = "", quoted[300];
    bool on;

    if (cuda_records_were_started())
        return cuda_records_are_on();
    take_alone();
    if (atomic_load(&records.state) == NOT_TRIED) {
        on = start(why, sizeof(why)) == 0;
        atomic_store(&records.state, on ? ON : OFF);
        if (!on)
            log_info("cupti_unavailable", "reason=%s", log_quote(quoted, sizeof(quoted), why, strlen(why)));
    }
    give_alone();
    return cuda_records_are_on();
}

bool cuda_records_were_started(void)
{
    return atomic_load_explicit(&records.state, memory_order_acquire) != NOT_TRIED;
}

bool cuda_records_are_on(void)
{
    return atomic_load_explicit(&records.state, memory_order_acquire) == ON;
}

/* ---- tickets ---- */

static void record_kernels(bool on)
{
    if (code.recording == on) /* written by the loop alone */
        return;
    pthread_mutex_lock(&code.lock);
    code.recording = on;
    switch_kernels();
    pthread_mutex_unlock(&code.lock);
}

uint64_t cuda_records_begin(bool kernels)
{
    const uint64_t ticket = ++records.tickets;

    record_kernels(kernels);
    pthread_mutex_lock(&records.lock);
    records.entries[ticket % RECORDS_TICKETS] = (struct entry){.ticket = ticket};
    pthread_mutex_unlock(&records.lock);
    current = ticket;
    return ticket;
}

void cuda_records_end(void)
{
    current = 0;
}

void cuda_records_resume(uint64_t ticket)
{
    current = ticket;
}

void cuda_records_pause(void)
{
    record_kernels(false);
}

bool cuda_records_flush(void)
{
    bool alone;

    pthread_mutex_lock(&code.lock);
    alone = !code.alone && !code.loads;
    code.alone = code.alone || alone;
    code.flush_due = code.loads > 0;
    pthread_mutex_unlock(&code.lock);
    if (!alone)
        return false;
    records.cupti.ActivityFlushAll(0);
    give_alone();
    return true;
}

enum cuda_record_state cuda_records_read(uint64_t ticket, struct cuda_span *ret)
{
    enum cuda_record_state state = RECORD_MISSING;
    const struct entry *entry;

    pthread_mutex_lock(&records.lock);
    entry = entry_of(ticket);
    if (entry && entry->launched)
        state = entry->recorded >= entry->launched ? RECORD_READY : RECORD_PENDING;
    if (state == RECORD_READY)
        *ret = entry->span;
    pthread_mutex_unlock(&records.lock);
    return state;
}
