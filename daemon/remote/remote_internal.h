/* Shared by the daemon's side of the store: requests (remote.c) and the connection to the helper (link.c). */
#ifndef KOPS_REMOTE_REMOTE_INTERNAL_H
#define KOPS_REMOTE_REMOTE_INTERNAL_H

#include <sys/types.h>
#include <sys/un.h>

#include "remote/breaker.h"
#include "remote/remote.h"
#include "util/backoff.h"
#include "util/list.h"
#include "util/work.h"

/* A connection to a helper, and the process where the daemon has started it. Lives until both have ended, then frees
 * itself. */
struct link {
    struct work work; /* opening it may block: first */
    struct remote *remote;
    int fd, pidfd; /* -1: none */
    pid_t pid;     /* 0: none was started */
    uv_poll_t poll, pidfd_poll;
    uv_timer_t patience;
    unsigned handles;
    bool polled, pidfd_polled; /* the handles were made */
    bool ready, stopped;
    struct error error; /* of opening it */
};

enum remote_kind { REMOTE_GET, REMOTE_PUT, REMOTE_KINDS };

struct remote {
    uv_loop_t *loop;
    struct remote_setup setup;
    char helper[sizeof(((struct sockaddr_un *)0)->sun_path)], user[64], binary[PATH_MAX];
    struct link *link; /* NULL: none, the timer runs */
    uv_timer_t again;  /* the helper's next start */
    uv_timer_t tick;   /* looks for requests that the helper has forgotten or does not read, while there are some */
    uint64_t full_until_ms; /* when the helper must have read from its full socket; 0: the socket is not full */
    struct backoff backoff;
    bool served; /* this helper has answered */
    bool told;   /* the log says that there is no helper */
    struct breaker breakers[REMOTE_KINDS];
    struct list waiting, sent;
    unsigned n_waiting, n_sent[REMOTE_KINDS];
    uint64_t next_id, skipped;
    char why[REMOTE_WHY_SIZE];
    unsigned busy; /* links, timers, callbacks that run */
    bool closing;
    void (*closed)(void *context);
    void *closed_context;
};

/* May free it, when it is closing. */
void remote_let_go(struct remote *r);

/* link.c. Starts a connection, which becomes r->link. */
int link_start(struct remote *r, struct error *e);
/* It is over: r->link is NULL at the return; none of the functions below is called for it any more. */
void link_stop(struct link *l);

/* For link.c, in remote.c: the helper is ready, has answered (`fd` is the callee's), or has gone. */
void remote_link_ready(struct remote *r);
void remote_link_answer(struct remote *r, const struct remote_event *event, int fd);
void remote_link_lost(struct remote *r, const char *why);

#endif
