/* A stand-in of CUPTI over the stand-in driver: callbacks at launches, and records of kernels and graphs. Its clock is
 * far from the host's, so that whoever takes one for the other is found out. As CUPTI does, it has a place in a buffer
 * for each launch, and hands a buffer out only when all launches in it have ended. */
#include <cupti.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "profiler.h"

#define API __attribute__((visibility("default"))) CUptiResult CUPTIAPI

enum { PENDING_MAX = 65536, BUFFER_RECORDS = 75 };

static uint64_t clock_ahead_ns = 1000000000000; /* of the records' clock; set once */

struct record {
    CUpti_ActivityKind kind;
    uint32_t call;
    const char *name;
    uint64_t begin_ns, end_ns; /* end_ns 0: it has not ended */
    uint64_t buffer;
    bool complete; /* all records of its buffer */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* of what follows */
static struct record pending[PENDING_MAX];               /* in the order of their launches */
static size_t n_pending;
static size_t n_complete;
static uint64_t filling; /* the buffer that launches go to */
static size_t n_in_buffer;
static bool lost, late; /* what is recorded; set once */
static bool fresh;      /* `late`, and no flush came since a record was made */

static CUpti_CallbackFunc callback;
static void *callback_context;
static CUpti_BuffersCallbackRequestFunc buffer_wanted;
static CUpti_BuffersCallbackCompleteFunc buffer_done;
static atomic_bool kernels, graphs;
static atomic_uint calls;
static _Thread_local uint64_t graph_begin_ns;

/* A place for the launch's record. */
static void reserve(uint32_t call, enum standin_launch what)
{
    pthread_mutex_lock(&lock);
    if (n_pending < PENDING_MAX && !lost) {
        if (n_in_buffer == BUFFER_RECORDS) {
            filling++;
            n_in_buffer = 0;
        }
        n_in_buffer++;
        pending[n_pending++] =
            (struct record){.kind = what == STANDIN_LAUNCH_GRAPH ? CUPTI_ACTIVITY_KIND_GRAPH_TRACE
                                                                 : CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL,
                            .call = call,
                            .buffer = filling};
    }
    pthread_mutex_unlock(&lock);
}

static uint32_t launching(enum standin_launch what)
{
    const uint32_t call = atomic_fetch_add(&calls, 1) + 1;
    const CUpti_CallbackData data = {.callbackSite = CUPTI_API_ENTER, .correlationId = call};
    const CUpti_CallbackId id =
        what == STANDIN_LAUNCH_GRAPH ? CUPTI_DRIVER_TRACE_CBID_cuGraphLaunch : CUPTI_DRIVER_TRACE_CBID_cuLaunchKernel;

    if (callback)
        callback(callback_context, CUPTI_CB_DOMAIN_DRIVER_API, id, &data);
    if (!atomic_load(what == STANDIN_LAUNCH_GRAPH ? &graphs : &kernels))
        return 0;
    reserve(call, what);
    return call;
}

static struct record *record_of(uint32_t call)
{
    for (size_t i = 0; i < n_pending; i++)
        if (pending[i].call == call)
            return &pending[i];
    return NULL;
}

static void ran(uint32_t call, enum standin_launch what, const char *name, uint64_t begin_ns, uint64_t end_ns,
                bool last)
{
    struct record *record;

    if (what == STANDIN_LAUNCH_GRAPH) {
        graph_begin_ns = graph_begin_ns ? graph_begin_ns : begin_ns;
        if (!last)
            return;
        begin_ns = graph_begin_ns;
        graph_begin_ns = 0;
    }
    pthread_mutex_lock(&lock);
    fresh = late;
    record = record_of(call);
    if (record) {
        record->name = name;
        record->begin_ns = begin_ns + clock_ahead_ns;
        record->end_ns = end_ns + clock_ahead_ns;
    }
    pthread_mutex_unlock(&lock);
}

/* The true one and the driver wait for each other for ever when records are handed out, or are switched on or off,
 * while code is loaded. */
static atomic_int loads, flushes;

static void demand(bool condition)
{
    if (condition)
        return;
    fprintf(stderr, "stand-in CUPTI: it is called while code is loaded: the true one would never come back\n");
    abort();
}

static void loading(bool begins)
{
    atomic_fetch_add(&loads, begins ? 1 : -1);
    demand(!begins || !atomic_load(&flushes));
}

static const struct standin_profiler profiler = {.launching = launching, .loading = loading, .ran = ran};

/* KOPS_STANDIN_CUPTI=busy: another one in the process has it. =lose: records are lost. =late: the flush that follows a
 * kernel does not have its record yet. */
static bool mode_is(const char *name)
{
    const char *mode = getenv("KOPS_STANDIN_CUPTI");

    return mode && !strcmp(mode, name);
}

API cuptiSubscribe(CUpti_SubscriberHandle *subscriber, CUpti_CallbackFunc function, void *context)
{
    if (mode_is("busy"))
        return CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED;
    lost = mode_is("lose");
    late = mode_is("late");
    callback = function;
    callback_context = context;
    *subscriber = (CUpti_SubscriberHandle)(uintptr_t)1;
    standin_set_profiler(&profiler);
    return CUPTI_SUCCESS;
}

API cuptiUnsubscribe(CUpti_SubscriberHandle subscriber)
{
    callback = NULL;
    return CUPTI_SUCCESS;
}

API cuptiEnableCallback(uint32_t enable, CUpti_SubscriberHandle subscriber, CUpti_CallbackDomain domain,
                        CUpti_CallbackId id)
{
    return enable && domain == CUPTI_CB_DOMAIN_DRIVER_API ? CUPTI_SUCCESS : CUPTI_ERROR_INVALID_PARAMETER;
}

API cuptiActivityRegisterCallbacks(CUpti_BuffersCallbackRequestFunc wanted, CUpti_BuffersCallbackCompleteFunc done)
{
    buffer_wanted = wanted;
    buffer_done = done;
    return CUPTI_SUCCESS;
}

API cuptiActivityRegisterTimestampCallback(CUpti_TimestampCallbackFunc function)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    clock_ahead_ns = function() - ((uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec);
    return CUPTI_SUCCESS;
}

static CUptiResult set(CUpti_ActivityKind kind, bool on)
{
    if (kind != CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL && kind != CUPTI_ACTIVITY_KIND_GRAPH_TRACE)
        return CUPTI_ERROR_INVALID_KIND;
    demand(!atomic_load(&loads));
    atomic_store(kind == CUPTI_ACTIVITY_KIND_GRAPH_TRACE ? &graphs : &kernels, on);
    return CUPTI_SUCCESS;
}

API cuptiActivityEnable(CUpti_ActivityKind kind)
{
    return set(kind, true);
}

API cuptiActivityDisable(CUpti_ActivityKind kind)
{
    return set(kind, false);
}

static size_t size_of(CUpti_ActivityKind kind)
{
    return kind == CUPTI_ACTIVITY_KIND_GRAPH_TRACE ? sizeof(CUpti_ActivityGraphTrace) : sizeof(CUpti_ActivityKernel9);
}

static void write_record(uint8_t *at, const struct record *record)
{
    if (record->kind == CUPTI_ACTIVITY_KIND_GRAPH_TRACE) {
        CUpti_ActivityGraphTrace graph = {
            .kind = record->kind, .correlationId = record->call, .start = record->begin_ns, .end = record->end_ns};

        memcpy(at, &graph, sizeof(graph));
    } else {
        CUpti_ActivityKernel9 kernel = {.kind = record->kind,
                                        .correlationId = record->call,
                                        .name = record->name,
                                        .start = record->begin_ns,
                                        .end = record->end_ns};

        memcpy(at, &kernel, sizeof(kernel));
    }
}

/* Finds the buffers whose records are complete. The one that is being filled is not filled any further. */
static void complete(void)
{
    for (size_t begin = 0, end; begin < n_pending; begin = end) {
        bool whole = true;

        for (end = begin; end < n_pending && pending[end].buffer == pending[begin].buffer; end++)
            whole = whole && pending[end].end_ns;
        for (size_t i = begin; whole && i < end; i++) {
            n_complete += !pending[i].complete;
            pending[i].complete = true;
        }
        if (whole && pending[begin].buffer == filling) {
            filling++;
            n_in_buffer = 0;
        }
    }
}

/* Fills a buffer of the caller's with the oldest complete records. Returns how many. */
static size_t hand_out(void)
{
    size_t size = 0, max = 0, used = 0, kept = 0, n;
    uint8_t *wanted = NULL;

    buffer_wanted(&wanted, &size, &max);
    pthread_mutex_lock(&lock);
    for (size_t i = 0; i < n_pending; i++)
        if (wanted && pending[i].complete && used + size_of(pending[i].kind) <= size) {
            write_record(wanted + used, &pending[i]);
            used += size_of(pending[i].kind);
        } else {
            pending[kept++] = pending[i];
        }
    n = n_pending - kept;
    n_pending = kept;
    n_complete -= n;
    pthread_mutex_unlock(&lock);
    if (wanted)
        buffer_done(NULL, 0, wanted, size, used);
    return n;
}

API cuptiActivityFlushAll(uint32_t flags)
{
    bool waits;

    atomic_fetch_add(&flushes, 1);
    demand(!atomic_load(&loads));
    pthread_mutex_lock(&lock);
    waits = fresh;
    fresh = false;
    if (!waits)
        complete();
    pthread_mutex_unlock(&lock);
    while (n_complete && hand_out())
        ;
    atomic_fetch_sub(&flushes, 1);
    return CUPTI_SUCCESS;
}

API cuptiActivityGetNextRecord(uint8_t *buffer, size_t valid, CUpti_Activity **record)
{
    uint8_t *at = *record ? (uint8_t *)*record + size_of((*record)->kind) : buffer;

    if (at >= buffer + valid)
        return CUPTI_ERROR_MAX_LIMIT_REACHED;
    *record = (CUpti_Activity *)(void *)at;
    return CUPTI_SUCCESS;
}

API cuptiGetResultString(CUptiResult result, const char **text)
{
    *text = result == CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED ? "multiple subscribers" : "an error";
    return CUPTI_SUCCESS;
}
