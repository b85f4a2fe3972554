/* A client: one connection, and the rules for sharing it between threads.
 *
 * `lock` guards every member that is not said to be constant. A thread that must wait for the socket drops the lock: at
 * most one receives (`reading`), at most one is in the middle of a message (`sending`), the others wait for `changed`.
 * `users` counts threads that are in a system call on the socket without the lock; the last of them closes a lost
 * connection.
 *
 * Requests travel in two streams. Most go through shared memory where there is some; requests with descriptors and very
 * long ones go over the socket. A long request goes alone: after the replies to all requests before it, and before all
 * requests after it. */
#ifndef KOPS_CLIENT_CLIENT_H
#define KOPS_CLIENT_CLIENT_H

#include <kops/kops.h>
#include <limits.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "link/transport.h"
#include "wire/wire.h"

/* The table of unanswered requests.
 *
 * A call is a request whose reply is still wanted. The thread that receives the reply decodes it into the call. A
 * caller may give its call up: the call stays as CALL_LATE until the reply has come, so that msgids stay unique. A call
 * with an `ended` function has no waiting caller: the function is told of the outcome, and the call becomes free.
 *
 * Thread: the client's lock is held. */

enum call_state { CALL_FREE, CALL_SENT, CALL_DONE, CALL_LATE };

/* How a request failed: the daemon answered with an error; it got the request, but sent no reply; it never read it. */
enum call_fate { FATE_ANSWERED, FATE_UNANSWERED, FATE_UNREAD };

struct call;

/* Called when the reply came (`error` is NULL), an error came, or the connection ended. */
typedef void call_ended(void *owner, struct call *call, const struct kops_error *error);

struct call {
    uint32_t index; /* place in the table */
    uint32_t uses;  /* times that the place was used: makes msgids differ */
    uint32_t msgid;
    kops_ticket ticket; /* 0: a thread waits in a blocking call */
    bool waited;        /* a thread is in kops_wait() with that ticket */
    enum call_state state;
    enum kops_code code;      /* CALL_DONE: the outcome */
    uint64_t ring_end;        /* place in the request ring where the request ends; 0: it went over the socket */
    enum call_fate fate;      /* CALL_DONE with a code */
    struct kops_error *error; /* CALL_DONE with a code; owned, NULL when there was no memory */
    wire_decode *decode;
    void *into;
    struct wire_timings timings;
    struct native_reply *reply; /* gets the reply undecoded, where `decode` is NULL */
    bool owns_reply;

    call_ended *ended; /* NULL: the caller waits, or has a ticket */
    void *owner;
    void *notes; /* the owner's memory (malloc), kept for the next use of the place and freed with the table */
    struct call *next_free;
};

struct calls {
    struct call **places;
    uint32_t n_places;
    struct call *free;
    uint32_t inflight; /* calls without a reply */
};

struct call *call_new(struct calls *t);
/* The msgid of the last call that this thread made, of any client; 0: none. */
uint32_t call_last(void);
void call_free(struct calls *t, struct call *call);
struct call *call_by_msgid(const struct calls *t, uint32_t msgid);
struct call *call_by_ticket(const struct calls *t, kops_ticket ticket);

/* CALL_SENT becomes CALL_DONE with this error (NULL: success), CALL_LATE becomes free. */
void call_end(struct calls *t, struct call *call, const struct kops_error *error);

/* Ends every unanswered call. `hung_up`: the ring of a daemon that has closed the connection, and will read nothing
 * more from it; NULL: the daemon may still read. */
void calls_end_all(struct calls *t, const struct kops_error *error, const struct ring_link *hung_up);

struct ordered;

/* Names of hello's ops and of declared kernels, for messages. Each name has a place that fits a byte, and lives as long
 * as the client. */
enum { NAMES_NONE = UCHAR_MAX, NAMES_MAX_KERNELS = 128 };

struct names {
    const char *kernels[NAMES_MAX_KERNELS];
    unsigned n_kernels;
};

/* Optional parts of the protocol that this library uses. */
enum client_feature {
    FEATURE_SHM = 1,
    FEATURE_ORDERED = 2,
    FEATURE_SEQUENCE = 4,
    FEATURE_PROGRAM = 8,
    FEATURE_PRIORITY = 16,
    FEATURE_EXACT = 32,
    FEATURE_CODE = 64,
    FEATURE_IMAGES = 128
};

/* Notifications that wait until gathered work is sent: see session_hold(). */
struct held_back {
    unsigned holders;
    struct bytes notifications;
    uint32_t generation; /* generation of the connection that they are for */
};

