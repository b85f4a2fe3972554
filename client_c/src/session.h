/* A client: one connection, the calls that wait on it, and the rules for sharing it between threads.
 *
 * Locking. `lock` guards everything but what is said to be constant. A thread that must wait for the socket drops the
 * lock: at most one receives (`reading`), at most one is in the middle of a message (`sending`), the others wait for
 * `changed`. `users` counts threads that are in a system call on the socket without the lock; a lost connection is
 * closed by the last of them.
 *
 * Calls. A struct call is a request without a reply that somebody still wants to know about. The thread that receives a
 * reply decodes it, under the lock, into the call of whoever waits. A call whose caller gave up stays as CALL_LATE
 * until its reply came, so that msgids stay unique. */
#ifndef KOPS_CLIENT_SESSION_H
#define KOPS_CLIENT_SESSION_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <unistd.h>

#include <kops/kops.h>

#include "transport.h"
#include "wire.h"

enum call_state { CALL_FREE, CALL_SENT, CALL_DONE, CALL_LATE };

struct call {
    uint32_t index; /* of its place in kops_client.calls */
    uint32_t uses;  /* how often that place was used: makes msgids differ */
    uint32_t msgid;
    kops_ticket ticket; /* 0: somebody waits in a blocking call */
    bool waited;        /* some thread is in kops_wait() with that ticket */
    enum call_state state;
    enum kops_code code;      /* CALL_DONE: how it ended */
    struct kops_error *error; /* CALL_DONE with a code; owned, NULL when there was no memory */
    wire_decode *decode;
    void *into;
    struct wire_timings timings; /* of a run */
    struct call *next_free;
};

struct kops_client {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    _Atomic pid_t owner; /* the process whose connection this is; -1 while a child takes over */
    unsigned references; /* the client itself, until kops_close(), and each buffer */

    /* Constant after kops_connect(). */
    char *socket_option; /* NULL: the usual places */
    char *name;
    int64_t timeout_ms, connect_timeout_ms;
    unsigned spin_us;
    struct wire_info info;

    struct transport t;
    struct wire_decoder *decoder;
    uint32_t generation; /* of the connection; buffers remember in which they were registered */
    bool lost;           /* this connection is over; it is closed once `users` is 0 */
    struct kops_error reason;
    bool reading, sending;
    unsigned users, waiters;

    struct call **calls;
    uint32_t n_calls;
    struct call *free_calls;
    uint32_t inflight, max_inflight;
    uint64_t max_message;
};

/* Enters the client: notices a fork, takes the lock, empties *e. Every public function begins with it. */
void client_enter(struct kops_client *c, struct kops_error *e);
void client_leave(struct kops_client *c);

/* Like client_leave(), and drops a reference; the last one frees the client. */
void client_leave_unref(struct kops_client *c);

/* The deadline of a call: 0 is the client's own timeout. */
uint64_t client_deadline(const struct kops_client *c, int64_t timeout_ms);

/* ---- all below are called with the lock held and may drop it while they wait ---- */

/* Makes sure that there is a connection. */
enum kops_code session_connect(struct kops_client *c, uint64_t deadline, struct kops_error *e);

/* Room for one more request: connected, nobody else in the middle of a message, below the inflight limit. */
enum kops_code session_begin(struct kops_client *c, uint64_t deadline, struct call **ret_call, struct kops_error *e);

/* What became of a message. */
enum session_sent {
    SESSION_SENT,
    SESSION_NOT_SENT, /* the connection was over before its first byte: worth another try on a new one */
    SESSION_FAILED    /* *e says why */
};

/* Sends what was appended to t.out since `from`, with `fd` unless it is -1. After SESSION_NOT_SENT and SESSION_FAILED
 * the call is no longer the caller's. */
enum session_sent session_send(struct kops_client *c, struct call *call, size_t from, int fd, uint64_t deadline,
                               struct kops_error *e);

/* Waits for the reply. False: the deadline passed. */
bool session_wait(struct kops_client *c, struct call *call, uint64_t deadline);

/* The outcome of a CALL_DONE; gives the call back. */
enum kops_code session_finish(struct kops_client *c, struct call *call, struct kops_error *e);

/* Gives a call up: its reply will be dropped. */
void session_abandon(struct kops_client *c, struct call *call);

/* A request that finds the connection over before its first byte was sent is tried once more on a new one. */
enum { SESSION_ATTEMPTS = 2 };

/* One whole blocking request. */
enum kops_code session_call(struct kops_client *c, wire_pack *pack, const void *request, int fd, wire_decode *decode,
                            void *into, uint64_t deadline, unsigned attempts, struct kops_error *e);

/* Takes in what has arrived, without waiting. */
void session_poll(struct kops_client *c);

/* Sends what is left in t.out as far as the socket takes it without waiting: for notifications. */
void session_push(struct kops_client *c);

/* Waits for a change that another thread makes. */
void session_sleep(struct kops_client *c, uint64_t deadline);

/* The connection is over, for that reason: every call ends with it. */
void session_lost(struct kops_client *c, enum kops_code code, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* ---- calls.c: the table ---- */

struct call *call_new(struct kops_client *c);
void call_free(struct kops_client *c, struct call *call);
struct call *call_by_msgid(struct kops_client *c, uint32_t msgid);
struct call *call_by_ticket(struct kops_client *c, kops_ticket ticket);

/* CALL_SENT becomes CALL_DONE with this error (NULL: success), CALL_LATE becomes free. */
void call_end(struct kops_client *c, struct call *call, const struct kops_error *error);

/* Ends every unanswered call. */
void calls_end_all(struct kops_client *c, const struct kops_error *error);

void calls_free(struct kops_client *c);

#endif
