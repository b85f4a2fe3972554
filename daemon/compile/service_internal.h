/* Shared by the service's files. Thread: the loop's, except where a function says pool. */
#ifndef KOPS_COMPILE_SERVICE_INTERNAL_H
#define KOPS_COMPILE_SERVICE_INTERNAL_H

#include <pthread.h>

#include "compile/cache_disk.h"
#include "compile/cache_memory.h"
#include "compile/helper_wire.h"
#include "compile/service.h"
#include "util/list.h"
#include "util/work.h"

struct turns {
    struct list users;
    uint64_t begun; /* compiles, so far */
};

/* A compile that nobody interrupts has so long where users can only take turns. */
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
    struct turn_place *place;      /* COMPILING: a reference to that of the waiter whose turn it was */
    uint64_t began_ms;             /* COMPILING: the compile began or went on then */
    uint64_t ran_ms;               /* the job had run so long before that */
    uint64_t lost_ms;              /* by jobs that were ended for other users' sources */
    unsigned interruptions;        /* for other users' sources: jobs that were paused, or ended */
    struct compiled *compiled;     /* read from disk */
    struct remote_request *asked;  /* to the shared cache, also while QUEUED and COMPILING; NULL: none */
    struct verification *verified; /* the shared cache's answer, on the pool; NULL: none */
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

/* The shared cache, as the service has it. */
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
    uint64_t n_requests;        /* so far */
    unsigned busy;              /* work on the pool, callbacks that run: they keep the service */
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
/* Files of modules with this key (NULL: all) that are not there yet are not written any more; a task of the pool that
 * then takes `storing` alone finds none. */
void service_drop_stores(struct code_service *s, const unsigned char *key);

/* Answers all requests in their order and frees the compile. Their done() may request more, cancel each other or close
 * the service. */
void inflight_finish(struct inflight *f, struct compiled *compiled, enum code_origin origin, const struct error *e,
                     const struct compile_failure *failure);
/* The module has come from elsewhere: answers all requests, frees the compile. The compiler stops. */
void inflight_succeed(struct inflight *f, struct compiled *compiled, enum code_origin origin);

/* ---- service_queue.c ---- */

/* A reference to a connection's place among those that take turns. It stays while the connection has sources that wait
 * or are compiled. NULL: memory is short. */
struct turn_place *turn_place_get(struct turns *turns, uint64_t user, uint64_t connection);
void turn_place_unref(struct turn_place *place); /* NULL: nothing */

void service_queue_begin(struct code_service *s);
void service_queue_end(struct code_service *s);
/* Whether a source of `place` may be given to the compiler before all that wait. Interrupts another user's where that
 * is due. */
bool service_has_room(struct code_service *s, const struct turn_place *place);
/* On account of `place`. False: there was no memory for it. */
bool inflight_begin(struct inflight *f, struct turn_place *place);
/* The compiler does not go on with the source, if it has it. */
void inflight_stop(struct inflight *f);
/* The source waits for the compiler. */
void inflight_queue(struct inflight *f);
/* Gives the compiler what waits, as far as there is room. */
void service_start_queued(struct code_service *s);
/* Calls service_start_queued() soon, from the loop: one more waits. */
void service_watch_turns(struct code_service *s);
int inflight_no_memory(size_t bytes, struct error *e);

/* ---- service_remote.c ---- */

void service_remote_begin(struct code_service *s);
/* The service closes: nobody wants what is on its way. */
void service_remote_end(struct code_service *s);
/* Asks the shared cache; ASKING at the return of true. */
bool service_remote_ask(struct inflight *f);
/* The answer is not wanted any more. `too_late`: since the compiler was faster. */
void service_remote_leave(struct inflight *f, bool too_late);
/* Signs a module that was compiled here and sends it, where this machine does that. */
void service_publish(struct code_service *s, struct compiled *compiled);

#endif
