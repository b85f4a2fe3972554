/* The table of unanswered requests.
 *
 * A call is a request whose reply is still wanted. The thread that receives the reply decodes it into the call. A
 * caller may give its call up: the call stays as CALL_LATE until the reply has come, so that msgids stay unique. A call
 * with an `ended` function has no caller that waits: the function is told how the call ended, and the call is free.
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

/* The reply came (NULL), or an error did, or the connection ended. */
typedef void call_ended(void *owner, struct call *call, const struct kops_error *error);

struct call {
    uint32_t index; /* of its place in the table */
    uint32_t uses;  /* how often that place was used: makes msgids differ */
    uint32_t msgid;
    kops_ticket ticket; /* 0: a thread waits in a blocking call */
    bool waited;        /* a thread is in kops_wait() with that ticket */
    enum call_state state;
    enum kops_code code;      /* CALL_DONE: how it ended */
    uint64_t ring_end;        /* where the request ends in the request ring; 0: it went over the socket */
    enum call_fate fate;      /* CALL_DONE with a code */
    struct kops_error *error; /* CALL_DONE with a code; owned, NULL when there was no memory */
    wire_decode *decode;
    void *into;
    struct wire_timings timings; /* of a run */
    struct native_reply *reply;  /* gets the reply as it is, without `decode` */
    bool owns_reply;

    call_ended *ended; /* NULL: the caller waits, or has a ticket */
    void *owner;       /* for `ended` */
    void *notes;       /* memory of the owner's (malloc), kept for the next use of the place and freed with the table */
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

/* Ends every unanswered call. `hung_up`: the daemon has closed the connection and will read nothing more from this
 * ring; NULL: it may. */
void calls_end_all(struct calls *t, const struct kops_error *error, const struct ring_link *hung_up);

/* In the child of a fork: callers that wait are threads of the parent. `intact`: the table was not being changed. */
void calls_fork(struct calls *t, bool intact);

void calls_free(struct calls *t);

#endif
