/* One thread a stream: runs what is queued there, in order, and breaks the context on a stray access.
 *
 * What an operation touches is looked up when its turn comes: a range that is not mapped for the device is what a
 * real device calls an illegal address. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#include "standin.h"
#include "user_kernels.h"

/* Whether the context may make this access to each of the maps that it touches. */
static bool use_is_allowed(const struct region *region, const struct use *use, const struct context *context,
                           bool copies)
{
    for (; region && region->address < use->address + use->size; region = region_find(region->address + region->size))
        if (!region_allows(region, context, use->write, copies))
            return false;
    return true;
}

/* CUDA_SUCCESS, or what the device would answer to the first access that it may not make. */
static CUresult uses_check(const struct stream *stream, const struct op *op)
{
    for (unsigned i = 0; i < op->n_uses; i++) {
        const struct use *use = &op->uses[i];
        const struct region *region = region_find_range(use->address, use->size);

        if (!region || !use_is_allowed(region, use, stream->context, op->kind == OP_COPY)) {
            fprintf(stderr, "cuda_standin: illegal %s of %llu bytes at %#llx (%s)\n", use->write ? "write" : "read",
                    (unsigned long long)use->size, (unsigned long long)use->address,
                    !region ? "not mapped" : "not accessible");
            return CUDA_ERROR_ILLEGAL_ADDRESS;
        }
    }
    return CUDA_SUCCESS;
}

static void run_fill(const struct op *op)
{
    if (op->fill.width == 1) {
        memset(op->fill.to, (int)op->fill.value, op->fill.count);
    } else if (op->fill.width == 2) {
        for (size_t i = 0; i < op->fill.count; i++)
            ((uint16_t *)op->fill.to)[i] = (uint16_t)op->fill.value;
    } else {
        for (size_t i = 0; i < op->fill.count; i++)
            ((uint32_t *)op->fill.to)[i] = op->fill.value;
    }
}

void bytes_copy(unsigned char *to, const unsigned char *from, size_t size)
{
    while (size) {
        struct iovec here = {.iov_base = to, .iov_len = size};
        struct iovec there = {.iov_base = (void *)(uintptr_t)from, .iov_len = size};
        ssize_t n = process_vm_readv(getpid(), &here, 1, &there, 1, 0);

        if (n < 0 && errno != EFAULT)
            memmove(to, from, size); /* not allowed here */
        if (n <= 0)
            return;
        to += n;
        from += n;
        size -= (size_t)n;
    }
}

/* Kernels, copies and fills; a kernel on nothing passes every gate. The mutex is given up while they wait at their gate
 * and while they touch data. Nothing that they use can go meanwhile: frees wait for them. */
static void run_work(struct stream *stream, struct op *op)
{
    bool is_kernel = op->kind == OP_KERNEL, sticky;
    struct context *context = stream->context;
    CUresult r;

    if (is_kernel && op->launch.kernel && kernel_is_idle(op->launch.kernel, op->launch.params)) {
        r = uses_check(stream, op);
        if (r != CUDA_SUCCESS) {
            context_break(context, r);
            return;
        }
        pthread_mutex_unlock(&standin_lock);
        kernel_run(op->launch.kernel, op->launch.params);
        pthread_mutex_lock(&standin_lock);
        return;
    }
    pthread_mutex_unlock(&standin_lock);
    gate_pass(is_kernel ? STANDIN_GATE_kernel : STANDIN_GATE_copy, &context->broken);
    pthread_mutex_lock(&standin_lock);
    if (context->broken)
        return;
    r = control_fault(is_kernel ? "kernel" : "copy", &sticky);
    if (r == CUDA_SUCCESS)
        r = uses_check(stream, op);
    if (r != CUDA_SUCCESS) {
        context_break(context, r);
        return;
    }
    pthread_mutex_unlock(&standin_lock);
    if (is_kernel && op->launch.user)
        r = user_kernel_run(op->launch.user, &op->launch.given, op->launch.params, context);
    else if (is_kernel)
        kernel_run(op->launch.kernel, op->launch.params);
    else if (op->kind == OP_COPY)
        bytes_copy(op->copy.to, op->copy.from, op->copy.size);
    else
        run_fill(op);
    pthread_mutex_lock(&standin_lock);
    if (r == CUDA_SUCCESS)
        r = control_fault(is_kernel ? "kernel_end" : "copy_end", &sticky);
    if (r != CUDA_SUCCESS)
        context_break(context, r);
    else if (is_kernel)
        count(STANDIN_COUNTER_kernels_run, 1);
}

