/* A request's life: dispatch() makes it, its method answers it once, its memory is used again. Thread: loop. */
#ifndef KOPS_SERVER_PEER_REQUEST_H
#define KOPS_SERVER_PEER_REQUEST_H

#include <stddef.h>

#include "rpc/input.h"
#include "rpc/record.h"
#include "server/peer/connection.h"

struct long_reply;

struct request {
    struct connection *connection;
    enum method method;
    uint32_t msgid;
    bool notification;
    bool by_ring;    /* the request came through the ring; the reply goes there, too */
    bool work;       /* counted in the server's admission.work */
    bool brings_fds; /* the reply has descriptors; counted in the connection's fd_replies */
    bool answered;   /* before its work has ended: its msgid is free */
    uint64_t sequence, received_ns;
    struct charge charge;                          /* QUOTA_INFLIGHT */
    struct list order_link;                        /* in its connection's unfinished */
    struct list queue_link;                        /* the handler's: in barriers, long replies or another queue */
    void (*ready)(struct request *r);              /* a barrier's: every earlier run has ended */
    bool (*first_piece)(struct long_reply *reply); /* a long reply's */
    struct request *next;                          /* in its msgid bucket, or in the free list */
    _Alignas(max_align_t) unsigned char state[];   /* the method's, not initialised */
};

/* The request that a method's state belongs to. */
static inline struct request *request_of(const void *state)
{
    return (struct request *)(void *)((char *)(uintptr_t)state - offsetof(struct request, state));
}

/* The state of a request, which is of its method's type. */
static inline void *request_state(const struct request *r)
{
    return (void *)(uintptr_t)r->state;
}

/* The descriptors that came with a request. A handler puts -1 in the place of one it keeps; the others are closed. */
struct request_fds {
    unsigned count;
    int fds[RPC_MAX_FDS];
};

/* Dispatches one message. -1: the connection must be closed for a violation (*e). */
int dispatch(struct connection *c, const struct rpc_message *message, struct request_fds *fds, struct error *e);

/* Begins the reply: returns where to write the result, after `[1, msgid, nil,`. NULL: no reply is wanted. request_end()
 * must follow. */
struct rpc_output *request_result(struct request *r);
/* Answers with an error; a notification gets no answer. request_end() must follow. */
void request_error(struct request *r, const struct error *e);
/* Like request_error() with `reason` and `log` among the details. `log` is any text; bytes that are not UTF-8 are
 * replaced. */
void request_error_log(struct request *r, const struct error *e, const char *reason, const char *log);
/* The reply has been written, and work of the request goes on. Its msgid is free. Its state and its place among the
 * requests in flight are kept until request_end(). No other reply may follow. */
void request_answered(struct request *r);
/* The request is over: gives its memory back. */
void request_end(struct request *r);

/* Whether the request's method needs no credit: it is answered at once and keeps nothing. */
bool request_takes_no_credit(const struct server *s, const struct rpc_message *message);

/* Whether the request runs ops: its state is a struct run. */
bool request_is_run(const struct request *r);

/* The unanswered request with this msgid; NULL: none. */
struct request *request_find(struct connection *c, uint32_t msgid);

/* Answers with a result, RECORD(…), and ends the request. */
void request_end_record(struct request *r, const struct rpc_record *record, const void *values);
/* Sends descriptors with it, which are the reply's in any case. */
void request_end_fds(struct request *r, const int *fds, unsigned n, const struct rpc_record *record,
                     const void *values);
/* Answers with an empty map, and ends the request. */
void request_end_empty(struct request *r);
/* Answers with an error, and ends the request. */
void request_end_error(struct request *r, const struct error *e);
/* Ends a request whose connection has ended. It counts as cancelled. */
void request_abandon(struct request *r);

/* The handlers, one a method. A handler ends the request, or keeps it to end it later. */
typedef void request_handler(struct request *r, const struct rpc_arg *args, struct request_fds *fds);
#define X(NAME, name, CLASS) request_handler handle_##name;
KOPS_METHODS(X)
#undef X

/* A method as dispatch() sees it. */
struct method_entry {
    const char *name;
    request_handler *handler;
    /* Answers a request that is not admitted, or whose parameters as such are wrong; NULL: request_end_error(). */
    void (*refuse)(struct request *r, const struct rpc_value *params, const struct error *e);
    const struct rpc_field *fields;
    unsigned n_fields;
    const size_t *state_bytes; /* size of request.state; NULL: none */
    enum access_class access;
    bool any_params;     /* the handler gets the undecoded map as args[0].items, and its bytes as text */
    bool while_stopping; /* answered also during the shutdown */
    bool work;           /* refused while the daemon drains; a drain waits for it */
    bool runs;           /* the method runs ops: device_share bounds it */
    bool brings_fds;     /* the reply has descriptors, so it goes over the socket */
    bool no_credit;      /* answered at once and keeps nothing, so it needs no credit */
    bool only_reply;     /* only reads state: ignored as a notification */
};

/* The name on the wire; "unknown" for METHOD_COUNT. */
const char *request_method_name(const struct server *s, unsigned method);

/* Barriers: `trim` and `stats` wait until every run that was sent before them has ended. Thread: loop. */

/* Calls ready(r), which ends the request, in a turn of the connection's, after the runs before it have ended. A client
 * must read its earlier replies first. */
void barrier_enqueue(struct request *r, void (*ready)(struct request *r));

/* A run or the connection has ended: gives the connection a turn if a barrier is ready. */
void barriers_advance(struct connection *c);

/* In the connection's turn: answers one barrier, as its reply may be long. */
void barriers_step(struct connection *c);

/* Long replies: `stats`, `clients` and `metrics`. A long reply is built in pieces, in the turns of the connection that
 * asked for it, in a buffer of its own, and is sent when it is whole. Each user has one built at a time. A client that
 * has not read its earlier replies gets none. A piece shows the state at the time it is built: each row is consistent
 * in itself. Thread: loop. */

struct long_reply {
    struct request *request;
    bool (*step)(struct long_reply *reply); /* builds the next piece; true: that was the last one */
    struct rpc_output out;                  /* the result */
    bool failed;                            /* no memory for the reply */
    void *state;                            /* the builder's own; NULL until its first piece makes it */
    void (*free_state)(void *state);        /* frees `state`, however the reply ends; NULL: nothing to free */
};

/* Answers the request in the connection's turns. `first` builds the first piece, and sets step, state and
 * free_state. */
void long_reply_enqueue(struct request *r, bool (*first)(struct long_reply *reply));

/* Builds the next pieces of the connection's long reply, until its time is over. */
void long_replies_step(struct connection *c);

/* Whether the connection has a long reply to build that does not wait for the user's other connections. */
bool long_replies_may_go_on(const struct connection *c);

/* The connection has ended: abandons its long replies. */
void long_replies_abandon(struct connection *c);

#endif
