/* A client's connection: its socket, what it owns, and its end. */
#ifndef KOPS_SERVER_PEER_CONNECTION_H
#define KOPS_SERVER_PEER_CONNECTION_H

#include "rpc/channel.h"
#include "rpc/input.h"
#include "rpc/output.h"
#include "server/base/shared.h"

enum { MSGID_BUCKETS = 256, CLIENT_NAME_MAX = 64, COMM_MAX = 15 };
enum { OUTPUT_MAX = 64 * 1024 * 1024 }; /* replies that wait; reading stops long before */
/* Bytes of memory that a connection's requests in flight take, beyond which it is not read until some have ended. */
enum { REQUEST_BYTES_MAX = 32 << 20 };

/* What a slow peer is waited for: that it reads, that it sends the rest, that the kernel has memory for its socket. */
enum peer_timeout { PEER_TIMEOUT_READER, PEER_TIMEOUT_MESSAGE, PEER_TIMEOUT_KERNEL, PEER_TIMEOUT_COUNT };

/* The connection's part in a room above this one. */
struct connection_part {
    int (*begin)(struct connection *c, struct error *e); /* NULL: nothing to do; so for the others */
    void (*end)(struct connection *c);                   /* its socket is gone: gives back what it can */
    void (*free)(struct connection *c);                  /* its last request has ended */
};

struct connection {
    struct server *server;
    struct list link;
    struct list done_link;     /* in the room's done */
    struct schedule_task task; /* in its user's turns */
    int fd, pidfd;
    uv_poll_t poll, exit_poll;
    unsigned open_handles; /* uv handles whose close callback has not come */
    uid_t uid;
    gid_t gid;
    pid_t pid;
    struct account *account; /* a reference: its user's */
    gid_t *groups;           /* beside gid, when it connected */
    unsigned n_groups;
    unsigned access;          /* bits by enum access_class */
    struct charge charge;     /* QUOTA_CONNECTIONS, and QUOTA_FDS: … */
    struct charge socket_fds; /* … its socket and pidfd */
    struct charge bell_fds;   /* … the channel's, */
    struct charge ring_bytes; /* with QUOTA_HOST for its memory */
    struct host_part ring_room;
    struct charge buffered;    /* QUOTA_WAITING: of its input and output */
    struct charge waiting_fds; /* … of replies, as far as they are counted */
    char client[CLIENT_NAME_MAX + 1], comm[COMM_MAX + 1];
    bool comm_known;
    uint64_t connected_ns, requests, errors;
    struct rpc_input input;
    struct rpc_output output;
    bool closed;      /* the socket is gone; requests may be left */
    bool reading;     /* the poll handle asks for input */
    bool writing;     /* … for room to write */
    bool readable;    /* the socket has something that is to be read in the connection's turn … */
    bool ring_ready;  /* … and so does the ring */
    bool input_ended; /* shutting down: nothing more is read */
    bool unwatched;   /* … for nothing: the spin looks itself */
    bool input_left;  /* there may be whole messages in `input` */
    bool input_waits; /* … and the first one needs credit, which there is not */
    bool send_later;  /* the kernel has no memory for what there is to send */
    struct {
        struct list link;
        uint64_t since_ns;
    } waits[PEER_TIMEOUT_COUNT];
    int64_t read_from;           /* when its time as a reader began: what it had taken of its replies … */
    uint64_t read_waiting;       /* … and what waited */
    uint64_t part_at;            /* where in the streams the message began that is waited for */
    struct list paused_link;     /* in its account's */
    struct rpc_channel *channel; /* shared memory; NULL without */
    struct list hot_link;        /* in the server's; alone while the ring sleeps */
    struct list recent_link;
    uint64_t ring_active_ns;       /* 0: just now */
    unsigned recent_hits;          /* how often the spin found something at its socket, in a row */
    uint64_t input_active_ns;      /* of the socket */
    bool ring_left;                /* there may be whole messages in the channel's input */
    bool ring_waits;               /* as input_waits */
    bool from_ring;                /* the message being dispatched came through the ring */
    unsigned inflight, fd_replies; /* fd_replies: those whose replies will have descriptors */
    struct request *by_msgid[MSGID_BUCKETS];
    uint64_t next_sequence;
    uint64_t held_bytes;           /* of its requests in flight, in the rooms above; see REQUEST_BYTES_MAX */
    struct list unfinished;        /* requests that ran or will run ops, by order_link, in the order sent */
    struct list barriers;          /* requests that wait for earlier runs, in the order sent */
    struct list long_replies;      /* requests for long answers, the first of which … */
    struct long_reply *long_reply; /* … is built; NULL */
    struct list long_reply_link;   /* in the user's reports */

    struct connection_memory *memory; /* its buffers */
    struct connection_code *code;     /* its modules and kernels */
    struct connection_exec *exec;     /* its streams and programs */
    struct connection_statistics *statistics;
};

/* Takes over an accepted, non-blocking socket. Returns NULL, with the socket still the caller's, when it cannot be
 * served; *e is for the peer, and the log has a line. */
struct connection *connection_new(struct server *server, int fd, struct error *e);

/* Ends it: no reply goes out any more, everything it owns is given back, jobs are stopped. It frees itself once its
 * last request has ended. `why` is for the log. */
void connection_close(struct connection *c, const char *why);

/* Ends it after telling the client so: an error notification, behind the replies that are there. */
void connection_fail(struct connection *c, const struct error *e, const char *why);

/* A request or a handle of the connection has ended. A closed connection of which nothing is left is freed at the end
 * of the loop's turn, and at no other time: no function needs to ask whether its connection is still there. */
void connection_note_done(struct connection *c);
void connections_free_done(struct server *s);

/* Takes input, goes on with what waits, sends replies. */
void connection_turn(struct connection *c);
/* Watches the socket for what the connection waits for. Negative: no memory. */
int connection_watch_socket(struct connection *c);

/* connection_input.c: what it sends. */
/* Takes what its socket has, or a bounded part of it, and dispatches it. */
void connection_take_input(struct connection *c);
/* Dispatches messages that are there already. -1: the connection was closed. */
int connection_process(struct connection *c);
/* Ends it for breaking the protocol, or because the daemon has no room for what it sent. */
void connection_violation(struct connection *c, const struct error *e);

/* Dispatches a bounded number of messages of its ring. True when there were any. */
bool connection_read_ring(struct connection *c);
/* The loop need not watch its socket, because somebody looks at it all the time; it must again. Being watched costs a
 * sender time at every message. */
void connection_unwatch(struct connection *c);
void connection_watch(struct connection *c);

/* Looks at its socket without waiting for the loop to say that it is readable. */
void connection_read_socket(struct connection *c);
/* Reads what is there and dispatches it, on its socket and its ring. */
void connection_read_all(struct connection *c);
/* The same, then reads no more (the daemon is stopping). */
void connection_end_input(struct connection *c);

/* Bytes that have come and gone, through the socket and the ring. */
uint64_t connection_bytes_in(const struct connection *c);
uint64_t connection_bytes_out(const struct connection *c);

/* Looks up the name of the peer's process, once. */
void connection_name_process(struct connection *c);

/* A list of every connection, closed ones too, by `link`; connections that are not closed. */
struct list *peers_connections(const struct server *s);
unsigned peers_open_connections(const struct server *s);

#endif
