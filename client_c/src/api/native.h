/* Calls for bindings that are linked into one file with this library's objects. Not installed, no stable interface.
 *
 * A binding keeps its own objects and shares the client's connection. It sends requests of any method as MessagePack
 * (native_submit), and runs by registered buffer ids (native_submit_run, native_enqueue). Ids are valid on one
 * connection, named by its generation. A request that fails with its daemon is not repeated here: the binding decides.
 * Thread: any. */
#ifndef KOPS_CLIENT_NATIVE_H
#define KOPS_CLIENT_NATIVE_H

#include <kops/kops.h>

#include "session/connect.h"
#include "wire/wire.h"

enum { NATIVE_MAX_FDS = WIRE_MAX_FDS };

/* As kops_connect(). Calls of the client make no new connections: they fail with connection_lost, and the detail
 * `ran` = 0, until native_generation() has made one. */
enum kops_code native_connect(const struct kops_connect_options *options, const struct patience *patience,
                              kops_client **ret_client, struct kops_error *ret_error);

struct native_raw {
    uint32_t generation; /* connection that the ids belong to; 0: any */
    const char *method;
    const void *params; /* a MessagePack map, with `nfds` in it when there are descriptors */
    size_t length;
    int fds[NATIVE_MAX_FDS]; /* stay the caller's */
    unsigned n_fds;
    int64_t timeout_ms; /* 0: the client's */
};

/* Sends a request without waiting for the reply. The ticket is for native_wait(), kops_poll() and kops_cancel(). */
enum kops_code native_submit(kops_client *client, const struct native_raw *request, kops_ticket *ret_ticket,
                             struct kops_error *ret_error);

/* KOPS_ERR_TIMEOUT keeps the ticket, everything else ends it. */
enum kops_code native_wait(kops_client *client, kops_ticket ticket, int64_t timeout_ms, struct native_reply *reply,
                           struct kops_error *ret_error);

/* A notification, such as release: carried out in order with the requests, never answered. Dropped without an error
 * when the connection is not that of `generation`; a `dispensable` one also when the daemon is behind with its reading.
 */
void native_notify(kops_client *client, uint32_t generation, const char *method, const void *params, size_t length,
                   bool dispensable);

/* Returns the present connection's generation. Connects when there is none. 0 with *ret_error set when that fails. */
uint32_t native_generation(kops_client *client, const struct patience *patience, struct kops_error *ret_error);

/* Appends the daemon's answer to the present connection's hello, one map. False without memory. */
bool native_hello(kops_client *client, struct bytes *out);

/* Returns the present connection's socket, for event loops; -1: there is none. The socket stays the client's. For
 * clients that use the socket alone (KOPS_TRANSPORT_SOCKET). */
int native_socket(kops_client *client);

/* Reads the replies that have arrived, without waiting. An error where the connection is not that of `generation`. */
enum kops_code native_look(kops_client *client, uint32_t generation, struct kops_error *ret_error);

/* Tells whether native_wait() would return at once. Reads nothing. */
bool native_has_ended(kops_client *client, kops_ticket ticket);

/* The msgid of the last request that this thread made, of any client; 0: none. */
uint32_t native_last_call(void);

/* Sends a run without waiting, as kops_submit(); kops_wait() has timings unless the options leave them out. `run` has
 * its attributes packed, and of `how` only the options, without a variant; `op` outlives the call. `generation` is that
 * of the connection that its ids belong to: on another one the call fails with KOPS_ERR_CONNECTION_LOST and sends
 * nothing. 0: there are no ids. */
enum kops_code native_submit_run(kops_client *client, uint32_t generation, const struct wire_run *run,
                                 kops_ticket *ret_ticket, struct kops_error *ret_error);

/* Puts a run on a CUDA stream, as kops_enqueue(); a kernel's `op` outlives the client. Batches and kops_synchronize()
 * are those of <kops/ordered.h>. */
enum kops_code native_enqueue(kops_client *client, uint32_t generation, const struct wire_run *run, void *cuda_stream,
                              struct kops_error *ret_error);

/* A request of any method that takes `ready` and `done` (sequence, run_program) on a CUDA stream. `params` is one map
 * without those keys and `stream`, which are added. `name` is for error messages; outlives the client. */
enum kops_code native_enqueue_call(kops_client *client, uint32_t generation, const char *method, const char *name,
                                   const void *params, size_t length, void *cuda_stream, struct kops_error *ret_error);

/* native_enqueued(): number of the last op enqueued so far. native_completed(): whether every op up to `number` has
 * ended, so that its references may be dropped. Neither blocks; replies that have arrived are read. */
uint64_t native_enqueued(kops_client *client);
bool native_completed(kops_client *client, uint64_t number);

#endif
