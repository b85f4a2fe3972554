/* The memory that the daemon shares with one executor: both rings, the words that say who sleeps, progress, and the
 * records in the rings. Every record begins with its kind; numbers of streams, programs, slots and memories are the
 * daemon's.
 *
 * Both ends are the same program, so structs are shared as they are. The daemon believes nothing in here: it copies and
 * checks. */
#ifndef KOPS_EXECUTOR_RECORD_H
#define KOPS_EXECUTOR_RECORD_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "backend/backend.h"
#include "core/counters.h"
#include "core/kernel.h"

/* A ring of records in memory that two processes share: one writes, the other reads.
 *
 * Each end keeps its own position in its own memory and takes from the shared words only how far the other end is. So a
 * hostile other end can write nonsense, which the reader sees as `corrupt` or as a bad record, but cannot lead an end
 * outside of the ring. Records may change under the reader: it copies one before it checks it. */

enum { RING_BYTES = 1 << 20, RING_RECORD_MAX = RING_BYTES / 2 - 64 };

/* In shared memory; zero at first. */
struct ring_words {
    _Alignas(64) atomic_ullong written;
    _Alignas(64) atomic_ullong read;
};

struct ring {
    struct ring_words *words;
    unsigned char *bytes; /* RING_BYTES of them */
    uint64_t position;
    uint64_t other; /* last known place of the other end */
    uint64_t step;  /* bytes of the record that ring_reserve() or ring_peek() gave, padding included */
    bool corrupt;   /* the other end wrote what no ring holds; nothing more is read */
};

void ring_init(struct ring *r, struct ring_words *words, unsigned char *bytes);

/* Writing: room for a record of `size` bytes (at most RING_RECORD_MAX), aligned to 8; NULL: the ring is full. The
 * record is seen by the other end after ring_publish(). */
void *ring_reserve(struct ring *r, uint32_t size);
void ring_publish(struct ring *r);
/* Writing: looks how far the reader is; whether it has read on since the last look. */
bool ring_read_on(struct ring *r);

/* Reading: the next record, aligned to 8; NULL: none. It stays until ring_next(). */
const void *ring_peek(struct ring *r, uint32_t *ret_size);
void ring_next(struct ring *r);

/* Reading: whether there may be a record; one load of a shared word. */
static inline bool ring_has_record(const struct ring *r)
{
    return atomic_load_explicit(&r->words->written, memory_order_acquire) != r->position;
}

/* ---- the region ---- */

enum {
    EXECUTOR_JOBS_MAX = 8192, /* jobs of an executor at one time; others wait in the daemon */
    EXECUTOR_STREAMS_MAX = 1 << 16,
    EXECUTOR_PROGRAMS_MAX = 1 << 16,
    EXECUTOR_CODES_MAX = 1 << 16,
    EXECUTOR_FUNCTIONS_MAX = 1 << 18,
    EXECUTOR_HANDLES_MAX = (1 << 20) - 1, /* handles of memories: ids of the executor's memory.h */
    EXECUTOR_DTYPES = 32
};

/* The daemon's copy of facts about a device. Written by the executor before it says that it is ready. */
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

/* ---- records ---- */

enum record_kind {
    /* to the executor */
    RECORD_STREAM_NEW,
    RECORD_STREAM_FREE,
    RECORD_SUBMIT,
    RECORD_CANCEL,
    RECORD_PROGRAM_FREE,
    /* to the daemon */
    RECORD_SAMPLES,
    RECORD_DONE,
    RECORD_LOST,
    RECORD_TIMED,
};

struct record_stream {
    uint32_t kind, stream, device, priority;
};

/* A job. Behind it: packed steps, or, with `replay`, every struct step_operand of the program's steps in turn. */
struct record_submit {
    uint32_t kind, slot, serial, stream;
    uint32_t n_steps, warmup, repeat;
    uint32_t program;       /* 0: none */
    uint8_t timing, replay; /* enum backend_timing */
    uint8_t counts, warm;
    uint32_t signal_page; /* 0: no signal */
    uint64_t signal_offset, signal_value, owner, token;
    struct wait_window window; /* in which its end is likely */
};

/* RECORD_CANCEL, RECORD_PROGRAM_FREE */
struct record_number {
    uint32_t kind, number, serial;
};

enum { RECORD_SAMPLES_MAX = 1024 };

/* Every record about a job in the executor begins like this. */
struct record_job {
    uint32_t kind, slot, serial;
};

/* The job's next samples, before its end. */
struct record_samples {
    uint32_t kind, slot, serial, n;
    double us[];
};

/* A job has ended. Behind it: the struct error of one that failed, then the variants of the steps that ran, then the
 * struct backend_counters of one that counted. */
struct record_done {
    uint32_t kind, slot, serial, failed;
    uint32_t ended, n_samples, n_variants;
    uint32_t has_sample; /* 1: `sample` is the last one; those before it came in other records */
    uint32_t timer;      /* enum backend_timer */
    uint32_t timed_later, counted;
    uint32_t prepared;  /* 1: it was prepared, which may have taken long */
    uint32_t overslept; /* 1: it had ended before the executor looked again */
    uint32_t unused;
    double sample;
    uint64_t started_ns, gpu_begin_ns, gpu_end_ns;
    double h2d_us, d2h_us;
};

/* The time of a job that ended with `timed_later`. */
struct record_timed {
    uint32_t kind, unused;
    uint64_t token;
    struct backend_times times;
};

struct record_lost {
    uint32_t kind, device;
};

/* How many bytes the packed step has. */
uint32_t step_packed_bytes(const struct step *step);
/* Packs the step into step_packed_bytes() bytes and returns how many. `memories`: for each operand, in place of its
 * memory. */
uint32_t step_pack(const struct step *step, const uint32_t *memories, unsigned char *into);
/* Reads a packed step of the daemon's from at most `size` bytes. Returns its bytes; 0: there is no whole step. */
uint32_t step_unpack(const unsigned char *from, uint32_t size, struct step *ret_step);

#endif
