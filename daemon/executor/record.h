/* Records of the rings between the daemon and an executor. Every record begins with its kind; numbers of streams,
 * programs, slots and memories are the daemon's. */
#ifndef KOPS_EXECUTOR_RECORD_H
#define KOPS_EXECUTOR_RECORD_H

#include "backend/backend.h"
#include "core/counters.h"

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
