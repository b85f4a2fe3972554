/* A GPU that is none: in place of kernels/cuda and of the executors. It computes nothing. What its jobs do:
 *
 *     a kernel named spin_forever   never ends
 *     a kernel named fault_kernel   faults
 *     a built-in op                 ends once the file that KOPS_FAKE_GATE names is gone
 *     any other kernel              ends at once
 *
 * With executors (executors.isolate is not off) jobs of a domain can be ended while they run: what else runs in the
 * domain ends with device_lost then. Jobs of the common domain are begun anew where one of them does not end. One
 * domain at a time has jobs on the GPU. Without executors a fault loses the device. A job that is behind another one of
 * its stream on the GPU begins there, whatever becomes of it meanwhile. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "backend/memfd.h"
#include "backend/nvml.h"
#include "core/kernel.h"
#include "core/op.h"
#include "executor/executor.h"
#include "executor/tuner.h"
#include "util/clock.h"
#include "util/log.h"

enum { WAKE_NS = 1000000 };

enum { FUNCTION_OTHER = 1, FUNCTION_SPIN, FUNCTION_FAULT };

struct fake_device {
    struct backend_device base; /* first */
    struct backend_host host;
    struct list streams; /* struct backend_stream.link */
    uint64_t turn;       /* the domain that has jobs on the GPU; DOMAIN_COMMON: none */
    uint64_t submitted;  /* jobs so far */
    unsigned unfinished;
    bool lost;
    const char *gate;
    pthread_t waker;
    atomic_bool closing;
};

struct backend_stream {
    struct list link;
    struct fake_device *device;
    struct list jobs; /* struct backend_job.link, the oldest first */
};

struct backend_code {
    uint64_t domain;
};

struct backend_program {
    char unused;
};

static struct fake_device *fake(struct backend_device *base)
{
    return (struct fake_device *)(void *)base;
}

static struct backend_job *first_of(const struct backend_stream *stream)
{
    return list_empty(&stream->jobs) ? NULL : list_entry(list_first(&stream->jobs), struct backend_job, link);
}

/* ---- the ends of jobs ---- */

static void end(struct fake_device *d, struct backend_job *job)
{
    list_remove(&job->link);
    d->unfinished--;
    if (job->signal.page)
        __atomic_store_n((uint64_t *)(void *)(job->signal.page->host + job->signal.offset), job->signal.value,
                         __ATOMIC_RELEASE);
    job->done(job);
}

static void succeed(struct fake_device *d, struct backend_job *job)
{
    job->ended = job->warmup + job->repeat;
    job->n_samples = job->timing ? job->repeat : 0;
    for (unsigned i = 0; i < job->n_samples; i++)
        job->samples[i] = 1;
    for (unsigned i = 0; i < job->n_steps; i++)
        step_copy_variant(job->steps[i].variant_used, "fake");
    end(d, job);
}

static void fail(struct fake_device *d, struct backend_job *job, enum error_code code)
{
    job->failed = true;
    error_set(&job->error, code, "the fake GPU says so");
    end(d, job);
}

static void fault(struct fake_device *d, struct backend_job *job, unsigned step)
{
    job->failed = true;
    error_set(&job->error, ERROR_DEVICE_FAULT, "the kernel made an illegal access");
    error_detail_text(&job->error, "driver", "CUDA_ERROR_ILLEGAL_ADDRESS");
    backend_job_blame(job, step, &job->error);
    end(d, job);
}

/* Jobs of the domain whose executor is lost. */
static void begin_anew(const struct backend_stream *stream, uint64_t domain)
{
    for (struct list *node = stream->jobs.next; node != &stream->jobs; node = node->next) {
        struct backend_job *job = list_entry(node, struct backend_job, link);

        if (job->domain == domain)
            job->started_ns = 0;
    }
}

