/* Shared by the service's files. Thread: the loop's, except where a function says pool. */
#ifndef KOPS_COMPILE_SERVICE_INTERNAL_H
#define KOPS_COMPILE_SERVICE_INTERNAL_H

#include <pthread.h>

#include "compile/cache.h"
#include "compile/helper_wire.h"
#include "compile/service.h"
#include "util/list.h"
#include "util/loop.h"

struct turns {
    struct list users;
    uint64_t begun; /* compiles, so far */
};

/* Shortest time of a compile before it is interrupted, where users can only take turns. */
enum { TURN_SLICE_MS = 500 };

enum inflight_state { READING, ASKING, QUEUED, COMPILING, FINISHED };

/* An in-flight compile: one module and all requests for it. */
struct inflight {
    struct list link;
    struct work work; /* READING */
    struct code_service *service;
    enum inflight_state state;
    unsigned char key[KEY_BYTES];
    struct request request; /* a copy of the input, whose texts lie in `frame` */
    struct buffer frame;
    struct compile_job *job;       /* COMPILING; QUEUED: a paused one, which goes on at its turn */
    struct turn_place *place;      /* COMPILING: a reference to the place of the waiter whose turn it was */
    uint64_t began_ms;             /* COMPILING: the compile began or went on then */
    uint64_t ran_ms;               /* time that the job had run before `began_ms` */
    uint64_t lost_ms;              /* time of jobs that were ended for other users' sources */
    unsigned interruptions;        /* for other users' sources: jobs that were paused, or ended */
    struct compiled *compiled;     /* read from disk */
    struct remote_request *asked;  /* request to the remote cache, also while QUEUED and COMPILING; NULL: none */
    struct verification *verified; /* the remote cache's answer, on the pool; NULL: none */
    uint64_t patient_until_ms;     /* ASKING: then the compiler is asked, too */
    struct list waiters;
};

struct code_request {
    struct list link; /* in inflight.waiters */
    struct inflight *inflight;
    struct turn_place *place; /* a reference */
    uint64_t number;          /* in the order of asking */
    code_done *done;
    void *context;
};

/* The service's connection to the remote cache. */
struct service_remote {
    struct remote *server; /* NULL: none */
    unsigned generation;   /* counts servers */
    struct signed_trust trust;
    bool publishes;
    struct signing_key key;
    unsigned wait_ms;
    uv_timer_t patience; /* the next ASKING that has waited long enough */
    struct code_remote_counters counters;
    struct list uploads; /* being made, or waiting for their answer */
    unsigned n_uploads;
    uint64_t upload_bytes;
};

struct code_service {
    uv_loop_t *loop;
    struct compiler *compiler; /* NULL once it is closed */
    struct cache_memory *memory;
    struct cache_disk *disk; /* NULL: none */
    uint64_t source_bytes, memory_bytes;
    struct list inflight;
    struct list stores;         /* files that are being written */
    pthread_rwlock_t storing;   /* shared by those that write a file, alone by one that clears the cache; pool */
    unsigned n_compiling, most; /* sources that the compiler works at, and at most */
    unsigned n_paused;          /* sources that the compiler has paused, at most `most`, too */
    uint64_t time_ms;           /* for one compile */
    struct turns turns;         /* among requests that wait for the compiler */
    uv_timer_t slice;           /* ends when a running compile may have to make room for one that waits */
    uint64_t n_requests;        /* requests so far */
    unsigned busy;              /* work on the pool, and running callbacks: they keep the service */
    bool closing;
    void (*closed)(void *context);
    void *closed_context;
    struct code_counters counters;
    struct service_remote remote;
};

/* ---- service.c ---- */

static inline void service_hold(struct code_service *s)
{
    s->busy++;
}

/* May free the service, when it is closing. */
void service_let_go(struct code_service *s);

/* Writes the module's file on the pool. A failure is a line in the log. */
void service_store(struct code_service *s, struct compiled *compiled);
/* Prevents files of modules with this key (NULL: all) that are not written yet; a pool task that then takes `storing`
 * alone finds none. */
void service_drop_stores(struct code_service *s, const unsigned char *key);

/* Answers all requests in their order and frees the compile. Their done() may request more, cancel each other or close
 * the service. */
void inflight_finish(struct inflight *f, struct compiled *compiled, enum code_origin origin, const struct error *e,
                     const struct compile_failure *failure);
/* Answers all requests with a module from elsewhere, and frees the compile. The compiler stops. */
void inflight_succeed(struct inflight *f, struct compiled *compiled, enum code_origin origin);

/* ---- service_queue.c ---- */

/* Returns a reference to a connection's place among those that take turns. The place stays while the connection has
 * sources that wait or are compiled. NULL: memory is short. */
struct turn_place *turn_place_get(struct turns *turns, uint64_t user, uint64_t connection);
void turn_place_unref(struct turn_place *place); /* NULL: nothing */

void service_queue_begin(struct code_service *s);
void service_queue_end(struct code_service *s);
/* Tells whether a source of `place` may be given to the compiler before all that wait. Interrupts another user's source
 * where that is due. */
bool service_has_room(struct code_service *s, const struct turn_place *place);
/* Begins a compile on account of `place`. False: there was no memory. */
bool inflight_begin(struct inflight *f, struct turn_place *place);
/* Makes the compiler stop with the source, if it has it. */
void inflight_stop(struct inflight *f);
/* Lets the source wait for the compiler. */
void inflight_queue(struct inflight *f);
/* Gives waiting sources to the compiler, as far as there is room. */
void service_start_queued(struct code_service *s);
/* Calls service_start_queued() soon, from the loop: one more waits. */
void service_watch_turns(struct code_service *s);
int inflight_no_memory(size_t bytes, struct error *e);

/* ---- service_remote.c ---- */

void service_remote_begin(struct code_service *s);
/* Closes with the service: nobody wants the answers that are on their way. */
void service_remote_end(struct code_service *s);
/* Asks the remote cache; the compile is ASKING when this returns true. */
bool service_remote_ask(struct inflight *f);
/* Gives up the answer. `too_late`: the compiler was faster. */
void service_remote_leave(struct inflight *f, bool too_late);
/* Signs a module that was compiled here and sends it, if this machine publishes. */
void service_publish(struct code_service *s, struct compiled *compiled);

#endif
