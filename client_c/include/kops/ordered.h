/**
 * @file ordered.h
 * @brief Ops as part of a CUDA stream, as asynchronous as kernel launches. <kops/kops.h> includes it.
 *
 * @code
 * kops_enqueue(client, &request, stream, &error);   // returns at once
 * my_kernel<<<grid, block, 0, stream>>>(...);       // runs after the op, and may read its outputs
 * kops_enqueue(client, &next, stream, &error);      // runs after my_kernel
 * kops_synchronize(client, stream, 0, &error);      // waits, and returns errors of earlier calls
 * @endcode
 *
 * **Order.** An enqueued op runs after everything that was put on the stream before the call, and everything put there
 * afterwards runs after the op. No thread waits for that: the two devices' queues wait for each other in memory. Work
 * on other streams is ordered by CUDA events as usual. Any number of streams and of ops may be under way; at the
 * daemon's limits a call waits for earlier ops to end. Freeing an operand needs the care that a kernel's operands need:
 * after the op has ended on the stream.
 *
 * **Errors** of an op come later, as CUDA's do: the next kops_enqueue(), kops_synchronize() or batch call of the client
 * returns the first one since the last report, once. Its message names the op and its number, `detail` has `call`: the
 * number of the kops_enqueue() on this client, from 1. Later work on the stream runs in any case, with the outputs of
 * the failed op undefined.
 *
 * **A daemon that dies or hangs up** lets the streams go on within a second, also while this process is in a call of
 * the driver (cuCtxSynchronize() included): the ops under way fail with KOPS_ERR_CONNECTION_LOST (or the daemon's own
 * error, e.g. KOPS_ERR_DEVICE_LOST, or KOPS_ERR_STALLED when the stream did not get to an op within the daemon's stall
 * timeout), and are never repeated. Ops enqueued afterwards go to the daemon that is started anew.
 *
 * **Needs** the feature `ordered` of the daemon, a current CUDA context (the stream's), and operands that are CUDA
 * device memory of the same GPU; no shared memory. Ordered ops work under MPS without configuration, and are fastest
 * there.
 *
 * **Streams** are CUstreams (cudaStream_t is the same); NULL is the legacy default stream. One of 256 at a time can
 * have ops under way. A stream may be destroyed as soon as CUDA allows it. Each thread's own default stream is a stream
 * of its own. In the daemon these ops use the streams from 255 down: do not use these in kops_options.stream.
 *
 * **Ops here.** With options.where = KOPS_WHERE_HERE an op runs in this process, in the calling thread's current CUDA
 * context: on the stream of kops_enqueue(), or with kops_run() and the ops by name on the legacy default stream, and
 * waited for. The kernel and the checks are the daemon's, and the daemon hands the kernel out once a process. cuBLASLt
 * is not used: products run `skinny`, `small` or `hopper` where that is likely to be faster, else `tiled`. Operands are
 * CUDA device memory; the daemon's statistics have it, its quotas and traces do not. By default an op is the daemon's,
 * but one that is enqueued on a stream under capture is here: a node of the graph, which needs neither client nor
 * daemon afterwards. KOPS_WHERE_DAEMON refuses that. Errors besides the usual ones: no_cuda, unsupported
 * (kernels.hand_out, or client and daemon are of different versions), capturing (an op that waits), device_error, at
 * once.
 *
 * **Threads.** Any thread may call; the ops of one stream run in the order of the calls.
 *
 * **Fork.** A child cannot use CUDA that its parent used: KOPS_ERR_NO_CUDA.
 */
#ifndef KOPS_ORDERED_H
#define KOPS_ORDERED_H

#include <kops/kops.h>

#ifdef __cplusplus
extern "C" {
#endif

/** Value of a stream argument: all streams. */
#define KOPS_ALL_STREAMS ((void *)~(uintptr_t)0)

/** Puts an op on the caller's CUDA stream and returns. The request may be dropped afterwards. On a stream under capture
 * the op becomes a node of the graph, see enum kops_where.
 *
 * Of the options, `device`, `stream` and `samples` must be zero, `no_timing` is implied, timeout_ms limits the wait for
 * room. Nothing was put on the stream when an error is returned. Errors: that of an earlier op (see above); capturing,
 * no_cuda, unsupported (the daemon or the GPU cannot), bad_argument, timeout, quota_exceeded (256 streams have ops
 * under way), and those of a connection. */
KOPS_API enum kops_code kops_enqueue(kops_client *client, const struct kops_request *request, void *cuda_stream,
                                     struct kops_error *ret_error);

/** Until kops_batch_end(), the ops enqueued on this stream run back to back in the daemon, and may be gathered into
 * fewer messages: the fastest way for many small ones. Nothing else that the caller puts on the stream in between may
 * touch their operands: it is ordered after all work before the batch, not with the batch's ops. Batches of different
 * streams are independent; a second one on the same stream is bad_argument.
 *
 * A call enqueued with options.where = KOPS_WHERE_HERE ends the batch first, and begins it anew: it runs after the ops
 * so far, and before the later ones. So does a call here that waits, in a batch on the legacy default stream. Both then
 * have the errors of kops_batch_end(), too. Without that option a call in a batch is the daemon's, also where
 * kops_connect_options.where says here. */
KOPS_API enum kops_code kops_batch_begin(kops_client *client, void *cuda_stream, struct kops_error *ret_error);

/** Ends the batch: work that the caller puts on the stream from now on runs after all of its ops. The batch has
 * ended also where an error is returned. Errors: as kops_enqueue(); ops that were not sent yet are then dropped. */
KOPS_API enum kops_code kops_batch_end(kops_client *client, void *cuda_stream, struct kops_error *ret_error);

/** Waits until the ops enqueued on the stream (or on KOPS_ALL_STREAMS) have ended, without waiting for other work
 * there. timeout_ms: 0 is the client's, KOPS_FOREVER none; after KOPS_ERR_TIMEOUT they go on. In an open batch, what
 * was gathered is sent first. Returns the first error since the last report, of any stream. */
KOPS_API enum kops_code kops_synchronize(kops_client *client, void *cuda_stream, int64_t timeout_ms,
                                         struct kops_error *ret_error);

#ifdef __cplusplus
}
#endif

#endif
