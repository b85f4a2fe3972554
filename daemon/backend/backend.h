/* The interface between the server and the code that runs kernels.
 *
 * A backend is a struct of functions. The server has two: kernels/host, and the front of the executors
 * (executor/front.h). An executor has kernels/cuda behind the same interface, with a few more functions (struct
 * gpu_backend). A test may provide another. The server never sees CUDA, a backend never sees a connection.
 *
 * Threads: "loop" functions run on the server's loop thread only and never block. "any" functions may run on any
 * thread, several at once, and may block; a backend makes its own context current in them.
 *
 * Ownership: a job and all it points to belong to the server, which keeps them unchanged from submit() until the job's
 * done() was called. Jobs use memories only while the server holds these open. */
#ifndef KOPS_BACKEND_BACKEND_H
#define KOPS_BACKEND_BACKEND_H

#include <math.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "backend/conditions.h"
#include "core/step.h"
#include "proto/wait.h"
#include "util/error.h"
#include "util/list.h"

enum {
    BACKEND_ABI = 1,
    BACKEND_MAX_DEVICES = 32,  /* devices of all backends together */
    BACKEND_MAX_VARIANTS = 12, /* variants of one op on one device */
    BACKEND_IPC_HANDLE_SIZE = 64
};

struct backend;
struct backend_device;
struct backend_counters; /* core/counters.h */
struct kernel_limits;    /* core/kernel.h */
struct tuning_pace;      /* core/tuning.h, like the next three */
struct tuning_request;
struct tuning_result;
struct tuning_table;
struct backend_stream;  /* the backend's own: a queue whose jobs run in order */
struct backend_program; /* the backend's own: data that makes running the same steps again faster */

/* ---- devices ---- */

struct backend_device_info {
    char name[128];
    char uuid[48]; /* "GPU-…" in nvidia-smi's form, or "host" */
    char arch[16]; /* "sm_90", "avx512", … */
    uint64_t memory_bytes;
    unsigned compute_units;
    bool shared;    /* other processes' work runs in the same context (MPS): a fault of theirs is ours, too */
    bool clusters;  /* the driver launches kernels with clusters */
    bool exclusive; /* only one process at a time can have a context on the device: a second executor would get none */
};

/* First member of every backend's own device struct. */
struct backend_device {
    const struct backend *backend;
    unsigned index; /* among all devices of the daemon; set by the registry, slot in backend_memory.attached */
    struct backend_device_info info;
    bool signals; /* set by the backend: jobs here may have a signal */
    bool counts;  /* set by the backend: jobs of a profiling domain may ask for counters */
    bool ends;    /* set by the backend: a job of a domain ends soon after job->end_now, even while it runs */
    bool active;  /* set by poll(): progress that leads to an end soon; reset by the loop */
    bool lost;    /* set by the backend, on the loop thread: a sticky fault, nothing will run here again */
};

/* Times of work on a device. */
struct backend_times {
    uint64_t begin_ns, end_ns; /* CLOCK_MONOTONIC; 0: not known */
    double us;
};

/* Functions that a backend calls. wake() makes the loop call poll() soon, and may be called from any thread. timed() is
 * called on the loop thread, from poll() or arm(), for jobs with timed_later; NULL: there are none. */
struct backend_host {
    void (*wake)(void *context);
    void *context;
    void (*timed)(void *context, uint64_t token, const struct backend_times *times);
};