/* Ends what runs in the domain. */
static void kill_domain(struct fake_device *d, uint64_t domain)
{
    list_for_each_safe (node, after, &d->streams) {
        const struct backend_stream *stream = list_entry(node, struct backend_stream, link);
        struct backend_job *job = first_of(stream);

        if (!job || job->domain != domain || !job->started_ns)
            continue;
        begin_anew(stream, domain);
        job->forced = atomic_load(&job->end_now);
        fail(d, job, job->forced ? ERROR_CANCELLED : ERROR_DEVICE_LOST);
    }
}

/* ---- jobs ---- */

enum fate { FATE_ENDS, FATE_RUNS, FATE_FAULTS };

static enum fate fate_of(const struct fake_device *d, const struct backend_job *job, unsigned *ret_step)
{
    for (unsigned i = 0; i < job->n_steps; i++) {
        const struct plan *p = &job->steps[i].plan;

        *ret_step = i;
        if (p->kind != PLAN_KERNEL) {
            if (d->gate && access(d->gate, F_OK) == 0)
                return FATE_RUNS;
        } else if (p->kernel.function != FUNCTION_OTHER) {
            return p->kernel.function == FUNCTION_SPIN ? FATE_RUNS : FATE_FAULTS;
        }
    }
    return FATE_ENDS;
}

static bool has_turn(const struct fake_device *d, const struct backend_job *job)
{
    return job->domain == DOMAIN_COMMON || job->domain == d->turn;
}

/* Whether a job that the GPU has of this stream is to end, the first or one behind it. */
static bool is_to_end(const struct backend_stream *stream)
{
    if (first_of(stream)->domain == DOMAIN_COMMON)
        return false;
    for (const struct list *node = stream->jobs.next; node != &stream->jobs; node = node->next) {
        const struct backend_job *job = list_entry(node, struct backend_job, link);

        if (job->started_ns && atomic_load(&job->end_now))
            return true;
    }
    return false;
}

/* The stream's first job runs, or could. Returns whether it has ended. */
static bool go_on(struct fake_device *d, const struct backend_stream *stream)
{
    struct backend_job *job = first_of(stream);
    unsigned step = 0;
    enum fate fate;

    if (d->lost) {
        fail(d, job, ERROR_DEVICE_LOST);
        return true;
    }
    if (!job->started_ns && atomic_load(&job->cancel)) {
        fail(d, job, ERROR_CANCELLED);
        return true;
    }
    if (!job->started_ns && !has_turn(d, job))
        return false;
    if (!job->started_ns)
        job->started_ns = clock_now_ns();
    fate = fate_of(d, job, &step);
    if (fate == FATE_FAULTS) {
        fault(d, job, step);
    } else if (fate == FATE_ENDS) {
        succeed(d, job);
    } else if (is_to_end(stream)) {
        kill_domain(d, job->domain);
    } else {
        return false;
    }
    return true;
}

/* Where no job of the domain is left that has the turn, gives it to that of the job that has waited longest. */
static void take_turns(struct fake_device *d)
{
    uint64_t oldest = UINT64_MAX, next = DOMAIN_COMMON;

    list_for_each_safe (node, after, &d->streams) {
        const struct backend_job *job = first_of(list_entry(node, struct backend_stream, link));

        if (!job || job->domain == DOMAIN_COMMON)
            continue;
        if (job->domain == d->turn)
            return;
        if ((uintptr_t)job->impl < oldest) {
            oldest = (uintptr_t)job->impl;
            next = job->domain;
        }
    }
    d->turn = next;
}

static unsigned fake_poll(struct backend_device *base)
{
    struct fake_device *d = fake(base);
    bool again = true;

    while (again) {
        again = false;
        take_turns(d);
        list_for_each_safe (node, after, &d->streams) {
            struct backend_stream *stream = list_entry(node, struct backend_stream, link);

            while (first_of(stream) && go_on(d, stream))
                again = true;
        }
    }
    return d->unfinished;
}

