/* A client: one connection, the calls that wait on it, and the rules for sharing it between threads.
 *
 * Locking. `lock` guards everything but what is said to be constant. A thread that must wait for the socket drops the
 * lock: at most one receives (`reading`), at most one is in the middle of a message (`sending`), the others wait for
 * `changed`. `users` counts threads that are in a system call on the socket without the lock; a lost connection is
 * closed by the last of them.
 *
 * Calls. A struct call is a request without a reply that somebody still wants to know about. The thread that receives a
 * reply decodes it, under the lock, into the call of whoever waits. A call whose caller gave up stays as CALL_LATE
 * until its reply came, so that msgids stay unique. An ordered call (`lane`) has no caller that waits: its end is noted
 * where the next call finds it (ordered.h).
 *
 * Two streams. Requests go through shared memory where there is some, those with descriptors and very long ones over
 * the socket. A long one goes alone: after the replies to all before it, and before all after it. */
#ifndef KOPS_CLIENT_SESSION_H
#define KOPS_CLIENT_SESSION_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <unistd.h>

#include <kops/kops.h>

#include "link/transport.h"
#include "names.h"
#include "wire/wire.h"

struct lane;
struct ordered;

enum { CALL_MAX_OPS = 64 };

enum call_state { CALL_FREE, CALL_SENT, CALL_DONE, CALL_LATE };

/* What is known of a request that failed: whether the daemon had it. */
enum call_fate { FATE_ANSWERED, FATE_UNANSWERED, FATE_UNREAD };

struct call {
    uint32_t index; /* of its place in kops_client.calls */
    uint32_t uses;  /* how often that place was used: makes msgids differ */
    uint32_t msgid;
    kops_ticket ticket; /* 0: somebody waits in a blocking call */
    bool waited;        /* some thread is in kops_wait() with that ticket */
    enum call_state state;
    enum kops_code code;      /* CALL_DONE: how it ended */
    uint64_t ring_end;        /* where it ends in the request ring; 0: it went over the socket */
    enum call_fate fate;      /* CALL_DONE with a code */
    struct kops_error *error; /* CALL_DONE with a code; owned, NULL when there was no memory */
    wire_decode *decode;
    void *into;
    struct wire_timings timings; /* of a run */
    struct native_reply *reply;  /* wants the reply as it is; in place of `decode` */
    bool owns_reply;

    struct lane *lane;     /* of an ordered call; else NULL */
    uint64_t number, last; /* of its first and last op */
    unsigned n_ops;        /* that it stands for */
    const char *name;      /* of what it runs; lives as long as the client */
    bool gathered;         /* several ops, with places for names (names.h): */
    unsigned char ops[CALL_MAX_OPS];
    uint16_t after[CALL_MAX_OPS]; /* their numbers, counted from the first one's */
    struct call *next_free;
};

/* Optional parts of the protocol that this library uses. */
enum client_feature {
    FEATURE_SHM = 1,
    FEATURE_ORDERED = 2,
    FEATURE_SEQUENCE = 4,
    FEATURE_PROGRAM = 8,
    FEATURE_PRIORITY = 16
};

struct kops_client {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    _Atomic pid_t owner; /* the process whose connection this is; -1 while a child takes over */
    unsigned references; /* the client itself, until kops_close(), and each buffer */

    /* Constant after kops_connect(). */
    char *socket_option; /* NULL: the usual places */
    char *name;
    int64_t timeout_ms, connect_timeout_ms, reconnect_timeout_ms;
    unsigned spin_option;
    enum kops_transport transport;
    struct wire_info info;
    unsigned features; /* enum client_feature */

    struct transport t;
    struct wire_decoder *decoder;
    uint32_t generation; /* of the connection; buffers remember in which they were registered */
    bool lost;           /* this connection is over; it is closed once `users` is 0 */
    struct kops_error reason;
    bool reading, sending;
    bool greeting; /* `greeter` asks what the daemon of a new connection has */
    pthread_t greeter;
    uint32_t failures;             /* connections that could not be made anew, */
    struct kops_error unreachable; /* the last one's reason */
    uint64_t ends_by;              /* the daemon said that it ends: until then nothing is sent; 0: it did not */
    unsigned spin_us;              /* on this connection, at most */
    unsigned spin_failures;        /* waits in a row in which polling did not help */
    unsigned users, waiters;

    struct call **calls;
    uint32_t n_calls;
    struct call *free_calls;
    uint32_t inflight, max_inflight;
    uint64_t max_message;
    uint32_t alone;   /* msgid of a long message: until its reply, nothing else is sent */
    bool unconfirmed; /* a notification went through the ring, and no reply since says that it was read */

    const char *kernel_names[NAMES_MAX_KERNELS]; /* see names.h */
    unsigned n_kernel_names;

    struct ordered *ordered; /* NULL until the first ordered call */
};

/* Enters the client: notices a fork, takes the lock, empties *e. Every public function begins with it. */
void client_enter(struct kops_client *c, struct kops_error *e);
void client_leave(struct kops_client *c);