/* Settings that concern backends; strings live as long as the daemon. Zero or NULL: the backend's default. */
struct backend_config {
    unsigned host_threads;      /* worker threads of the host device; 0: one a core that the process may use */
    const char *host_blas;      /* "auto", "none", or a library's path */
    const char *host_onednn;    /* "auto", "none", or a path of oneDNN */
    bool host_first_variant;    /* the host runs gemm's first variant; false: the fastest one, as measured in use */
    const char *cuda_driver;    /* path of libcuda, "none" to do without; NULL: libcuda.so.1 */
    const char *cuda_blaslt;    /* path of cuBLASLt, "none" to do without; NULL: the usual names */
    const char *cuda_cupti;     /* path of CUPTI, "off" to do without; NULL: the usual names and places */
    bool cuda_cupti_early;      /* start CUPTI with a context, not for the first work that it may time */
    bool cuda_blaslt_late;      /* load cuBLASLt for the first gemm only; variants() names it all the same */
    uint64_t cuda_repack_bytes; /* scratch for copies of gemm's operands, on each device; 0: none is copied */
    const struct tuning_table *tuning; /* choices of tuning; NULL: nothing is looked up */
    int tuning_fd;                     /* the table's descriptor, for executors; meaningless where `tuning` is NULL */
    uint64_t spin_us;                  /* time that an executor polls before it sleeps */
    bool may_poll;                     /* poll for the end of jobs when it is likely: there are enough processors */
    unsigned executors_max;            /* processes at one time, the common one and spares included; 0: 8 */
    unsigned executors_active;         /* domains that have work on a GPU at one time; 0: 1 */
    unsigned executors_exclusive_ms;   /* longest time that an exclusive job keeps other users' jobs waiting; 0: 50 */
    unsigned executors_late_ms;        /* time that others wait for a domain's work after its turn is over; 0: 25 */
    unsigned executors_longest_s;      /* longest job of users' kernels while others wait for the GPU; 0: 2 */
    unsigned executors_spares;         /* processes to keep ready for new domains */
    unsigned executors_sandbox;        /* enum executor_sandbox */
    /* User of executors' processes, where the daemon is root; "none": root; NULL: a usual one. */
    const char *executors_user;
    bool executors_counters_privileged; /* counters use the daemon's privilege, see executor/confine.h */
};

/* A domain: the jobs, code and processes of one user, or of one connection. Its kernels share an executor. */
enum { DOMAIN_COMMON = 0 /* jobs without code of users */ };

/* Returns the domain of a connection, whose number is never 0, or of a user, with `connection` 0. Numbers wrap after
 * 2³¹ connections. */
static inline uint64_t domain_of(uint32_t uid, uint64_t connection)
{
    return (uint64_t)1 << 63 | (uint64_t)uid << 31 | (connection & 0x7fffffff);
}

/* Returns the domain of a connection that counts: it has a process of its own, and one job at a time is alone on the
 * device. */
static inline uint64_t domain_of_profiling(uint32_t uid, uint64_t connection)
{
    return domain_of(uid, connection) & ~((uint64_t)1 << 63);
}

static inline bool domain_is_profiling(uint64_t domain)
{
    return domain != DOMAIN_COMMON && !(domain >> 63);
}

static inline uint64_t domain_connection(uint64_t domain)
{
    return domain & 0x7fffffff;
}

static inline bool domain_is_of_connection(uint64_t domain)
{
    return domain_connection(domain) != 0;
}

static inline uint32_t domain_owner(uint64_t domain)
{
    return (uint32_t)(domain >> 31);
}

/* A process that does a backend's work. */
enum { BACKEND_MAX_PROCESSES = 64 /* at one time */ };
enum backend_process_state { PROCESS_STARTING, PROCESS_SPARE, PROCESS_SERVING, PROCESS_ENDING };

struct backend_process {
    int pid;
    enum backend_process_state state;
    uint64_t domain;     /* the domain that it serves, is started for, or served; DOMAIN_COMMON for a spare */
    unsigned jobs;       /* jobs that it has now */
    uint64_t started_ns; /* CLOCK_MONOTONIC */
    uint64_t device_ns;  /* time in which it had work on the GPUs */
};

struct backend_process_counts {
    uint64_t started, replaced, faults, ended_jobs; /* ended_jobs: ended by job->end_now */
};

/* ---- memory ---- */

enum backend_memory_kind { MEMORY_MEMFD, MEMORY_CUDA_IPC, MEMORY_CUDA_VMM, MEMORY_CUDA_POOL };

