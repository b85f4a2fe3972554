/* The table of unanswered requests.
 *
 * A call is a request whose reply is still wanted. The thread that receives the reply decodes it into the call. A
 * caller may give its call up: the call stays as CALL_LATE until the reply has come, so that msgids stay unique. A call
 * with an `ended` function has no waiting caller: the function is told of the outcome, and the call becomes free.
 *
 * Thread: the client's lock is held. */
#ifndef KOPS_CLIENT_CALLS_H
#define KOPS_CLIENT_CALLS_H

#include "link/ring_link.h"
#include "wire/wire.h"

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

/* Resets the table in the child of a fork: waiting callers are threads of the parent. `intact`: the table was not being
 * changed. */
void calls_fork(struct calls *t, bool intact);

void calls_free(struct calls *t);

#endif
