/* A request's life: made by dispatch, answered once, recycled. */
#ifndef KOPS_SERVER_PEER_REQUEST_H
#define KOPS_SERVER_PEER_REQUEST_H

#include <stddef.h>

#include "rpc/message.h"
#include "server/peer/connection.h"

struct long_reply;

struct request {
    struct connection *connection;
    enum method method;
    uint32_t msgid;
    bool notification;
    bool by_ring;    /* it came through the ring, and so goes its reply */
    bool work;       /* counted in the server's admission.work */
    bool brings_fds; /* its reply has descriptors; counted in the connection's fd_replies */
    bool answered;   /* before its work has ended: nobody has its msgid any more */
    uint64_t sequence, received_ns;
    struct charge charge;             /* QUOTA_INFLIGHT */
    struct list order_link;           /* in the connection's unfinished */
    struct list queue_link;           /* its handler's: in barriers, long replies or whatever else makes it wait */
    void (*ready)(struct request *r); /* of a barrier: everything that was sent before it has ended */
    bool (*first_piece)(struct long_reply *reply); /* of a long reply */
    struct request *next;                          /* in its msgid bucket, or in the free list */
    _Alignas(max_align_t) unsigned char state[];   /* its method's, not initialised */
};

/* The request that a method's state belongs to. */
static inline struct request *request_of(const void *state)
{
    return (struct request *)(void *)((char *)(uintptr_t)state - offsetof(struct request, state));
}

/* The descriptors that came with a request. A handler that keeps one puts -1 in its place; the rest are closed. */
struct request_fds {
    unsigned count;
    int fds[RPC_MAX_FDS];
};

/* Dispatches one message. Returns -1 when the connection must be closed for a violation (*e). */
int dispatch(struct connection *c, const struct rpc_message *message, struct request_fds *fds, struct error *e);

/* Where the result is to be written, after `[1, msgid, nil,`; NULL when nobody waits for it. request_end() must follow.
 */
struct rpc_output *request_result(struct request *r);
/* Answers with an error (or, for a notification, with nothing). request_end() must follow. */
void request_error(struct request *r, const struct error *e);
/* The same with `reason` and `log` among the details; `log` is any text, what is not UTF-8 is replaced. */
void request_error_log(struct request *r, const struct error *e, const char *reason, const char *log);
/* The reply has been written and work of the request goes on: its msgid is free, all else is its own until
 * request_end(), its place among the requests in flight, too. No other reply follows. */
void request_answered(struct request *r);
/* The request is over and its memory is given back. */
void request_end(struct request *r);

/* Whether it is answered at once and leaves nothing behind, so that it may come also without credit. */
bool request_takes_no_credit(const struct server *s, const struct rpc_message *message);

/* Whether it runs ops: its state is a struct run. */
bool request_is_run(const struct request *r);

/* The unanswered request of this msgid, or NULL. */
struct request *request_find(struct connection *c, uint32_t msgid);

/* An empty map as result, and the end. */
void request_end_empty(struct request *r);
/* An error, and the end. */
void request_end_error(struct request *r, const struct error *e);
/* The end of one whose connection ended before it: it counts as cancelled, for nothing was wrong with it. */
void request_abandon(struct request *r);

/* Where a handler finds its arguments: args[RUN_op], args[ALLOC_size], … */
#define INDEX(prefix, key) prefix##_##key,
#define X(key, ...)        INDEX(HELLO, key)
enum { KOPS_PARAMS_HELLO(X) };
#undef X
#define X(key, ...) INDEX(REGISTER, key)
enum { KOPS_PARAMS_REGISTER(X) };
#undef X
#define X(key, ...) INDEX(ALLOC, key)
enum { KOPS_PARAMS_ALLOC(X) };
#undef X
#define X(key, ...) INDEX(RELEASE, key)
enum { KOPS_PARAMS_RELEASE(X) };
#undef X
#define X(key, ...) INDEX(RUN, key)
enum { KOPS_PARAMS_RUN(X) };
#undef X
#define X(key, ...) INDEX(CANCEL, key)
enum { KOPS_PARAMS_CANCEL(X) };
#undef X
#define X(key, ...) INDEX(STATS, key)
enum { KOPS_PARAMS_STATS(X) };
#undef X
#define X(key, ...) INDEX(TENSOR, key)
enum { KOPS_PARAMS_TENSOR(X) };
#undef X
#define X(key, ...) INDEX(SEQUENCE, key)
enum { KOPS_PARAMS_SEQUENCE(X) };
#undef X
#define X(key, ...) INDEX(PROGRAM, key)
enum { KOPS_PARAMS_PROGRAM(X) };
#undef X
#define X(key, ...) INDEX(RUN_PROGRAM, key)
enum { KOPS_PARAMS_RUN_PROGRAM(X) };
#undef X
#define X(key, ...) INDEX(COMPILE, key)
enum { KOPS_PARAMS_COMPILE(X) };
#undef X
#define X(key, ...) INDEX(KERNEL, key)
enum { KOPS_PARAMS_KERNEL(X) };
#undef X
#define X(key, ...) INDEX(LAUNCH, key)
enum { KOPS_PARAMS_LAUNCH(X) };
#undef X
#define X(key, ...) INDEX(CACHE, key)
enum { KOPS_PARAMS_CACHE(X) };
#undef X
#define X(key, ...) INDEX(DRAIN, key)
enum { KOPS_PARAMS_DRAIN(X) };
#undef X
#define X(key, ...) INDEX(PARAM, key)
enum { KOPS_PARAMS_PARAM(X) };
#undef X
#define X(key, ...) INDEX(OP, key)
enum { KOPS_PARAMS_OP(X) };
#undef X
#define X(key, ...) INDEX(BINDING, key)
enum { KOPS_PARAMS_BINDING(X) };
#undef X
#undef INDEX

/* Handlers, one a method: they end the request, or keep it to end it later. */
typedef void request_handler(struct request *r, const struct rpc_arg *args, struct request_fds *fds);
#define X(NAME, name, CLASS) request_handler handle_##name;
KOPS_METHODS(X)
#undef X

enum access_class { ACCESS_USE, ACCESS_TUNE, ACCESS_ADMINISTER };

/* A method as dispatch() sees it. */
struct method_entry {
    const char *name;
    request_handler *handler;
    /* Answers a request whose parameters are wrong as such, or that is not admitted; NULL: request_end_error(). */
    void (*refuse)(struct request *r, const struct rpc_value *params, const struct error *e);
    const struct rpc_field *fields;
    unsigned n_fields;
    const size_t *state_bytes; /* of request.state; NULL: none */
    enum access_class access;
    bool any_params;     /* the handler gets the map itself, as args[0].items, and its bytes, as text */
    bool while_stopping; /* answered also while the daemon is ending */
    bool work;           /* not begun while the daemon drains, and what that waits for */
    bool runs;           /* it runs ops: device_share bounds it */
    bool brings_fds;     /* its reply goes over the socket, whichever way the request came */
    bool no_credit;      /* answered at once, leaving nothing behind, so taken also from a connection without credit */
    bool only_reply;     /* does nothing but to tell: as a notification it is ignored */
};

/* As the wire says it; "unknown" for METHOD_COUNT. */
const char *request_method_name(const struct server *s, unsigned method);

#endif