/* Memory that is mapped into the daemon. Made by memory_import(), memory_alloc() or backend/memory.h. */
struct backend_memory {
    enum backend_memory_kind kind;
    uint64_t size; /* usable bytes */
    bool writable;
    unsigned char *host;           /* MEMORY_MEMFD: address of its mapping; else NULL */
    uint64_t address;              /* device memory: device pointer; else 0 */
    struct backend_device *device; /* device memory: the device that holds it; NULL for a memfd */
    bool made;                     /* made by memory_alloc(): no other memory is the same */
    void *impl;                    /* the device backend's own */
    int fd;                        /* MEMORY_MEMFD: a descriptor of it where executors need one (memory.h); else -1 */
    uint64_t file;                 /* MEMORY_MEMFD: number of its file, which all its mappings share; else 0 */
    bool address_taken;            /* MEMORY_MEMFD: a device could not release `host`; set by memory_detach() */
    /* MEMORY_MEMFD: data that a device's backend keeps for it (pinning), by device index. Made when a job is prepared,
     * under the backend's own lock; given back by memory_detach(). */
    void *attached[BACKEND_MAX_DEVICES];
};

enum { BACKEND_IMPORT_FDS = 16 }; /* as many as a message carries */

/* An allocation to import. The descriptors stay the caller's, who may close them once the call has ended. */
struct backend_import {
    enum backend_memory_kind kind;
    unsigned char handle[BACKEND_IPC_HANDLE_SIZE]; /* MEMORY_CUDA_IPC; MEMORY_CUDA_POOL: the pointer's export data */
    uint64_t size;                                 /* declared by the exporter */
    bool writable;
    unsigned n_fds; /* MEMORY_CUDA_VMM: allocations in address order; MEMORY_CUDA_POOL: one, the pool's */
    int fds[BACKEND_IMPORT_FDS];
    /* MEMORY_CUDA_VMM: size of each allocation; 0 for the first: all of `size`. */
    uint64_t fd_bytes[BACKEND_IMPORT_FDS];
};

/* ---- compiled code of users ---- */

struct backend_code; /* the backend's own: a binary that is loaded on one device */

/* An entry of the code: a plain value that is valid as long as the code is loaded. */
struct backend_function {
    uint64_t id; /* the backend's own: plan_kernel.function */
    unsigned registers, static_shared, local_bytes, const_bytes, max_threads;
};

/* A binary of the backend's own kernels, which clients launch in their own contexts. Lives as long as the daemon. */
struct backend_image {
    const void *data;
    size_t size;
    uint64_t layout; /* layout of the kernels' parameters: another number means an incompatible layout */
};

/* Work that calls code_load() and code_function(), where these may take as long as kernels of their domain run. */
struct backend_work {
    /* Returns 0, or -1: then run() may be called again, where the process of the domain was lost. */
    int (*run)(struct backend_work *work);
    /* Called on the loop. `refused`: run() was not called, or its process was lost; NULL: it was called. */
    void (*done)(struct backend_work *work, const struct error *refused);
};

/* ---- jobs ---- */

/* Low work is submitted only while the device has no other work; a backend may treat it like normal work. */
enum backend_priority { PRIORITY_NORMAL, PRIORITY_HIGH, PRIORITY_LOW, PRIORITY_COUNT };

/* A 64-bit word of shared memory that is written behind a job's work, in the order of its stream. */
struct backend_signal {
    struct backend_memory *page; /* a memfd that memory_attach() attached; NULL: no signal */
    uint64_t offset, value;
};

/* The way that executions are timed. */
enum backend_timing {
    TIMING_NONE,      /* not timed; see times_always */
    TIMING_STATISTIC, /* time one execution at no cost to it. Its time may come later, by host->timed() */
    TIMING_NOW,       /* by the best way that has the time once they have ended */
    TIMING_EXACT, /* by the driver's records of the kernels, where there are any; the end of the job waits for them */
};

/* Source of the times. */
enum backend_timer { TIMER_EVENTS, TIMER_KERNEL /* the kernels themselves */, TIMER_CUPTI, TIMER_KINDS };

