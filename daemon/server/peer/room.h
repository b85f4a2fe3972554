/* The state of this room: the socket that it listens on, its connections, and what watches them. Only files of this
 * folder include it. Thread: loop. */
#ifndef KOPS_SERVER_PEER_ROOM_H
#define KOPS_SERVER_PEER_ROOM_H

#include "server/peer/connection.h"
#include "server/peer/request.h"
#include "util/log.h"

struct peers {
    const struct method_entry *methods;
    const struct connection_part *const *parts; /* NULL-terminated, in the order of begin(); end() goes backwards */
    struct {
        int fd, reserve_fd; /* the socket; one that can be had back when there are no others; -1 */
        uv_poll_t poll;
        uv_timer_t timer; /* while nobody can be accepted */
        bool started;
        struct account *awaited;    /* a reference: whose turned-away sockets are waited for; NULL */
        unsigned excess_was, still; /* as of the last look; how many looks it has not changed */
        struct rpc_output notice;   /* its memory is there when there is no other */
    } listener;
    struct log_limit connect_limit, disconnect_limit, fault_limit, protocol_limit, refuse_limit;
    uv_timer_t user_pressure_timer; /* while users wait for room: see user_pressure.c */
    struct list connections;        /* every struct connection, closed ones too */
    struct list done;               /* those that are freed at the end of the turn */
    unsigned n_connections;         /* not closed */
    struct rpc_arena *arena;        /* the message being dispatched */
    size_t state_bytes;             /* of a request: the most that a method wants */
    struct request *free_requests;
    unsigned n_free_requests;
    bool served; /* a request has ended */

    int doorbells; /* an epoll of every channel's */
    uv_poll_t doorbells_poll;
    struct waker *waker; /* wakes clients; NULL where the daemon does not poll */
    struct list hot;     /* connections whose rings are looked into at every turn */
    struct list recent;  /* the few connections whose sockets had input last */
    unsigned n_recent;
    uint64_t overflowed_ns; /* when there last were more of them than are kept */

    struct {
        struct list lists[PEER_TIMEOUT_COUNT]; /* connections, those that have waited longest first */
        uv_timer_t timer;
        struct log_limit log_limit;
    } peer_timeouts;
};

#endif
