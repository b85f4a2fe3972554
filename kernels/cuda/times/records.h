/* CUPTI's records of kernels: when they began and ended on the GPU.
 *
 * CUPTI has one user per process. Records are made between begin() and end(), and of graphs. On an H200 a launch takes
 * 0.1 to 0.7 us longer while records are made, and 0.5 us longer once CUPTI has started; a flush takes 20 us, whether
 * of one record or 64. Thread: loop, except where a function says otherwise.
 *
 * Source: CUPTI's activity and callback APIs. */
#ifndef KOPS_CUDA_RECORDS_H
#define KOPS_CUDA_RECORDS_H

#include <stdbool.h>
#include <stdint.h>

/* When a kernel ran. Stamps have the GPU's clock. Records have CLOCK_MONOTONIC, which CUPTI is given, so that one trace
 * can show kernels of several processes. */
struct cuda_span {
    uint64_t begin_ns, end_ns;
};

enum { RECORDS_TICKETS = 2048 /* tickets that are kept; older ones are forgotten */ };

/* Starts CUPTI, which takes some 15 ms, unless it was tried before. Call before the first graph is made, since CUPTI
 * crashes at a graph that it did not see being made, and not between load_begin() and load_end(). Returns whether
 * records can be made. Thread: any; the context is current. */
bool cuda_records_start(void);
bool cuda_records_were_started(void);
bool cuda_records_are_on(void);

/* Returns a ticket, never 0, for the calling thread's launches until end(). Call only while records are on. `kernels`:
 * record each kernel; otherwise only graphs are recorded as a whole, which costs nothing. Records of its kernels make
 * a graph take 1.3 to 1.6 times as long. */
uint64_t cuda_records_begin(bool kernels);
void cuda_records_end(void);

/* A load: call load_begin() before and load_end() after loading or unloading code, and making or destroying a stream or
 * a graph, wherever jobs may run meanwhile. Loads and flushes exclude each other, since they would deadlock: a flush
 * holds CUPTI's lock and takes the context's, a load holds the context's lock and takes CUPTI's.
 *
 * Kernels are recorded during loads, and the last load_end() flushes the records: the first record of a kernel of
 * cuBLASLt takes CUPTI 15 ms on an H200, which must not delay a launch of the loop. load_begin() may wait some ms for a
 * thread that starts CUPTI or flushes, and, unless `at_once`, for a flush that other loads delay. Calls nest. Thread:
 * any; the context is current. */
void cuda_records_load_begin(bool at_once);
void cuda_records_load_end(void);

/* Undoes end(): launches belong to the ticket again. */
void cuda_records_resume(uint64_t ticket);

/* Stops recording until the next begin(). */
void cuda_records_pause(void);

/* Flushes: CUPTI delivers buffers in which all launches have ended. Launches share a buffer until it is delivered or
 * full, so records come late when launches follow each other without a pause. False: code is being loaded, and the
 * last load_end() flushes. */
bool cuda_records_flush(void);

enum cuda_record_state { RECORD_PENDING, RECORD_READY, RECORD_MISSING };
/* Reads a ticket's record. READY: *ret is from the first kernel's begin to the last one's end. MISSING: nothing was
 * launched, or the ticket was forgotten. */
enum cuda_record_state cuda_records_read(uint64_t ticket, struct cuda_span *ret);

#endif
