/* The one mutex, what every exported function does first and last, and the reporting of misuse. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "standin.h"

pthread_mutex_t standin_lock = PTHREAD_MUTEX_INITIALIZER;
pthread_cond_t standin_progress = PTHREAD_COND_INITIALIZER;

static _Atomic pid_t initialised_by;
static _Thread_local const char *current_function = "?";

uint64_t now_ns(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000U + (uint64_t)t.tv_nsec;
}

void state_initialised(void)
{
    initialised_by = getpid();
}

bool state_is_initialised(void)
{
    return initialised_by == getpid();
}

/* After a fork the child has the parent's memory but none of its threads; a real driver refuses it as well. Must come
 * before the mutex, which another thread of the parent may have held. */
static bool is_forked_child(void)
{
    pid_t by = initialised_by;

    return by && by != getpid();
}

CUresult enter_uninitialised(const char *name)
{
    bool sticky = false;
    CUresult fault;

    if (is_forked_child())
        return CUDA_ERROR_NOT_INITIALIZED;
    pthread_mutex_lock(&standin_lock);
    current_function = name;
    if (!state_is_initialised())
        return CUDA_SUCCESS;
    count_call(name);
    fault = control_fault(name, &sticky);
    if (fault == CUDA_SUCCESS)
        return CUDA_SUCCESS;
    if (sticky) {
        struct context *context;

        if (context_current(&context) == CUDA_SUCCESS)
            context_break(context, fault);
    }
    return leave(fault);
}

CUresult enter(const char *name)
{
    if (!state_is_initialised())
        return CUDA_ERROR_NOT_INITIALIZED;
    return enter_uninitialised(name);
}

CUresult enter_context(const char *name, struct context **ret_context)
{
    struct context *context;
    CUresult r;

    ENTER(enter(name));
    r = context_current(&context);
    if (r == CUDA_SUCCESS && context->broken)
        r = context->error;
    if (r == CUDA_SUCCESS)
        r = capture_check_call(name, context);
    if (r != CUDA_SUCCESS)
        return leave(r);
    if (ret_context)
        *ret_context = context;
    return CUDA_SUCCESS;
}

CUresult leave(CUresult result)
{
    pthread_mutex_unlock(&standin_lock);
    return result;
}

CUresult misuse(CUresult result, const char *format, ...)
{
    char text[STANDIN_TEXT], line[STANDIN_TEXT + 64];
    va_list arguments;

    va_start(arguments, format);
    vsnprintf(text, sizeof(text), format, arguments);
    va_end(arguments);
    snprintf(line, sizeof(line), "%s: %s", current_function, text);
    fprintf(stderr, "cuda_standin: misuse (pid %d): %s\n", (int)getpid(), line);
    control_misuse(line);
    return result;
}

void wait_for_progress(bool *counted)
{
    if (!*counted)
        count(STANDIN_COUNTER_blocking_waits, 1);
    *counted = true;
    pthread_cond_wait(&standin_progress, &standin_lock);
}

/* ---- the profiler ---- */

const struct standin_profiler *standin_profiler;

void standin_set_profiler(const struct standin_profiler *profiler)
{
    pthread_mutex_lock(&standin_lock);
    standin_profiler = profiler;
    pthread_mutex_unlock(&standin_lock);
}
