/* CUPTI's records of kernels: when they began and ended on the GPU.
 *
 * CUPTI has one user a process. Records are made only between begin() and end(), and of graphs. On an H200 a launch
 * costs 0.1 to 0.7 us more while records are made, 0.5 us more once CUPTI has started; reading what has ended costs 20
 * us, whether one record or 64. Thread: loop, except where a function says otherwise.
 *
 * Source: CUPTI's activity and callback APIs. */
#ifndef KOPS_CUDA_RECORDS_H
#define KOPS_CUDA_RECORDS_H

#include <stdbool.h>
#include <stdint.h>

/* Stamps of kernels have the GPU's clock; records have CLOCK_MONOTONIC, which CUPTI is given, so that kernels of
 * several processes have their places in one trace. */
struct cuda_span {
    uint64_t begin_ns, end_ns;
};

enum { RECORDS_TICKETS = 2048 /* that are remembered: older ones are forgotten */ };

/* Starts CUPTI, which takes some 15 ms, unless it was tried before. Not later than the first graph, since CUPTI
 * crashes at a graph that it has not seen made; not between load_begin() and load_end(). Returns whether there are
 * records. Thread: any; the context is current. */
bool cuda_records_start(void);
bool cuda_records_were_started(void);
bool cuda_records_are_on(void);

/* Launches of the calling thread until end() belong to the ticket that is returned; never 0. Only while records are
 * on. `kernels`: each kernel has a record, else only graphs have, which costs nothing; records of its kernels make a
 * graph 1.3 to 1.6 times as long. */
uint64_t cuda_records_begin(bool kernels);
void cuda_records_end(void);

/* The calling thread loads or unloads code, or makes or ends a stream or a graph, between the two calls, wherever jobs
 * may run meanwhile. CUPTI would never return if it were to hand out records then, so loads and records exclude each
 * other: CUPTI holds its lock and wants the context's, the loading thread holds the context's and is to tell CUPTI.
 *
 * Kernels that run in between have records, and the last load_end() hands them out: the first record of a kernel of
 * cuBLASLt takes CUPTI 15 ms on an H200, which no launch of the loop is to pay. load_begin() may wait some ms for a
 * thread that starts CUPTI or hands records out, and, unless `at_once`, for loads that keep records back. Calls
 * nest. Thread: any; the context is current. */
void cuda_records_load_begin(bool at_once);
void cuda_records_load_end(void);

/* Takes an end() back: launches belong to the ticket again. */
void cuda_records_resume(uint64_t ticket);

/* Launches leave no record until the next begin(). */
void cuda_records_pause(void);

/* Has CUPTI hand out the buffers in which all launches have ended. A launch's record goes to the same buffer as the
 * one before, unless that was handed out or is full: without a pause between launches, records come later. False: a
 * thread loads code, and the last load_end() hands the records out. */
bool cuda_records_flush(void);

enum cuda_record_state { RECORD_PENDING, RECORD_READY, RECORD_MISSING };
/* READY: from the first kernel's begin to the last one's end. MISSING: nothing was launched, or the ticket was
 * forgotten. */
enum cuda_record_state cuda_records_read(uint64_t ticket, struct cuda_span *ret);

#endif