struct backend_job {
    /* Set by the server before submit(). */
    struct step *steps;           /* an execution of the job runs all of them, in order */
    unsigned n_steps;             /* ≥ 1 */
    uint32_t warmup, repeat;      /* repeat ≥ 1 */
    enum backend_timing timing;   /* STATISTIC: for one execution */
    uint64_t token;               /* STATISTIC: argument of host->timed(); 0: a time that comes later is not wanted */
    uint64_t owner;               /* owner of the job: a backend that chooses among jobs divides its time by owner */
    uint64_t domain;              /* DOMAIN_COMMON only where no step is a user's kernel */
    double *samples;              /* room for `repeat` execution times, µs */
    struct backend_signal signal; /* written also when the job fails or is cancelled */
    struct backend_program **program; /* place for the data that replays these steps; NULL: not wanted */
    /* Place for the counters of the only step; NULL: not wanted. The job is alone on the device, works on copies of its
     * operands and writes to no memory of the client. Only where device->counts, in a domain_of_profiling(). */
    struct backend_counters *counters;
    bool exclusive; /* keep all other jobs off the device, for a bounded time. Only where device->ends */
    void (*done)(struct backend_job *job); /* called once, on the loop thread, from poll() */
    /* Both on the loop thread, from poll(); not called where backend->withdraw is NULL. go_on(): submit() may take the
     * job now, which it refused or gave back. again(): the backend gives a job back that it took; the job goes to the
     * head of its queue. The jobs of a stream come back from the last to the first. With `failed`, the job is not
     * submitted again: it ends with `error`, after the jobs before it. */
    void (*go_on)(struct backend_job *job);
    void (*again)(struct backend_job *job);

    /* Set by the server at any time, read by any thread: start nothing more of this job, end it soon. */
    atomic_bool cancel;
    /* Where device->ends: end a job of a domain soon even while it runs, at any cost to its domain. Set before
     * `cancel`, or later: then backend->cancel() is called once more. */
    atomic_bool end_now;

    /* Set by submit(): the window in which the job's end is likely; 0: nothing is known. */
    struct wait_window window;

    /* Set by the backend before done(). */
    bool failed; /* `error` says why; a job that saw `cancel` fails with ERROR_CANCELLED */
    struct error error;
    bool forced;         /* the job ran and was ended because of `end_now`: it failed with ERROR_CANCELLED */
    uint64_t started_ns; /* CLOCK_MONOTONIC: the device got the first work; 0: never. Where device->ends, set at once:
                            among jobs that stand still, a job that began is at fault */
    uint32_t ended;      /* executions that have ended so far, warm-up included; kept up to date while it runs */
    bool was_alone;      /* with `exclusive`: no other job was on the device meanwhile */
    uint32_t n_samples;  /* executions timed; 0 without timing, but see times_always */
    enum backend_timer timer;          /* source of the samples */
    bool timed_later;                  /* no sample so far, but host->timed() may be called */
    bool prepared;                     /* a thread prepared the job before it began, which may have taken long */
    uint64_t gpu_begin_ns, gpu_end_ns; /* CLOCK_MONOTONIC: of the timed executions on the device; 0: not known */
    double h2d_us, d2h_us; /* NAN: no copy, or not timed; copies between the steps of a job count as execution */
    double wall_us; /* time on this process's clock from handing the job to another process until its end was seen; NAN:
                       this process did the work, or the time is not known */

    /* The backend's own, from submit() until done() or withdraw(). */
    struct list link;
    void *impl;
    unsigned begun_anew; /* times that the job was begun anew, because its process was lost */
};

/* Clears what a backend sets: once, before submit(). */
static inline void backend_job_begin(struct backend_job *job)
{
    job->failed = job->forced = job->was_alone = job->timed_later = job->prepared = false;
    job->started_ns = job->gpu_begin_ns = job->gpu_end_ns = 0;
    job->ended = job->n_samples = 0;
    job->timer = TIMER_EVENTS;
    job->h2d_us = job->d2h_us = job->wall_us = NAN;
    job->window = (struct wait_window){0};
    job->begun_anew = 0;
}