static bool fake_submit(struct backend_stream *stream, struct backend_job *job)
{
    struct fake_device *d = stream->device;
    const struct backend_job *first = first_of(stream);

    /* It goes to the GPU's queue behind those that are there. */
    if (first && first->started_ns && first->domain == job->domain)
        job->started_ns = clock_now_ns();
    job->impl = (void *)(uintptr_t)++d->submitted;
    list_append(&stream->jobs, &job->link);
    d->unfinished++;
    d->host.wake(d->host.context);
    return true;
}

/* ---- devices ---- */

static void *wake_main(void *argument)
{
    struct fake_device *d = argument;
    const struct timespec pause = {.tv_nsec = WAKE_NS};

    while (!atomic_load(&d->closing)) {
        nanosleep(&pause, NULL);
        d->host.wake(d->host.context);
    }
    return NULL;
}

static int open_one(const struct backend_config *config, const struct backend *backend, const struct backend_host *host,
                    struct backend_device **ret_devices, unsigned *ret_count, struct error *e)
{
    struct fake_device *d = calloc(1, sizeof(*d));

    (void)config;
    if (!d)
        return error_set(e, ERROR_OUT_OF_MEMORY, "no memory for a device");
    d->base = (struct backend_device){
        .backend = backend,
        .info = {.name = "Fake GPU",
                 .uuid = "GPU-00000000-0000-0000-0000-00000000fa4e",
                 .arch = "sm_90",
                 .memory_bytes = 1U << 30,
                 .compute_units = 4},
        .signals = true,
        .ends = true,
    };
    d->host = *host;
    d->gate = getenv("KOPS_FAKE_GATE");
    list_init(&d->streams);
    if (pthread_create(&d->waker, NULL, wake_main, d) != 0) {
        free(d);
        return error_set(e, ERROR_OUT_OF_MEMORY, "no thread for a device");
    }
    *ret_devices = &d->base;
    *ret_count = 1;
    return 0;
}

static void fake_close(struct backend_device *base)
{
    struct fake_device *d = fake(base);

    atomic_store(&d->closing, true);
    pthread_join(d->waker, NULL);
    free(d);
}

static const char *const *fake_variants(struct backend_device *device, const struct op *op, enum dtype dtype)
{
    static const char *const variants[] = {"fake", NULL};

    (void)device, (void)op, (void)dtype;
    return variants;
}

static int fake_stream_new(struct backend_device *base, enum backend_priority priority,
                           struct backend_stream **ret_stream, struct error *e)
{
    struct backend_stream *stream = calloc(1, sizeof(*stream));

    (void)priority;
    if (!stream)
        return error_set(e, ERROR_OUT_OF_MEMORY, "no memory for a stream");
    stream->device = fake(base);
    list_init(&stream->jobs);
    list_append(&stream->device->streams, &stream->link);
    *ret_stream = stream;
    return 0;
}

static void fake_stream_free(struct backend_stream *stream)
{
    list_remove(&stream->link);
    free(stream);
}

static void fake_arm(struct backend_device *device)
{
    (void)device; /* the waker always runs */
}

static void fake_abandon(struct backend_device *base, const struct error *why)
{
    struct fake_device *d = fake(base);

    (void)why;
    list_for_each_safe (node, after, &d->streams) {
        begin_anew(list_entry(node, struct backend_stream, link), DOMAIN_COMMON);
    }
}

static void fake_program_free(struct backend_device *device, struct backend_program *program)
{
    (void)device;
    free(program);
}

/* ---- memory ---- */

static int fake_memory_alloc(struct backend_device *device, uint64_t size, struct backend_memory **ret_memory,
                             int *ret_fd, struct error *e)
{
    struct backend_memory *memory;

    if (memfd_new(size, &memory, ret_fd, e) < 0)
        return -1;
    memory->kind = MEMORY_CUDA_VMM;
    memory->device = device;
    *ret_memory = memory;
    return 0;
}

