/* How domains and executors share the GPUs: a GPU's turns and its hold, which know nothing of other GPUs, and what
 * domains and executors have for each GPU. Part of front.h. Thread: loop. */
#ifndef KOPS_EXECUTOR_FRONT_SHARE_H
#define KOPS_EXECUTOR_FRONT_SHARE_H

#include <stdbool.h>
#include <stdint.h>

#include "util/list.h"

struct executor;
struct front_stream;

/* ---- turns: see front_turns.c ---- */

/* A domain's turn on one GPU. */
struct front_turn {
    struct list blocked; /* struct front_stream.blocked_link: wait for the executor, room or this turn */
    bool has;
    uint64_t since_ns, waiting_ns, had_ns; /* since when it has it; since when it waits, 0: it does not; in all */
    uint64_t wanted_at_ns;                 /* front_turns.wanted_ns when it began */
    uint64_t late_ns; /* its jobs do not end: since when others go beside it, and it sends only where they do nothing;
                         0: it is not late */
};

/* The turns on one GPU. */
struct front_turns {
    unsigned n, n_late, n_waiting;  /* late ones are among the n */
    uint64_t least_ns;              /* what a domain that comes anew is taken to have had */
    uint64_t wanted_ns, counted_ns; /* time in which it was wanted by more than had turns, until then */
    uint64_t beside_ns, seen_ns;    /* others wait, or have turns beside late ones, since then; when that was last so */
};

/* ---- holds: see front_hold.c ---- */

/* When a user's exclusive job last began. */
struct front_hold_user {
    uint64_t owner, last_ns;
};

enum { FRONT_HOLD_USERS = 32 /* that are remembered, the last ones */ };

/* The hold of one GPU. */
struct front_hold {
    struct executor *holder;     /* the only one that is sent a job of the GPU; NULL: all are */
    uint64_t key;                /* its domain */
    struct front_stream *stream; /* whose job it is, or is to be; NULL: it has ended */
    uint64_t owner;              /* the job's */
    bool exclusive;              /* the job is exclusive, and does not count */
    bool counting;               /* the holder has its job */
    uint64_t since_ns;           /* it waits for the others since then, or it counts */
    uint64_t kept_ns;            /* a job of others waits for the hold's end since then; 0: none does */
    uint64_t asked_ns;           /* the same of another exclusive one */
    uint64_t again_ns;           /* no other hold before */
    bool ended;                  /* all domains may go on */
    bool outlasted;              /* an executor has outlasts_ns */
    bool wanted;                 /* a job waits for again_ns */
    struct list alone;         /* struct front_stream.alone_link: wait to be alone, those first that wait for longest */
    struct front_stream *next; /* of these, the one whose turn it is; NULL: not chosen */
    struct front_hold_user users[FRONT_HOLD_USERS];
};

/* ---- executors: see front_load.c ---- */

/* What an executor has on one GPU. */
struct front_load {
    unsigned jobs;        /* unfinished, of the GPU's streams */
    unsigned in_a_row;    /* of these, ended since it had none */
    uint64_t job_ns;      /* how long a domain's job takes once it is the first of its stream, the last ones mostly */
    unsigned users;       /* unfinished jobs that work on the GPU or with memory of it */
    uint64_t used_ns;     /* had the last one then */
    uint64_t outlasts_ns; /* since when its exclusive job has no hold any more, and others are beside it; 0: it has */
};

#endif