/* True when no step has anything to write. */
static inline bool backend_job_is_empty(const struct backend_job *job)
{
    for (unsigned i = 0; i < job->n_steps; i++)
        if (!plan_is_empty(&job->steps[i].plan))
            return false;
    return true;
}

/* Names the step that an error belongs to, where there are several. */
static inline void backend_job_blame(const struct backend_job *job, unsigned step, struct error *e)
{
    if (job->n_steps > 1)
        error_detail_number(e, "op_index", step);
}

/* ---- the functions ---- */

struct backend {
    unsigned abi;     /* BACKEND_ABI */
    const char *name; /* "host", "cuda": hello's `backend` */
    bool host_memory; /* memory_alloc() makes the host's memory */
    bool keeps_fds;   /* device memory keeps a copy of each descriptor that it was opened with */
    /* The first thread, while it is alone: sets variables of the environment that libraries read. NULL: there are
     * none. */
    void (*prepare_process)(void);

    /* any. Finds and opens every device; fills `ret_devices` (room for `max`). A missing driver or device is no error:
     * 0 devices. See activate(). */
    int (*open)(const struct backend_config *config, const struct backend_host *host,
                struct backend_device **ret_devices, unsigned max, unsigned *ret_count, struct error *e);
    /* any, after the last job's done(). Frees a device with all that belongs to it, active or not. */
    void (*close)(struct backend_device *device);

    /* any. Returns the NULL-terminated names of the kernels for `op` and `dtype` on the device, best first; they live
     * as long as the device. NULL: not offered. */
    const char *const *(*variants)(struct backend_device *device, const struct op *op, enum dtype dtype);

    /* any. Opens another process's allocation; memory->size is the allocation's true size (import->size is only what
     * the exporter declared: out_of_bounds when less is there). Errors: invalid_handle, unsupported, out_of_memory,
     * device_lost. NULL where the backend has no such memory. */
    int (*memory_import)(struct backend_device *device, const struct backend_import *import,
                         struct backend_memory **ret_memory, struct error *e);
    /* any. Zeroed memory of at least `size` bytes and a descriptor (close-on-exec, the caller's) that maps it. */
    int (*memory_alloc)(struct backend_device *device, uint64_t size, struct backend_memory **ret_memory, int *ret_fd,
                        struct error *e);
    /* any. Unmaps memory of memory_import() or memory_alloc(); no job may use it. */
    void (*memory_close)(struct backend_memory *memory);
    /* any. Gives back attached[device->index] of a memfd; no job may use it. Sets memory->address_taken where the
     * device does not release it. NULL where nothing is ever attached. */
    void (*memory_detach)(struct backend_device *device, struct backend_memory *memory);
    /* any. Makes a writable memfd known to the device, for signals; memory_detach() undoes it. NULL where
     * device->signals is never set. */
    int (*memory_attach)(struct backend_device *device, struct backend_memory *memory, struct error *e);

    /* loop. Makes a queue for one stream of one connection; jobs of different streams may overlap. */
    int (*stream_new)(struct backend_device *device, enum backend_priority priority, struct backend_stream **ret_stream,
                      struct error *e);
    /* loop. No job may be left on the stream. */
    void (*stream_free)(struct backend_stream *stream);

    /* any. Checks a step as far as only the backend can: variant, limits of the device. Reads device->info only, and
     * asks no driver. NULL: nothing to check. */
    int (*check)(struct backend_device *device, const struct step *step, struct error *e);

    /* loop. Takes the job, which runs behind the stream's earlier jobs; never fails: errors come through done(). False:
     * not now. The job stays at the head of the caller's queue, to be submitted again after job->go_on(), or after the
     * end of a job of the stream. */
    bool (*submit)(struct backend_stream *stream, struct backend_job *job);
    /* loop. Told that a job that submit() refused, or that came back, will not be submitted. NULL: submit() takes every
     * job. */
    void (*withdraw)(struct backend_job *job);

