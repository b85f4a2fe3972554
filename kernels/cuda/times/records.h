/* CUPTI's records of kernels: when what was launched began and ended on the GPU.
 *
 * CUPTI has one user a process, so the state is the process's. Records are made only of what lies between begin() and
 * end(), and of graphs. On an H200 a launch costs 0.1 to 0.7 us more while records are made, 0.5 us more once CUPTI has
 * started, and reading what has ended costs 20 us, whether one record or 64. Thread: loop, except where a function says
 * otherwise.
 *
 * Source: CUPTI's activity and callback APIs. */
#ifndef KOPS_CUDA_RECORDS_H
#define KOPS_CUDA_RECORDS_H

#include <stdbool.h>
#include <stdint.h>

/* By the GPU's clock, see clock.h; of records by CLOCK_MONOTONIC: CUPTI makes the times those of a clock that it is
 * given, as it does for other users of CUPTI, so that kernels of several processes have their places in one trace. */
struct cuda_span {
    uint64_t begin_ns, end_ns;
};

enum { RECORDS_TICKETS = 2048 /* that are remembered: older ones are forgotten */ };

/* Starts CUPTI, which takes some 15 ms, unless it was tried before. Before the first graph is instantiated: CUPTI
 * crashes when it meets one that it has not seen made. Not between load_begin() and load_end(). Returns whether there
 * are records. Thread: any; the context is current. */
bool cuda_records_start(void);
/* Whether start() has run. Thread: any. */
bool cuda_records_were_started(void);
/* Whether there are records. Thread: any. */
bool cuda_records_are_on(void);

/* What the calling thread launches from now until end() belongs together, under the number that is returned; never 0.
 * Only while records are on. `kernels`: each has a record, else graphs alone have one, which costs nothing; records of
 * the kernels of a graph make it 1.3 to 1.6 times as long. */
uint64_t cuda_records_begin(bool kernels);
void cuda_records_end(void);

/* The calling thread loads or unloads code, or makes or ends a stream or a graph, between the two calls, wherever jobs
 * may run meanwhile. CUPTI would never return if it were to hand out records then, so loads and records exclude each
 * other: CUPTI holds its lock and wants the context's, the loading thread holds the context's and is to tell CUPTI.
 * Kernels that run in between have records, and the last load_end() hands them out: the first record of a kernel of
 * cuBLASLt takes CUPTI 15 ms on an H200, which no launch of the loop is to pay. load_begin() may wait for a thread that
 * starts CUPTI or hands records out, some ms; and, unless `at_once`, for loads of other threads that keep records back.
 * Calls nest. Thread: any; the context is current. */
void cuda_records_load_begin(bool at_once);
void cuda_records_load_end(void);

/* What the calling thread launches from now on belongs to the ticket again. For an execution that end() interrupted. */
void cuda_records_resume(uint64_t ticket);

/* What is launched from now on leaves no record, so it costs no more than else, until the next begin(). */
void cuda_records_pause(void);

/* Has CUPTI hand out the buffers in which all launches have ended. A launch's record goes to the buffer that the one
 * before went to, unless that was handed out or is full: where launches follow each other without a pause, records of
 * what has ended come later. Returns false while a thread loads code: the last load_end() hands the records out. */
bool cuda_records_flush(void);

enum cuda_record_state { RECORD_PENDING, RECORD_READY, RECORD_MISSING };
/* READY: from the first kernel's begin to the last one's end. MISSING: nothing was launched, or it was forgotten. */
enum cuda_record_state cuda_records_read(uint64_t ticket, struct cuda_span *ret);

#endif