struct kops_client {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    _Atomic pid_t owner; /* process that connected; -1 while a child takes over */
    unsigned references; /* the client's until kops_close(), and each buffer's, module's, kernel's and program's */

    /* Constant after kops_connect(). */
    char *socket_option; /* NULL: the usual places */
    char *isolate;       /* from the options */
    bool no_autostart;   /* from the options */
    bool bound;          /* a binding's: native_generation() alone makes new connections */
    bool goes_here;      /* run calls that name no place in this process, where they can */
    char *started;       /* socket of the daemon that was started for this client; NULL: none was */
    char *name;
    int64_t timeout_ms, connect_timeout_ms, reconnect_timeout_ms;
    unsigned spin_option;
    enum kops_transport transport;
    struct wire_info info;
    struct bytes hello; /* the present daemon's answer to hello, undecoded */
    unsigned features;  /* enum client_feature */

    struct transport t;
    uint32_t generation; /* generation of the connection; buffers note the generation that they were registered in */
    bool lost;           /* the connection is over; it is closed once `users` is 0 */
    struct kops_error reason;
    bool reading, sending;
    bool greeting;                 /* a thread makes a new connection, and greets its daemon */
    uint32_t failures;             /* connections that could not be made anew */
    struct kops_error unreachable; /* reason of the last failure */
    uint64_t ends_by; /* deadline of a daemon that said that it ends; nothing is sent until then; 0: none said so */
    unsigned poll_us; /* longest busy polling of a wait on this connection */
    unsigned poll_failures; /* waits in a row in which busy polling did not help */
    unsigned users, waiters;

    struct calls calls;
    uint32_t max_inflight;
    uint64_t max_message;
    uint32_t alone;   /* msgid of a long message: until its reply, nothing else is sent */
    bool unconfirmed; /* a notification went through the ring, and no later reply confirms that it was read */
    struct held_back held_back;
    uint32_t traced; /* the generation of the connection that began a trace; 0: none did */

    struct names names;

    kops_buffer *staging; /* shared memory for reading and writing device memory; NULL: none, or a thread has it */
    pid_t staging_process;

    atomic_uint batches; /* open batches of `ordered`; read without the lock, too */

    struct kops_kernel *here;  /* kernels that are launched in this process, linked by next_here */
    struct here_ops *ops_here; /* counts ops launched in this process, owned by kops_close(); NULL: there were none */
    struct ordered *ordered;   /* NULL until the first ordered call */
    void (*forget_ordered)(struct kops_client *c); /* called in a child of a fork; set with `ordered` */
};

/* Makes a client; NULL without memory. */
struct kops_client *client_new(const struct kops_connect_options *o);

/* Enters the client: notices a fork, takes the lock, empties *e. Every public function begins with it. */
void client_enter(struct kops_client *c, struct kops_error *e);

static inline void client_leave(struct kops_client *c)
{
    pthread_mutex_unlock(&c->lock);
}

/* Like client_leave(), and drops a reference; the last one frees the client. */
void client_leave_unref(struct kops_client *c);

/* Returns the deadline of a call: a timeout of 0 is the client's own. */
static inline uint64_t client_deadline(const struct kops_client *c, int64_t timeout_ms)
{
    return deadline_in(timeout_ms ? timeout_ms : c->timeout_ms);
}

static inline bool client_is_connected(const struct kops_client *c)
{
    return c->t.fd >= 0 && !c->lost;
}

/* Wakes threads that wait for a change. */
static inline void client_changed(struct kops_client *c)
{
    if (c->waiters)
        pthread_cond_broadcast(&c->changed);
}

/* Returns the stream for notifications: after the requests sent before. */
static inline struct bytes *client_notifications(struct kops_client *c)
{
    return &c->t.out[c->t.ring.memory ? STREAM_RING : STREAM_SOCKET].bytes;
}

/* Returns the priority's name on the wire; NULL: normal, or the daemon has no priorities. */
const char *client_priority(const struct kops_client *c, const struct kops_options *options);

/* Returns how a request with these options runs; NULL: the defaults. */
struct wire_how client_how(const struct kops_client *c, const struct kops_options *options);

/* The op's name as a text that lives as long as the client; NULL: the daemon has no such op. */
const char *client_op_name(const struct kops_client *c, const char *op);

/* The text of a kernel's name, kept. Where there is no room left the name is "a kernel". Lock held. */
const char *names_keep(struct kops_client *c, const char *kernel);

/* The place of a name; NAMES_NONE: it has none. */
unsigned char names_place(const struct kops_client *c, const char *name);

/* The name of a place; NULL for NAMES_NONE. */
const char *names_at(const struct kops_client *c, unsigned char place);

#endif