    /* loop. Told that job->cancel or job->end_now of a submitted job was set. NULL: the backend reads the flags in time
     * by itself. */
    void (*cancel)(struct backend_job *job);

    /* loop. Frees the data that a backend kept in *job->program; no job may use it. NULL where it keeps nothing. */
    void (*program_free)(struct backend_device *device, struct backend_program *program);

    /* loop. Makes progress without blocking: issues work that may be issued, calls done() of jobs that have ended, in
     * submission order within a stream. Returns the number of unfinished jobs. */
    unsigned (*poll)(struct backend_device *device);
    /* loop. Called after poll() left jobs unfinished, before the loop sleeps: host->wake() must come once poll() has
     * something to do. */
    void (*arm)(struct backend_device *device);

    /* Executions are timed even where job->timing does not ask for it. */
    bool times_always;

    /* Completions are seen by polling only until arm() is called: polling for a while before sleeping pays. */
    bool spin;
    /* loop. Tells whether a job of the device is likely to end so soon that polling pays; arm() has the loop woken
     * before the next such time. NULL: not known. */
    bool (*ends_soon)(const struct backend_device *device, uint64_t now_ns);

    /* any. Returns the kinds that memory_import() opens on this device: bits 1 << enum backend_memory_kind. NULL: none.
     */
    unsigned (*memory_kinds)(struct backend_device *device);
    /* any, one call at a time for one memory; jobs may use it meanwhile. Maps the allocations of `more` behind those of
     * a MEMORY_CUDA_VMM import; together they may not exceed the size declared then. `ret_size`: bytes that are mapped
     * now; the caller sets memory->size. NULL where memory_kinds() never contains MEMORY_CUDA_VMM. */
    int (*memory_extend)(struct backend_memory *memory, const struct backend_import *more, uint64_t *ret_size,
                         struct error *e);
    /* loop. Tells whether jobs of `device` can use memory of `owner`, another device of this backend. NULL: never. */
    bool (*can_access)(struct backend_device *device, struct backend_device *owner);

    /* User kernels: steps whose plan is a PLAN_KERNEL. All NULL where there are none. */
    /* any; may block. Loads code, which only jobs of `domain` launch; `image` must stay until code_unload(). Errors:
     * unsupported (made for another architecture), invalid_argument (no binary), out_of_memory, device_lost. */
    int (*code_load)(struct backend_device *device, uint64_t domain, const void *image, size_t size,
                     struct backend_code **ret_code, struct error *e);
    /* loop. Has work->run() called on a thread of the domain's, once the domain has its process, and work->done() from
     * poll(). Never for DOMAIN_COMMON. -1: no memory. NULL: there are no domains. */
    int (*work)(struct backend_device *device, uint64_t domain, struct backend_work *work, struct error *e);
    /* loop. The connection whose domain this is has ended: the domain's process ends with the domain's work. NULL:
     * there are no domains. */
    void (*domain_end)(struct backend_device *device, uint64_t domain);
    /* any; may block. No job may use the code. */
    void (*code_unload)(struct backend_device *device, struct backend_code *code);
    /* any. Finds a function, and allows its launches all dynamic shared memory of the device. */
    int (*code_function)(struct backend_device *device, struct backend_code *code, const char *lowered,
                         struct backend_function *ret_function, struct error *e);
    /* any. Returns the limits of launches on the device; `max_threads` and `static_shared` are a function's. */
    void (*kernel_limits)(struct backend_device *device, struct kernel_limits *ret_limits);

    /* any; never blocks, and needs no device. Finds a binary of the backend's own kernels; false: none has that name.
     * NULL: there are none. */
    bool (*image)(const char *name, size_t length, struct backend_image *ret_image);

