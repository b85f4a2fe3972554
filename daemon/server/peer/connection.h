/* A client's connection: its socket, the resources it owns, and its end. Thread: loop. */
#ifndef KOPS_SERVER_PEER_CONNECTION_H
#define KOPS_SERVER_PEER_CONNECTION_H

#include "rpc/channel.h"
#include "rpc/input.h"
#include "rpc/output.h"
#include "server/base/shared.h"

enum { MSGID_BUCKETS = 256, CLIENT_NAME_MAX = 64, COMM_MAX = 15, CONNECTION_WHO_MAX = WHO_MAX + 40 };
enum { OUTPUT_MAX = 64 * 1024 * 1024 }; /* bytes of waiting replies; reading stops long before */
/* Bytes of memory that a connection's requests in flight may take before it is paused. */
enum { REQUEST_BYTES_MAX = 32 << 20 };

/* The reasons for which a connection waits with a limit: its client does not read, a message lacks its rest, or the
 * kernel has no memory for the socket. */
enum peer_timeout { PEER_TIMEOUT_READER, PEER_TIMEOUT_MESSAGE, PEER_TIMEOUT_KERNEL, PEER_TIMEOUT_COUNT };

/* The connection's part in a room above this one. NULL functions are left out. */
struct connection_part {
    int (*begin)(struct connection *c, struct error *e);
    void (*end)(struct connection *c);  /* the socket is closed: the part gives back all but what requests need */
    void (*free)(struct connection *c); /* the last request has ended */
};

struct connection {
    struct server *server;
    struct list link;
    struct list done_link;     /* in the room's done list */
    struct schedule_task task; /* in its user's turns */
    int fd, pidfd;
    uv_poll_t poll, exit_poll;
    unsigned open_handles;           /* uv handles whose close callback has not come */
    const struct identity *identity; /* the socket's; NULL: the peer's user counts */
    uid_t uid;                       /* the user, or the identity's number: for accounts, rights and domains */
    uid_t peer_uid;                  /* the user of the process, as the kernel says */
    gid_t gid;
    pid_t pid;                /* 0: the process is in a pid namespace that the daemon does not see */
    uint64_t number;          /* no other connection ever has it */
    enum isolation isolation; /* the kernels': as configured, or more; fixed once has_loaded */
    bool has_loaded;          /* a module was loaded for its domain */
    struct account *account;  /* a reference to its user's account */
    gid_t *groups;            /* the peer's groups beside gid, as of when it connected */
    unsigned n_groups;
    unsigned access;            /* bits by enum access_class */
    struct charge charge;       /* QUOTA_CONNECTIONS */
    struct charge socket_fds;   /* QUOTA_FDS: its socket and pidfd */
    struct charge doorbell_fds; /* QUOTA_FDS: its ring's doorbell and wake pipe */
    struct charge ring_bytes;   /* QUOTA_HOST: its ring's memory */
    struct host_part ring_room;
    struct charge buffered;    /* QUOTA_WAITING: its input and output */
    struct charge waiting_fds; /* QUOTA_FDS: descriptors of waiting replies, as far as counted */
    char client[CLIENT_NAME_MAX + 1], comm[COMM_MAX + 1];
    bool comm_known;
    uint64_t connected_ns, requests, errors;
    struct rpc_input input;
    struct rpc_output output;
    bool closed;      /* the socket is closed; requests may be left */
    bool reading;     /* the poll handle asks for input … */
    bool writing;     /* … and for room to write */
    bool readable;    /* the socket has input, to be read in the connection's turn … */
    bool ring_ready;  /* … and so has the ring */
    bool input_ended; /* shutdown: no more input is read */
    bool unwatched;   /* the poll handle is stopped: the busy poll looks at the socket itself */
    bool input_left;  /* `input` may have whole messages … */
    bool input_waits; /* … and the first one waits for credit */
    bool send_later;  /* the kernel has no memory to send the output */
    struct {
        struct list link;
        uint64_t since_ns;
    } waits[PEER_TIMEOUT_COUNT];
    int64_t read_from;           /* bytes the client had read when its time as a reader began … */
    uint64_t read_waiting;       /* … and bytes that waited for it then */
    uint64_t part_at;            /* place in the input where the partial message began whose rest is awaited */
    struct list paused_link;     /* in its account's paused list */
    struct rpc_channel *channel; /* shared memory; NULL without */
    struct list hot_link;        /* in the room's hot list; alone while the ring sleeps */
    struct list recent_link;
    uint64_t ring_active_ns;       /* last time that the ring was found busy; 0: just now */
    unsigned recent_hits;          /* looks of the busy poll that found input at its socket, in a row */
    uint64_t input_active_ns;      /* last time that the socket had input; 0: just now */
    bool ring_left;                /* the ring's input may have whole messages */
    bool ring_waits;               /* like input_waits, for the ring */
    bool from_ring;                /* the message being dispatched came through the ring */
    unsigned inflight, fd_replies; /* fd_replies: requests whose replies will have descriptors */
    struct request *by_msgid[MSGID_BUCKETS];
    uint64_t next_sequence;
    uint64_t request_bytes;        /* memory of its requests in flight; see REQUEST_BYTES_MAX */
    struct list unfinished;        /* requests that ran or will run ops, by order_link, in the order sent */
    struct list barriers;          /* requests that wait for earlier runs, in the order sent */
    struct list long_replies;      /* requests for long replies, in the order sent */
    struct long_reply *long_reply; /* the first of them, while it is built; NULL: none */
    struct list long_reply_link;   /* in its account's reply_queue */

