/* Batches: ops of one ordered stream, gathered into sequences, that the caller's CUDA stream waits for together.
 *
 * The first request of a batch waits for the CUDA stream. Each request has its own number for `done`; the end of the
 * batch lets the CUDA stream wait for the last one. Sequences start short, so that the GPU is not idle while the first
 * one is gathered. Lock held; functions that send drop it while they wait. */
#ifndef KOPS_CLIENT_BATCH_H
#define KOPS_CLIENT_BATCH_H

#include "ordered.h"

enum kops_code batch_begin(struct kops_client *c, struct ordered_stream *stream, struct kops_error *e);

/* Gathers one op, and sends the gathered ops when they are enough. `run` has its operands resolved for the connection
 * of `generation`. */
enum kops_code batch_add(struct kops_client *c, struct ordered_stream *stream, cuda_queue cuda_stream,
                         const struct wire_run *run, uint32_t generation, uint64_t deadline, struct kops_error *e);

/* Sends the gathered ops. With `waits`, the CUDA stream then waits for them. */
enum kops_code batch_flush(struct kops_client *c, struct ordered_stream *stream, cuda_queue cuda_stream, bool waits,
                           uint64_t deadline, struct kops_error *e);

/* Sends the gathered ops of every stream; no CUDA stream waits. */
enum kops_code batch_flush_all(struct kops_client *c, uint64_t deadline, struct kops_error *e);

/* Sends the gathered ops, and lets the CUDA stream wait for all of the batch. The batch is over. */
enum kops_code batch_end(struct kops_client *c, struct ordered_stream *stream, cuda_queue cuda_stream,
                         uint64_t deadline, struct kops_error *e);

/* Whether a batch is open on a CUDA stream of the current context. */
bool batch_is_open(struct kops_client *c, cuda_queue cuda_stream);

/* Ends a batch that is open on the CUDA stream, and begins it anew, also where an error is returned. Work that this
 * process puts there next runs after the ops so far, and before the later ones. A stream under capture is left as it
 * is: its work runs later. */
enum kops_code batch_settle(struct kops_client *c, cuda_queue cuda_stream, uint64_t deadline, struct kops_error *e);

/* Joins work that is not gathered to a batch: it starts when the batch has started, and nothing waits for it yet. */
void batch_join(struct ordered_stream *stream, struct ordered_work *work);

/* The client is closed: ops that are gathered and not sent are dropped. */
void batch_close_all(struct kops_client *c);

#endif