    /* any, one call at a time for all devices of the backend; may block. Measures the candidates for the request's
     * step, in memory of its own, and asks `pace` before each measurement. Errors: unsupported (there is nothing to
     * choose among), limit_exceeded, out_of_memory, device_lost, those of the pace. NULL: there is never anything to
     * choose. */
    int (*tune)(struct backend_device *device, const struct tuning_request *request, struct tuning_pace *pace,
                struct tuning_result *ret, struct error *e);
    /* The thread of tune(). Tells whether tune() keeps memory of the devices between two calls; `rest`: gives it back
     * first. NULL: it never does. */
    bool (*tune_rest)(struct backend_device *device, bool rest);
    /* The thread of tune(); may block. Prepares the next tune() as far as that takes no memory of devices. NULL:
     * nothing to prepare. */
    int (*tune_prepare)(struct backend_device *device, struct error *e);
    /* any. Makes tune() fail soon from now on, since the daemon ends. NULL: the pace sees to that. */
    void (*tune_stop)(struct backend_device *device);
    /* any; asks no driver. Tells whether there may be something to choose for steps like this one. NULL: never. */
    bool (*tunes)(const struct step *step);

    /* loop. Replaces the process of a job of DOMAIN_COMMON that does not end, and begins jobs anew there where that is
     * possible. NULL: jobs always end. */
    void (*abandon)(struct backend_device *device, const struct error *why);

    /* loop. Ends the processes of domains, or all processes, and makes no more, since the daemon ends. NULL: there are
     * none. */
    void (*end_processes)(struct backend_device *device, bool all);

    /* loop. Returns a descriptor that becomes readable when poll() has something to do; -1: none. NULL: only
     * host->wake() tells. */
    int (*wake_fd)(struct backend_device *device);

    /* loop. Lists the processes that work for this backend, at most `max`. Returns their number. NULL: it works in this
     * process. */
    unsigned (*processes)(struct backend_device *device, struct backend_process *ret, unsigned max,
                          struct backend_process_counts *ret_counts);

    /* any; may block. Reads the free bytes of the device's memory. -1, or NULL: it cannot tell. */
    int (*memory_free)(struct backend_device *device, uint64_t *ret_bytes);
    /* any; may block as long as a driver does. Reads the device's conditions. NULL: it cannot tell. */
    void (*conditions)(struct backend_device *device, struct backend_conditions *ret);
};

/* The interface of an executor to the GPUs in its own process. */
struct gpu_backend {
    struct backend base; /* without cancel(): jobs' flags are read in time; without work(), abandon(), processes() */

    /* any; may block. Makes the device ready for work: open() only describes it, since a context takes long. Called
     * once, before every other function but check(), variants(), memory_kinds(), kernel_limits() and can_access().
     * After a failure the device is as before. */
    int (*activate)(struct backend_device *device, struct error *e);

    /* any; may block; once the device is active. counters_load() comes first, without a privilege. Where the driver
     * allows counters to administrators only, counters_take() uses its thread's privilege before any user's code is
     * loaded; one job may then count without it. */
    int (*counters_load)(struct backend_device *device, struct error *e);
    int (*counters_take)(struct backend_device *device, struct error *e);
};

extern const struct backend host_backend;
extern const struct gpu_backend cuda_backend; /* only in builds with the CUDA toolkit (KOPS_HAVE_CUDA) */

/* ---- the devices of all backends ----
 *
 * They are opened once at the start, in hello's order: GPUs first, the host last. Thread: loop; the set does not change
 * while the daemon runs. */

struct device_set {
    struct backend_device *all[BACKEND_MAX_DEVICES];
    unsigned count;
    struct backend_device *fallback; /* runs requests whose tensors are all memfds */
};

/* Opens every backend in turn. Having no device at all is an error. */
int devices_open(struct device_set *set, const struct backend *const *backends, unsigned n_backends,
                 const struct backend_config *config, const struct backend_host *host, struct error *e);
void devices_close(struct device_set *set);

/* NULL: no such device. */
struct backend_device *devices_find_uuid(const struct device_set *set, const char *uuid, size_t length);
struct backend_device *devices_find_index(const struct device_set *set, uint64_t index);

#endif
