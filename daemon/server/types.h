/* The server's objects. Who owns whom: the server owns connections, the profile and the registry of mappings; a
 * connection owns its requests, buffers, inline references and streams. A connection that was closed stays until its
 * last request has ended. All of it belongs to the loop thread. */
#ifndef KOPS_SERVER_TYPES_H
#define KOPS_SERVER_TYPES_H

#include <sys/types.h>
#include <uv.h>

#include "backend/devices.h"
#include "backend/mapping.h"
#include "compile/service.h"
#include "core/op.h"
#include "proto/generated/methods.h"
#include "rpc/channel.h"
#include "rpc/input.h"
#include "rpc/message.h"
#include "rpc/output.h"
#include "server/account/account.h"
#include "server/account/host_room.h"
#include "server/account/schedule.h"
#include "server/account/shared_charge.h"
#include "server/account/trimming.h"
#include "server/control/activity.h"
#include "server/control/server.h"
#include "server/observe/profile.h"
#include "util/idtable.h"
#include "util/list.h"
#include "util/log.h"
#include "util/work.h"

enum { MSGID_BUCKETS = 256, INLINE_BUCKETS = 256, STREAMS_MAX = 256, CLIENT_NAME_MAX = 64, COMM_MAX = 15 };
enum { OUTPUT_MAX = 64 * 1024 * 1024 }; /* replies that wait; reading stops long before */

/* What a slow peer is waited for: that it reads, that it sends the rest, that the kernel has memory for its socket. */
enum peer_timeout { PEER_TIMEOUT_READER, PEER_TIMEOUT_MESSAGE, PEER_TIMEOUT_KERNEL, PEER_TIMEOUT_COUNT };

/* The streams that wait for a word of their timelines, and the clock that wakes the loop to look at them. */
struct timeline_poll {
    struct list users;  /* struct account by held_link: whose streams wait, the next one first */
    unsigned turn;      /* of looking at them */
    bool slept;         /* since the last one */
    uint64_t newest_ns; /* when a stream began to wait last */
    int timer;          /* timerfd */
    uv_poll_t poll;
};

enum method {
#define X(NAME, name, CLASS) METHOD_##NAME,
    KOPS_METHODS(X)
#undef X
        METHOD_COUNT
};

/* They only ever grow: stats subtracts what there was when they were last reset. */
struct server_counters {
    uint64_t connections_total, requests, replies, errors, jobs, jobs_cancelled, bytes_in, bytes_out, protocol_errors,
        launches;
};

/* What only metrics tell. */
enum { ERROR_CODES_MAX = 128 /* every code of the daemon's is below */ };
struct server_totals {
    uint64_t requests[METHOD_COUNT + 1]; /* the last: unknown ones */
    uint64_t errors[ERROR_CODES_MAX];
    uint64_t faults;                           /* of devices and of memory; each has a line in the log */
    uint64_t turned_away;                      /* newcomers, for want of descriptors or room for another connection */
    uint64_t dropped_readers, dropped_senders; /* clients that were waited for in vain */
    double device_us[BACKEND_MAX_DEVICES];
};

/* What takes a call to the system or a driver to find out, asked for on the pool. See sampling.c. */
struct sampling {
    struct work work;
    bool busy;
    struct list waiting; /* requests */
    uv_timer_t timer;
    /* Of the last time; UINT64_MAX: not known. The fresh ones are the pool's while it is busy. */
    uint64_t memory_free[BACKEND_MAX_DEVICES], resident_bytes, open_fds;
    uint64_t fresh_free[BACKEND_MAX_DEVICES], fresh_resident_bytes, fresh_open_fds;
};

/* New work is refused while it lasts. See drain.c. */
struct drain {
    bool active, stop, done; /* done: said so in the log */
    uint64_t stop_by_ns;     /* 0: when nothing is in flight any more */
    struct list waiting;     /* requests */
    uv_timer_t timer;
    unsigned work; /* requests in flight that are work: see dispatch() */
};

struct server {
    uv_loop_t loop;
    struct server_config config;
    struct device_set devices;
    struct mapping_registry mappings;
    struct profile *profile;
    struct server_counters counters, counters_then; /* now; at the last reset of stats */
    struct server_totals totals;
    struct latency_table *latencies; /* by op, dtype and device */
    struct drain drain;
    struct sampling sampling;
    struct log_limit connect_limit, disconnect_limit, fault_limit, protocol_limit;
    struct {
        uint64_t requests, at_ns;
    } status_then; /* when the status line was last written */
    struct accounts accounts;
    uint64_t started_ns;
    double started_s;          /* since 1970 */
    char instance[2 * 16 + 1]; /* tells this start of the daemon from every other one */