    struct connection_memory *memory; /* buffers and inline references */
    struct connection_code *code;     /* modules and kernels */
    struct connection_exec *exec;     /* streams and programs */
    struct connection_statistics *statistics;
};

/* Takes over an accepted, non-blocking socket. `identity`: that of the listening socket, or NULL. NULL: the connection
 * cannot be served, and the socket stays the caller's; *e is sent to the peer, and the log has a line. */
struct connection *connection_new(struct server *server, int fd, const struct identity *identity, struct error *e);

/* Closes the connection: no more replies are sent, its resources are given back, its jobs are stopped. It is freed
 * after its last request has ended. `why` is for the log. */
void connection_close(struct connection *c, const char *why);

/* Closes the connection after an error notification, which follows the replies that wait. */
void connection_fail(struct connection *c, const struct error *e, const char *why);

/* A request or a handle of the connection has ended. A closed connection with no request left is freed at the end of
 * the loop's turn, and at no other time: no function needs to ask whether its connection still exists. */
void connection_note_done(struct connection *c);
void connections_free_done(struct server *s);

/* Takes input, continues waiting requests, sends replies. */
void connection_turn(struct connection *c);

/* Reads from the socket, up to a turn's share, and dispatches the messages. */
void connection_take_input(struct connection *c);
/* Dispatches messages that were read already. -1: the connection was closed. */
int connection_process(struct connection *c);
/* Closes the connection for breaking the protocol, or because the daemon has no room for its messages. */
void connection_violation(struct connection *c, const struct error *e);

/* Dispatches messages of its ring, up to a turn's share. True when there were any. */
bool connection_read_ring(struct connection *c);
/* Stops and starts watching the socket: being watched costs a sender time at every message, and the busy poll looks at
 * the socket anyway. */
void connection_unwatch(struct connection *c);
void connection_watch(struct connection *c);

/* The socket had input: it is one of the recent sockets, see peers.h. */
void recent_socket_used(struct connection *c);
/* The socket is none of them any more; harmless when it is none. */
void recent_socket_forget(struct connection *c);

/* Makes the connection's channel. The caller sends and closes the descriptors. */
int ring_open(struct connection *c, int ret_fds[CHANNEL_FDS], struct error *e);
/* The ring is busy: every turn of the loop looks into it. */
void ring_heat(struct connection *c);

/* Reads the socket without waiting for the loop to say that it is readable. */
void connection_read_socket(struct connection *c);
/* Reads and dispatches all input that has come, from its socket and its ring. */
void connection_read_all(struct connection *c);
/* As connection_read_all(), then reads no more: for the shutdown. */
void connection_end_input(struct connection *c);

/* Bytes received and sent, through the socket and the ring. */
uint64_t connection_bytes_in(const struct connection *c);
uint64_t connection_bytes_out(const struct connection *c);

/* The domain of its kernels, and of all its jobs from its first launch on (see backend.h). */
uint64_t connection_domain(const struct connection *c);
/* The domain of one user (ISOLATE_USER, *ret_number: the uid), of one connection (ISOLATE_CONNECTION, *ret_number: the
 * connection's), or DOMAIN_COMMON (ISOLATE_NONE, 0). */
enum isolation domain_kind(uint64_t domain, uint64_t *ret_number);

/* events.c: looks up the name of the peer's process, once. */
void connection_name_process(struct connection *c);
/* For the log: "pid=1 uid=0", and " identity=NAME" where there is one. Returns `into`. */
const char *connection_who(const struct connection *c, char into[CONNECTION_WHO_MAX]);

/* peers_connections(): every connection by `link`, closed ones too. peers_open_connections(): the number of connections
 * that are not closed. */
struct list *peers_connections(const struct server *s);
unsigned peers_open_connections(const struct server *s);

#endif
