/* The state of this room: the listening socket, the connections, and the rings and timers that belong to them. Only
 * files of this folder include it. Thread: loop. */
#ifndef KOPS_SERVER_PEER_ROOM_H
#define KOPS_SERVER_PEER_ROOM_H

#include "server/peer/connection.h"
#include "server/peer/request.h"
#include "util/log.h"

struct listening {
    struct list link;
    struct server *server;
    struct identity *identity; /* identity of the peers; NULL: they are users */
    int fd;
    uv_poll_t poll;
    bool watched; /* the handle exists */
};

struct peers {
    const struct method_entry *methods;
    const struct connection_part *const *parts; /* NULL-terminated, in the order of begin(); end() goes backwards */
    struct {
        struct list sockets; /* struct listening, the users' first */
        int reserve_fd;      /* a spare descriptor, to close when there are no others; -1: none */
        uv_timer_t timer;    /* runs while nothing is accepted */
        bool started, paused;
        struct account *awaited; /* a reference: the account whose sockets are being closed; NULL: none is waited for */
        unsigned excess_was, still; /* excess_was: sockets at the last look; still: looks without a change */
        struct rpc_output notice;   /* memory reserved for when there is no other */
    } listener;
    struct log_limit connect_limit, disconnect_limit, fault_limit, protocol_limit, refuse_limit;
    uv_timer_t user_pressure_timer; /* runs while accounts are pressed: see back_pressure.c */
    struct list connections;        /* every struct connection, closed ones too */
    struct list done;               /* closed connections that are freed at the end of the turn */
    unsigned n_connections;         /* not closed */
    size_t state_bytes;             /* state of a request: the most that a method needs */
    struct request *free_requests;
    unsigned n_free_requests;
    const struct connection *last_asker; /* connection of the last request; NULL: it is gone */
    bool served;                         /* a request has ended */

    int doorbells; /* an epoll of every channel's doorbell */
    uv_poll_t doorbells_poll;
    struct waker *waker; /* wakes clients; NULL where the daemon does not poll */
    struct list hot;     /* connections whose rings are looked into at every turn */
    struct list recent;  /* connections whose sockets had input last, a few */
    unsigned n_recent;
    uint64_t overflowed_ns; /* when a connection was last dropped from them for another one */

    struct {
        struct list lists[PEER_TIMEOUT_COUNT]; /* connections, the one that has waited longest first */
        uv_timer_t timer;
        struct log_limit log_limit;
    } peer_timeouts;
};

#endif