static void run_kernel(struct stream *stream, struct op *op)
{
    const uint64_t begin_ns = now_ns();
    const char *name;

    run_work(stream, op);
    if (!op->call || !standin_profiler)
        return;
    name = op->launch.kernel ? kernel_symbol(op->launch.kernel) : user_kernel_name(op->launch.user);
    standin_profiler->ran(op->call, op->what, name, begin_ns, now_ns(), op->last);
}

static bool value_reached(const struct op *op)
{
    const uint64_t now = __atomic_load_n((uint64_t *)(uintptr_t)op->word.address, __ATOMIC_ACQUIRE);

    return (int64_t)(now - op->word.value) >= 0;
}

static void run_word(struct stream *stream, struct op *op)
{
    struct timespec pause = {.tv_nsec = 50000};
    struct context *context = stream->context;
    CUresult r = uses_check(stream, op);

    if (r != CUDA_SUCCESS) {
        context_break(context, r);
        return;
    }
    if (op->kind == OP_WRITE_VALUE) {
        __atomic_store_n((uint64_t *)(uintptr_t)op->word.address, op->word.value, __ATOMIC_RELEASE);
        count(STANDIN_COUNTER_value_writes, 1);
        return;
    }
    pthread_mutex_unlock(&standin_lock);
    while (!value_reached(op) && !context->broken) {
        nanosleep(&pause, NULL); /* the other side is a plain store, of another process even */
        if (pause.tv_nsec < 200000)
            pause.tv_nsec += 1000; /* many streams may wait for long */
    }
    pthread_mutex_lock(&standin_lock);
}

static void run_record(struct stream *stream, struct op *op)
{
    uint64_t now = now_ns();

    /* Two records in a row never have the same time: a device's clock ticks between them. */
    if (now < stream->last_time + 500)
        now = stream->last_time + 500;
    stream->last_time = now;
    op->mark.event->time = now;
    if (op->mark.event->done < op->mark.generation)
        op->mark.event->done = op->mark.generation;
}

/* True when the head may run: what it waits for has come. */
static bool op_is_ready(const struct stream *stream, const struct op *op)
{
    if (stream->context->broken)
        return true;
    if (op_is_held(stream, op))
        return false;
    if (op->kind == OP_AFTER)
        return op->after.stream->completed >= op->after.number;
    return true;
}

static void op_run(struct stream *stream, struct op *op)
{
    bool broken = stream->context->broken;

    switch (op->kind) {
    case OP_KERNEL:
        if (!broken)
            run_kernel(stream, op);
        break;
    case OP_COPY:
    case OP_FILL:
        if (!broken)
            run_work(stream, op);
        break;
    case OP_WRITE_VALUE:
    case OP_WAIT_VALUE:
        if (!broken)
            run_word(stream, op);
        break;
    case OP_HOST:
        if (!broken) {
            pthread_mutex_unlock(&standin_lock);
            op->host.function(op->host.data);
            pthread_mutex_lock(&standin_lock);
        }
        break;
    case OP_RECORD:
        run_record(stream, op);
        event_unref(op->mark.event);
        break;
    case OP_AFTER:
        stream_unref(op->after.stream);
        break;
    case OP_FREE:
        /* Work of another stream that still uses it was not ordered before the free: keep it mapped, so that the
         * report is what ends the test. */
        if (range_in_use(op->region->address, op->region->size, stream))
            misuse(0, "freed %#llx while another stream uses it", (unsigned long long)op->region->address);
        else
            allocation_end(op->region);
        break;
    }
}

void *stream_main(void *argument)
{
    struct stream *stream = argument;

    pthread_mutex_lock(&standin_lock);
    for (;;) {
        struct op *op = stream->head;

        if (!op && stream->destroyed)
            break;
        if (!op) {
            pthread_cond_wait(&stream->work, &standin_lock);
        } else if (!op_is_ready(stream, op)) {
            pthread_cond_wait(&standin_progress, &standin_lock);
        } else {
            op_run(stream, op);
            stream->head = op->next;
            if (!stream->head)
                stream->tail = &stream->head;
            stream->completed = op->number;
            channel_leave(stream, op);
            free(op);
            count(STANDIN_COUNTER_queued, -1);
            pthread_cond_broadcast(&standin_progress);
        }
    }
    stream_unref(stream);
    pthread_mutex_unlock(&standin_lock);
    return NULL;
}