/* Like client_leave(), and drops a reference; the last one frees the client. */
void client_leave_unref(struct kops_client *c);

/* The deadline of a call: 0 is the client's own timeout. */
uint64_t client_deadline(const struct kops_client *c, int64_t timeout_ms);

/* The priority's name on the wire; NULL: normal, or the daemon has none. */
const char *client_priority(const struct kops_client *c, const struct kops_options *options);

/* The op's name as a text that lives as long as the client; NULL: the daemon has no such op. */
const char *client_op_name(const struct kops_client *c, const char *op);

/* ---- all below are called with the lock held and may drop it while they wait ---- */

/* Makes sure that there is a connection: waits for a daemon that is started anew as long as the client may. */
enum kops_code session_connect(struct kops_client *c, uint64_t deadline, struct kops_error *e);

/* A request on its way out. */
struct outgoing {
    struct call *call;
    const int *fds;
    unsigned n_fds;
    enum stream stream;
    size_t from; /* where it begins in that stream's outbox */
    size_t length;
    bool alone;
};

/* Room for one more request: connected, nobody else in the middle of a message, below the inflight limit. `fds` stay
 * the caller's. The message is then appended to session_out(), without dropping the lock. */
enum kops_code session_begin(struct kops_client *c, const int *fds, unsigned n_fds, uint64_t deadline,
                             struct outgoing *ret, struct kops_error *e);

static inline struct bytes *session_out(struct kops_client *c, const struct outgoing *m)
{
    return &c->t.out[m->stream].bytes;
}

/* Where notifications go: behind the requests sent before. */
static inline struct bytes *session_notifications(struct kops_client *c)
{
    return &c->t.out[c->t.ring.memory ? STREAM_RING : STREAM_SOCKET].bytes;
}

/* The message was appended: checks it. On failure it is taken back, with its call. */
enum kops_code session_appended(struct kops_client *c, struct outgoing *m, struct kops_error *e);

/* Takes an appended message back, with its call. */
void session_take_back(struct kops_client *c, struct outgoing *m);

/* What became of a message. */
enum session_sent {
    SESSION_SENT,
    SESSION_NOT_SENT, /* the connection was over before its last byte: worth another try on a new one; *e says why */
    SESSION_FAILED    /* *e says why */
};

/* Sends what was appended and checked. After SESSION_NOT_SENT and SESSION_FAILED the call is no longer the caller's. */
enum session_sent session_send(struct kops_client *c, struct outgoing *m, uint64_t deadline, struct kops_error *e);

/* Waits for the reply. False: the deadline passed. */
bool session_wait(struct kops_client *c, struct call *call, uint64_t deadline);

/* The outcome of a CALL_DONE; gives the call back. */
enum kops_code session_finish(struct kops_client *c, struct call *call, struct kops_error *e);

/* Connections that may end, in one try of a call, before the request is sent whole. */
enum { SESSION_CONNECTIONS = 8 };

/* Gives a call up: its reply will be dropped. */
void session_abandon(struct kops_client *c, struct call *call);

/* Whether a request may reach a daemon more than once. SESSION_ATTEMPTS: it does no harm, so it is repeated as
 * recover.h says. SESSION_ONCE: sent again only where it surely was not carried out. SESSION_HERE: never, since it is
 * for this connection alone. */
enum { SESSION_HERE, SESSION_ONCE, SESSION_ATTEMPTS };

/* One whole blocking request, with `fd` unless it is -1. */
enum kops_code session_call(struct kops_client *c, wire_pack *pack, const void *request, int fd, wire_decode *decode,
                            void *into, uint64_t deadline, unsigned attempts, struct kops_error *e);

/* Before a request with descriptors: what was notified through the ring has been read. */
enum kops_code session_settle(struct kops_client *c, uint64_t deadline, struct kops_error *e);

/* Receives until something came, or lets the thread that receives do it. */
void session_progress(struct kops_client *c, uint64_t deadline);

/* Asks the daemon to drop the call. */
void session_cancel(struct kops_client *c, const struct call *call);

/* Takes in what has arrived, without waiting. */
void session_poll(struct kops_client *c);

/* Takes in what the ring has, without a system call. */
void session_drain(struct kops_client *c);

/* Sends what is left in the outboxes as far as it goes without waiting: for notifications. */
void session_push(struct kops_client *c);

/* Notifies the daemon of a release. Without memory it keeps what was to be released until the connection ends. */
void session_release(struct kops_client *c, void (*pack)(struct bytes *out, uint64_t id), uint64_t id);

/* Waits for a change that another thread makes. */
void session_sleep(struct kops_client *c, uint64_t deadline);

/* Closes a lost connection that nobody is in any more. */
void session_close_lost(struct kops_client *c);

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

/* Ends every unanswered call. `hung_up`: the daemon has ended the connection, and reads nothing of it any more. */
void calls_end_all(struct kops_client *c, const struct kops_error *error, bool hung_up);

void calls_free(struct kops_client *c);

#endif