    struct {
        int fd, reserve_fd; /* the socket; one that can be had back when there are no others; -1 */
        uv_poll_t poll;
        uv_timer_t timer; /* while nobody can be accepted */
        bool started;
        struct account *crowd;     /* a reference: whose turned-away sockets are waited for; NULL */
        unsigned crowd_was, still; /* as of the last look; how many looks it has not changed */
        struct rpc_output notice;  /* its memory is there when there is no other */
        struct log_limit log_limit;
    } listener;
    uv_timer_t backlog_timer; /* while users wait for room: see backlog.c */
    struct trimming trimming;
    struct host_room host_room;
    struct list connections;  /* every struct connection, closed ones too */
    struct list walks;        /* struct report by walk: those that go through the connections */
    unsigned n_connections;   /* not closed */
    struct schedule schedule; /* of connections with output to flush, input to take or something to answer */
    struct rpc_arena *arena;  /* the message being dispatched */
    struct request *free_requests;
    unsigned n_free_requests;

    uv_async_t wake;
    bool woken; /* since the last turn */
    uv_prepare_t prepare;
    uv_check_t check;
    uv_idle_t idle;
    unsigned jobs_running[BACKEND_MAX_DEVICES]; /* submitted, not done */
    unsigned untimed[BACKEND_MAX_DEVICES];      /* runs that nobody wanted timed */
    struct list on_device[BACKEND_MAX_DEVICES]; /* those: struct run by device_link, the oldest first */
    unsigned n_jobs_running;
    struct list free_streams[BACKEND_MAX_DEVICES][PRIORITY_COUNT]; /* struct pooled_stream */
    unsigned streams_made[BACKEND_MAX_DEVICES];
    struct list programs; /* struct program */
    struct code_service *code_service;
    struct list codes, idle_codes; /* struct code: referred to; kept for the next, least recently used first */
    unsigned n_idle_codes;
    struct list yielding; /* streams whose next run is of low priority, while other work is on its device */
    unsigned urgent_running[BACKEND_MAX_DEVICES]; /* of jobs_running, those that are not of low priority */
    struct timeline_poll held;                    /* streams whose next run waits for its client's word */

    int doorbells; /* an epoll of every channel's */
    uv_poll_t doorbells_poll;
    struct ringer *ringer; /* wakes clients; NULL where the daemon does not spin */
    struct list hot;       /* connections whose rings are looked into at every turn */
    struct list recent;    /* the few connections whose sockets had input last */
    unsigned n_recent;
    uint64_t crowded_ns;       /* when there last were more of them than are kept */
    bool active;               /* something came or ended since spin_wanted() was last asked */
    bool slept;                /* the loop blocked since something last came */
    uint64_t last_activity_ns; /* as of then */
    uint64_t spin_ns;          /* the budget: config.spin_us, or less while it keeps failing */

    struct activity activity;
    struct watchdog *watchdog; /* NULL where nothing is to be watched */
    struct server_hooks hooks;
    bool served; /* a request has ended */

    uv_timer_t device_watchdog_timer;
    bool hung[BACKEND_MAX_DEVICES];
    uint64_t progress_of_ns[BACKEND_MAX_DEVICES]; /* when the oldest of what has progressed since the last tick came */

    struct {
        struct list lists[PEER_TIMEOUT_COUNT]; /* connections, those that have waited longest first */
        uv_timer_t timer;
        struct log_limit log_limit;
    } peer_timeouts;
    struct list deadlines; /* runs with a deadline */
    uv_timer_t deadline_timer;

    struct work read_settings;
    bool reading_settings;
    uv_timer_t shutdown_timer;
    bool stopping, cancelled_all, handles_closed;
    int exit_status;
};

/* Charges that a mapping holds (mapping.bill): what the daemon has for as long as there is the entry. */
struct mapping_charges {
    struct charge areas;        /* QUOTA_MAPPINGS */
    struct charge allocated;    /* QUOTA_ALLOCATED: alloc made the memory */
    struct charge fds;          /* QUOTA_FDS: the kept descriptor */
    struct shared_charge *host; /* a reference: QUOTA_HOST, on the file; NULL: it is no memory of the host's */
    struct host_part room;      /* of the server's host_room: its pages that were not there */
};

/* A connection's reference to memory. */
struct buffer_ref {
    uint64_t id;
    struct mapping *mapping;      /* a reference */
    struct shared_charge *shared; /* a reference: its user's on the mapping */
    struct charge charge;         /* QUOTA_BUFFERS */
    uint64_t size;
    bool writable;
    bool allocated; /* by this connection */
};

/* A connection's inline reference, kept for the next request that carries the same. */
struct inline_ref {
    struct list bucket, lru;
    struct mapping *mapping;      /* a reference */
    struct shared_charge *shared; /* a reference */
};

