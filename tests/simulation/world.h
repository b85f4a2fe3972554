/* What the processes of a simulation share: virtual time, one random sequence, and whose turn it is.
 *
 * Of all threads of all these processes one runs at a time: the one that has the turn. libkops_simulation.so, which is
 * preloaded into each, gives the turn on at calls of the C library (locks, clocks, descriptors, processes), to a thread
 * that the seed chooses. A step takes a little virtual time; when all threads wait, the clock goes on to the first
 * deadline. So a seed is a whole run. */
#ifndef KOPS_TESTS_SIMULATION_WORLD_H
#define KOPS_TESTS_SIMULATION_WORLD_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#define WORLD_VARIABLE "KOPS_STANDIN_WORLD"
#define NEVER          UINT64_MAX

enum {
    PARTIES = 512,
    PLANNED = 64,
    NAME_BYTES = 24,
    TRACE_BYTES = 256 << 20,
    BLOCKS_BITS = 18,
    BLOCKS = 1 << BLOCKS_BITS,
    INODES = 1 << 14
};

enum { WAKES_DAEMON, WAKES_EXECUTORS, WAKES_CLIENTS, WAKES };

enum party_state {
    PARTY_NONE,
    PARTY_BORN,  /* its process or thread was begun, and has not taken its first turn */
    PARTY_READY, /* runs as soon as it is its turn */
    PARTY_WAITS, /* until `until_ns`, or what `key` names has happened */
    PARTY_ENDED
};

enum { DAEMON_GROUP = 0 };

enum { KEY_NONE = 0, KEY_DESCRIPTORS = 1 }; /* else a lock or a condition: made of its process and address */

/* A thread. Only the thread that has the turn writes here; `turn` is written by the one before. */
struct party {
    _Atomic uint32_t turn;   /* a futex: 1: it has the turn */
    _Atomic uint32_t state;  /* enum party_state */
    _Atomic int32_t process; /* its pid */
    uint32_t group;          /* of processes: a role's number of simulator.c */
    uint64_t thread;         /* pthread_t; 0: the first of its process */
    uint64_t until_ns, key;
    _Atomic uint32_t stale; /* of KEY_DESCRIPTORS: something was done to one since it looked */
    uint64_t ran_ns;        /* virtual processor time */
    uint32_t sleeps;        /* it is to do nothing for a second at least */
    uint32_t looks;         /* at the clock, since it did anything else */
    uint32_t signalled;     /* a condition */
    uint32_t weight;        /* how likely it is to be chosen: some are slow */
    uint32_t paused;        /* it is not chosen */
    char name[NAME_BYTES];
};

enum world_request {
    REQUEST_NONE,
    REQUEST_STEP,        /* the next planned event is due */
    REQUEST_ENDS,        /* a process exits: `request_process` */
    REQUEST_THREAD_ENDS, /* a thread of that process exits: `request_thread` */
    REQUEST_IDLE,        /* all threads wait for ever */
    REQUEST_STEPS        /* all of the steps are used up */
};

struct world {
    uint64_t random[2];
    uint64_t now_ns;              /* CLOCK_MONOTONIC */
    _Atomic uint64_t descriptors; /* how often anything was done to one */
    _Atomic uint64_t steps;
    uint64_t next_event, last_step;
    uint64_t begin_ns;               /* now_ns at the begin */
    uint64_t skipped_ns;             /* in which all threads waited */
    uint64_t quiet_since_ns;         /* all clients sleep, or there is none; NEVER: some do something */
    uint64_t quiet_ns, wakes[WAKES]; /* how long this lasted, but for its begin, and who woke meanwhile */
    uint64_t slow_start_ns;          /* the longest that an executor's process takes to begin */
    uint64_t alarm_ns;               /* the simulator has something to do then: its turn */
    uint64_t turns;                  /* given on */
    uint64_t hash;                   /* of who had each turn: equal runs have equal ones */
    _Atomic int32_t holder;
    _Atomic uint32_t request; /* enum world_request */
    int32_t request_process, request_thread;
    _Atomic int32_t ending; /* the process that has the turn exits */
    uint32_t
        scales; /* of the distance between changes within our code: up to 2 to the power of this, in basic blocks */
    uint32_t n_parties;
    struct party parties[PARTIES]; /* the first is the simulator */
    char path[256];
    uint32_t processors;     /* that processes see */
    uint64_t inodes[INODES]; /* of files that were looked at, in that order: their number is their place */
    uint32_t n_inodes;
    bool trace, trace_blocks;
    uint64_t n_told;
    char told[TRACE_BYTES]; /* with --trace: a line a turn, a step and a wait; the first of them */
    uint8_t blocks[BLOCKS]; /* 1: a basic block with this hash was reached. Last: run reads it from the file's end */
};

/* turn.c */
uint64_t world_random(struct world *w);
void world_give(struct world *w, unsigned party);
unsigned world_choose(struct world *w);
unsigned world_add(struct world *w, pid_t process, uint32_t group, const char *name);
void world_wait_for_turn(const struct world *w, struct party *p);
void world_end_with_simulator(const struct world *w);
void world_process_ended(struct world *w, pid_t process);
void world_changed(struct world *w); /* something was done to a descriptor that anybody may wait for */
__attribute__((format(printf, 2, 3))) void world_tell(struct world *w, const char *format, ...);

#endif
