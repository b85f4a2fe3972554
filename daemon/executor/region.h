/* The memory that the daemon shares with one executor: both rings, the words that say who sleeps, and progress.
 *
 * Both ends are the same program, so structs are shared as they are. The daemon believes nothing in here: it copies and
 * checks. */
#ifndef KOPS_EXECUTOR_REGION_H
#define KOPS_EXECUTOR_REGION_H

#include "backend/backend.h"
#include "core/kernel.h"
#include "executor/ring.h"

enum {
    EXECUTOR_JOBS_MAX = 8192, /* that an executor has at one time; others wait in the daemon */
    EXECUTOR_STREAMS_MAX = 1 << 16,
    EXECUTOR_PROGRAMS_MAX = 1 << 16,
    EXECUTOR_CODES_MAX = 1 << 16,
    EXECUTOR_FUNCTIONS_MAX = 1 << 18,
    EXECUTOR_HANDLES_MAX = (1 << 20) - 1, /* of memories: ids of the executor's memory_ids.h */
    EXECUTOR_DTYPES = 32
};

/* What the daemon knows of a device without asking again. Written by the executor before it says that it is ready. */
struct executor_device {
    struct backend_device_info info;
    struct kernel_limits limits;
    bool signals, counts;
    unsigned memory_kinds;
    uint32_t peers; /* devices of the executor whose memory its jobs can use, a bit each */
    char variants[OP_COUNT][EXECUTOR_DTYPES][BACKEND_MAX_VARIANTS][STEP_VARIANT_BYTES];
};

struct executor_region {
    struct ring_words to_executor, to_daemon;
    _Alignas(64) atomic_uint executor_sleeps; /* the daemon rings the bell after a record */
    _Alignas(64) atomic_uint daemon_sleeps;
    _Alignas(64) atomic_uint wants_room; /* the daemon sleeps while its ring is full */
    _Alignas(64) atomic_uint issuing;    /* the executor launches a job of many steps */
    _Alignas(64) uint32_t n_devices;
    struct executor_device devices[BACKEND_MAX_DEVICES];
    atomic_uint ended[EXECUTOR_JOBS_MAX + 1]; /* executions of the job in each slot that have ended */
    _Alignas(64) unsigned char to_executor_bytes[RING_BYTES];
    unsigned char to_daemon_bytes[RING_BYTES];
};

/* A new region, mapped here; *ret_fd (close-on-exec, the caller's) maps it elsewhere. NULL: *e. */
struct executor_region *region_new(int *ret_fd, struct error *e);
/* Maps a region of the other process. NULL: *e. */
struct executor_region *region_map(int fd, struct error *e);
/* NULL is allowed; returns NULL. */
struct executor_region *region_unmap(struct executor_region *region);

#endif