/* What a connection's bodies of one kind take together, and the quota that they count in. */
struct command_memory {
    struct account *account; /* the connection's */
    enum quota quota;
    uint64_t bytes;
};

struct connection {
    struct server *server;
    struct list link;
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
    struct charge backlog;     /* QUOTA_WAITING: of its input and output */
    struct charge waiting_fds; /* … of replies, as far as they are counted */
    char client[CLIENT_NAME_MAX + 1], comm[COMM_MAX + 1];
    bool comm_known;
    uint64_t connected_ns, requests, errors;
    double device_us;
    struct latencies *latencies; /* NULL until something has run */
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
    struct list starved_link;    /* in its account's */
    struct rpc_channel *channel; /* shared memory; NULL without */
    struct list hot_link;        /* in the server's; alone while the ring sleeps */
    struct list recent_link;
    uint64_t ring_active_ns;     /* 0: just now */
    unsigned recent_hits;        /* how often the spin found something at its socket, in a row */
    uint64_t input_active_ns;    /* of the socket */
    bool ring_left;              /* there may be whole messages in the channel's input */
    bool ring_waits;             /* as input_waits */
    bool from_ring;              /* the message being dispatched came through the ring */
    struct idtable buffers;      /* struct buffer_ref */
    uint64_t mapped_bytes;       /* of buffers that were registered */
    uint64_t allocated_bytes;    /* … that alloc made */
    struct idtable programs;     /* struct program */
    struct idtable modules;      /* struct module */
    struct idtable kernels;      /* struct kernel */
    struct list compiles;        /* requests that wait for code */
    struct timelines *timelines; /* NULL until asked for */
    unsigned n_inline;
    struct list inline_buckets[INLINE_BUCKETS], inline_lru; /* least recently used first */
    unsigned inflight, fd_replies;                          /* fd_replies: those whose replies will have descriptors */
    struct command_memory run_bodies, program_bodies;
    uint64_t source_bytes; /* of sources that are being compiled */
    struct request *by_msgid[MSGID_BUCKETS];
    uint64_t next_sequence;
    struct list runs;        /* unfinished run requests, in the order sent */
    unsigned queued;         /* … that no device has */
    struct list barriers;    /* requests that wait for earlier runs, in the order sent */
    struct list reports;     /* requests for long answers, the first of which … */
    struct report *report;   /* … is built; NULL */
    struct list report_link; /* in the user's reports */
    struct stream *streams[STREAMS_MAX];
};

/* Why a run ends early. */
enum run_stop { RUN_GOES_ON, RUN_CANCELLED, RUN_DEADLINE, RUN_ABANDONED };

struct code;

/* Waits until code is loaded. */
struct code_waiter {
    struct list link;
    void (*ready)(struct code_waiter *waiter); /* the code is loaded, or cannot be */
};

enum cache_action { CACHE_LIST, CACHE_CLEAR, CACHE_EXPORT, CACHE_IMPORT };

enum run_state { RUN_QUEUED, RUN_PREPARING, RUN_SUBMITTED };

/* A run's use of one tensor's memory. */
struct operand_ref {
    struct mapping *mapping;      /* used; NULL for an empty tensor */
    struct shared_charge *shared; /* a reference; where there is a mapping */
    bool writable;                /* the reference allows writing */
    bool waiting;
    struct mapping_waiter waiter;
};

/* One op: as it was asked for, and where its tensors are in the body. */
struct command {
    struct op_call call;
    uint16_t tensors[STEP_MAX_OPERANDS]; /* in the body; n_tensors: a null pointer */
    struct kernel *kernel;               /* a reference; NULL: one of the ops */
};

/* What a run computes: tensors, and ops on them in order. */
struct command_list {
    unsigned n_tensors, n_calls;
    unsigned n_launches; /* of the calls: kernels of users */
    struct tensor *tensors;
    struct operand_ref *refs; /* of the tensors */
    struct command *calls;
    struct backend_step *steps; /* of the calls */
    void *memory;               /* what the arrays lie in; NULL: the run itself */
    size_t bytes;               /* of it */
    struct command_memory *pot; /* where they are counted, */
    struct charge charge;       /* and for their user */
    unsigned search_steps;      /* left for finding out which tensors share elements */
};

/* How a run is to be run. */
struct run_options {
    uint64_t stream, warmup, repeat;
    bool timing;
    uint64_t deadline_ms, ready, done; /* 0: none */
};