static void fake_memory_close(struct backend_memory *memory)
{
    memory->kind = MEMORY_MEMFD;
    memfd_unmap(memory);
}

static int fake_memory_attach(struct backend_device *device, struct backend_memory *memory, struct error *e)
{
    (void)device;
    (void)memory;
    (void)e;
    return 0;
}

/* ---- kernels of users ---- */

static int fake_code_load(struct backend_device *device, uint64_t domain, const void *image, size_t size,
                          struct backend_code **ret_code, struct error *e)
{
    struct backend_code *code = calloc(1, sizeof(*code));

    (void)device;
    (void)image;
    (void)size;
    if (!code)
        return error_set(e, ERROR_OUT_OF_MEMORY, "no memory for code");
    code->domain = domain;
    log_info("fake_load", "domain=%llx", (unsigned long long)domain);
    *ret_code = code;
    return 0;
}

static void fake_code_unload(struct backend_device *device, struct backend_code *code)
{
    (void)device;
    log_info("fake_unload", "domain=%llx", (unsigned long long)code->domain);
    free(code);
}

static int fake_code_function(struct backend_device *device, struct backend_code *code, const char *lowered,
                              struct backend_function *ret_function, struct error *e)
{
    (void)device;
    (void)code;
    (void)e;
    *ret_function = (struct backend_function){
        .id = strstr(lowered, "spin_forever")   ? FUNCTION_SPIN
              : strstr(lowered, "fault_kernel") ? FUNCTION_FAULT
                                                : FUNCTION_OTHER,
        .registers = 8,
        .max_threads = 1024,
    };
    return 0;
}

static void fake_kernel_limits(struct backend_device *device, struct kernel_limits *ret_limits)
{
    (void)device;
    *ret_limits = (struct kernel_limits){.max_threads = 1024,
                                         .max_block = {1024, 1024, 64},
                                         .max_grid = {1U << 30, 65535, 65535},
                                         .max_shared = 48 << 10,
                                         .multiprocessors = 4};
}

/* ---- the tables ---- */

static const struct backend fake_backend;

static int fake_open(const struct backend_config *config, const struct backend_host *host,
                     struct backend_device **ret_devices, unsigned max, unsigned *ret_count, struct error *e)
{
    (void)max;
    return open_one(config, &fake_backend, host, ret_devices, ret_count, e);
}

static const struct backend fake_backend = {
    .abi = BACKEND_ABI,
    .name = "cuda",
    .open = fake_open,
    .close = fake_close,
    .variants = fake_variants,
    .memory_alloc = fake_memory_alloc,
    .memory_close = fake_memory_close,
    .memory_attach = fake_memory_attach,
    .stream_new = fake_stream_new,
    .stream_free = fake_stream_free,
    .submit = fake_submit,
    .program_free = fake_program_free,
    .poll = fake_poll,
    .arm = fake_arm,
    .conditions = nvml_conditions,
    .code_load = fake_code_load,
    .code_unload = fake_code_unload,
    .code_function = fake_code_function,
    .kernel_limits = fake_kernel_limits,
    .abandon = fake_abandon,
};

/* What main() has of executors. */

const struct gpu_backend cuda_backend;

const struct backend *executor_backend(const struct gpu_backend *gpus)
{
    (void)gpus;
    return &fake_backend;
}

bool executor_wanted(int argc, char **argv)
{
    (void)argc;
    (void)argv;
    return false;
}

int executor_main(int argc, char **argv, const struct gpu_backend *local)
{
    (void)argc;
    (void)argv;
    (void)local;
    return 1;
}

/* Nothing is tuned here. */
bool tuner_wanted(int argc, char **argv)
{
    (void)argc, (void)argv;
    return false;
}

int tuner_main(int argc, char **argv, const struct gpu_backend *local)
{
    (void)argc, (void)argv, (void)local;
    return 2;
}