struct run {
    enum run_state state;
    enum run_stop stop;
    struct command_list commands;
    struct backend_job job;
    struct backend_device *device;
    enum backend_priority priority;
    struct program *program; /* referenced while it runs; or NULL */
    bool rebound;            /* the body is not quite the program's */
    bool sampled;            /* timed for the statistics alone: nobody asked */
    struct stream *stream;
    struct list queue_link, order_link, deadline_link, device_link;
    unsigned maps_pending;
    uint64_t map_started_ns, ready_ns, deadline_ns;
    uint64_t ready, done; /* timeline values; 0: none */
    double map_us;        /* NAN: nothing had to be opened */
    bool failed;
    struct error error;
    double sample, *samples; /* one inline; more allocated */
    struct work prepare;
    /* The body of a single op. */
    struct command one_call;
    struct tensor one_tensors[STEP_MAX_OPERANDS];
    struct operand_ref one_refs[STEP_MAX_OPERANDS];
    struct backend_step one_step;
};

struct request {
    struct connection *connection;
    enum method method;
    uint32_t msgid;
    bool notification;
    bool by_ring;    /* it came through the ring, and so goes its reply */
    bool work;       /* counted in the server's drain.work */
    bool brings_fds; /* its reply has descriptors; counted in the connection's fd_replies */
    bool answered;   /* before its work has ended: nobody has its msgid any more */
    uint64_t sequence, received_ns;
    struct charge charge; /* QUOTA_INFLIGHT */
    struct request *next; /* in its msgid bucket, or in the free list */
    union {
        struct run run; /* run, sequence, run_program */
        struct {
            struct list link; /* in the page's, while it is attached */
        } timelines;
        struct {
            struct work work;
            struct backend_device *device;
            uint64_t size;
            struct charge charge;  /* QUOTA_ALLOCATED; a mapping's from when there is one */
            struct charge host;    /* QUOTA_HOST, until there is a file to be charged for */
            struct host_part room; /* of the server's host_room; a mapping's from when there is one */
            struct backend_memory *memory;
            int fd;
            struct error error;
        } alloc;
        struct {
            struct list link;             /* in the connection's compiles */
            struct code_request *request; /* NULL once there is code */
            uint64_t bytes;               /* of the source with its files, counted in the connection's source_bytes */
            struct charge charge;         /* QUOTA_WAITING: those */
            struct backend_device *device;
            enum code_origin origin;
            struct code *code; /* a reference */
            struct code_waiter waiter;
        } compile;
        struct {
            enum cache_action action;
            struct code_task *task;
        } cache;
        struct {
            struct list link;
            struct profile_filter filter;
            bool reset;
            struct mapping_flush flush;
            uint64_t bytes, count; /* trimmed */
        } barrier;                 /* trim, stats */
        struct {
            struct list link; /* in drain.waiting, or sampling.waiting */
            uint64_t by_ns;   /* drain: 0: as long as it takes */
        } watch;              /* drain, clients, metrics */
    };
};

/* Which of a device's queues serves a stream of ordered work: two are tried. See pairing.c. */
struct queue_probe {
    enum { PROBE_FIRST, PROBE_OTHER, PROBE_SETTLED } phase;
    unsigned seen;                /* ordered runs in this phase */
    uint64_t last_ns, best_ns[2]; /* when the last one began; the shortest time from one to the next */
    struct device_queue *spare;   /* the first one, while the other is tried */
};

/* The queue of one stream number of a connection. Runs enter in the order sent; the first that was not given goes on
 * when its mappings are open, when its timeline allows, and when the device and its preparation do. */
struct stream {
    struct connection *connection;
    unsigned number;
    struct list given,
        queue; /* struct run by queue_link: those that a device has or is to have, and those behind them */
    unsigned submitted, preparing;
    unsigned repeating;             /* submitted runs of several executions */
    struct backend_device *device;  /* of what is submitted */
    enum backend_priority priority; /* of what is submitted */
    uint64_t last_ready, last_done; /* the highest timeline values so far */
    uint64_t owed_ready;    /* what runs that ended without it should have waited for, and those behind them do */
    struct list yield_link; /* in server->yielding */
    struct list held_link;  /* in its user's held */
    unsigned looked;        /* the turn in which it was looked at last */
    uint64_t held_since_ns, held_for;                                   /* while it is there: since when, which value */
    struct device_queue *backends[BACKEND_MAX_DEVICES][PRIORITY_COUNT]; /* made at first use */
    struct queue_probe queue_probe;
    uint64_t ended_ns; /* when the last of its runs ended */
    uint64_t watched;  /* what hang.c saw first in the queue: its sequence, plus one */
    uint32_t watched_ended;
    unsigned watched_ticks;
    bool still;
};

struct device_queue {
    struct list link; /* while free */
    struct backend_device *device;
    enum backend_priority priority;
    unsigned number; /* of the device's, in the order made */
    struct backend_stream *stream;
};

#endif
