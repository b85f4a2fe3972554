/* The state of this room. Only files of this folder include it.
 *
 * Threads: the loop, and one thread of the room, the measurer, which calls the backends' tune(), reads and writes the
 * file, and writes the table. A task belongs to the side that has it: the loop makes it and gets it back. */
#ifndef KOPS_SERVER_TUNE_ROOM_H
#define KOPS_SERVER_TUNE_ROOM_H

#include <pthread.h>

#include "core/tuning.h"
#include "server/base/shared.h"
#include "server/tune/tune.h"

enum {
    TUNED_MAX = 4096,     /* choices that are kept */
    TASKS_MAX = 64,       /* tasks that wait, of all users together */
    TUNE_USERS_MAX = 16,  /* users of one problem; the earliest ones are forgotten */
    UNFINISHED_MAX = 256, /* problems of which tunings have tried some candidates and not all */
};

/* Users whose work has brought a problem up, the latest last. An identity has its number. */
struct tune_users {
    uint32_t n;
    uid_t uids[TUNE_USERS_MAX];
};

/* A choice that was made. */
struct tuned {
    struct tuning_key key;
    struct tuning_choice choice;
    char machine[2 * TUNING_TEXT_BYTES], problem[TUNING_TEXT_BYTES], chosen[48], usual[48];
    double us, usual_us, noise; /* times of the choice, and of what would run without it */
    int64_t at_s;               /* since 1970 */
    uint32_t tried, candidates; /* candidates that were tried, of how many; 0: not known */
    struct tune_users users;
};

/* Candidates of a problem that tunings have tried, where there was no time for all of them. */
struct unfinished {
    struct tuning_key key;
    uint32_t n;
    struct unfinished_candidate {
        uint64_t choice; /* a hash of it */
        float us;
        uint32_t failed;
    } tried[TUNING_CANDIDATES_MAX];
};

struct tune_task {
    struct list link; /* in queue or done */
    struct backend_device *device;
    struct tuning_request request;
    struct tune_users users;
    bool idle;                    /* begun by the daemon itself, for no user */
    atomic_bool cancelled;        /* the loop wants it to end */
    struct request *waiting;      /* request that gets the reply; NULL: nobody waits any more. The loop's */
    uint64_t begin_ns;            /* time when it was asked for */
    uint64_t answer_ns;           /* time of the reply, whether the tuning is done or not */
    struct tuning_result *listed; /* the candidates, once they are known. Under the lock */
    struct account *account;      /* account of the user who asked, while the task counts there. The loop's */
    bool failed;                  /* `error` says why */
    struct error error;
    struct tuning_result result;
};

struct seen;

struct tune {
    struct server *server;
    struct tuning_table *table;
    int table_fd;
    pthread_t thread;
    bool has_thread;
    bool was_turned; /* the loop has turned */

    pthread_mutex_t lock;
    pthread_cond_t wanted;
    struct list queue, done;   /* struct tune_task; under the lock */
    struct tune_task *current; /* under the lock */
    unsigned n_tasks;          /* in all; the loop's */
    unsigned n_waiting;        /* tasks with a request that waits; the loop's */
    bool ending;               /* under the lock */
    atomic_bool news;          /* `done` is not empty */

    /* Choices, the newest last. Under the lock. */
    struct tuned *tuned;
    unsigned n_tuned;
    bool clear_wanted; /* the file and the table are to forget everything */

    struct unfinished *unfinished; /* the one that was tuned last comes last; the measurer's */
    unsigned n_unfinished;

    /* Words that the loop writes for the measurer. */
    struct tune_load {
        atomic_uint running; /* jobs that the device has */
        atomic_ullong begun; /* jobs that the device ever had */
    } load[BACKEND_MAX_DEVICES];

    /* See idle.c. The loop's. */
    struct seen *seen;
    unsigned n_wanted; /* problems in `seen` that are to be tuned */
    uv_timer_t idle;
    uv_timer_t overdue;    /* wakes the loop when a reply is */
    uint64_t idle_jobs;    /* jobs that were ever begun, at the timer's last tick */
    uint64_t idle_next_ns; /* no idle tuning before */
};

/* ---- tune.c ---- */

/* Starts the measurer where it does not run. */
int tune_start(struct server *s, struct error *e);

/* Hands a task to the measurer. The thread is started where there is none. After an error the task is the caller's. */
int tune_begin(struct server *s, struct tune_task *task, struct error *e);
void tune_task_free(struct tune_task *task);

/* ---- measurer.c ---- */

void *measurer_run(void *tune);

/* ---- method.c ---- */

/* Answers the request that waits for a task, which has ended. */
void tune_answer(const struct tune_task *task);
/* Answers the request that waits for a task, which has not ended: with its list of candidates, NULL where there is none
 * yet. `goes_on`: it is being measured. */
void tune_answer_early(const struct tune_task *task, const struct tuning_result *listed, bool goes_on);

/* ---- tuned.c ---- */

void tune_users_add(struct tune_users *users, uid_t uid);
void tune_users_join(struct tune_users *users, const struct tune_users *more);
bool tune_users_has(const struct tune_users *users, uid_t uid);

/* The choice for the key; NULL: none. Under the lock. */
const struct tuned *tuned_find(const struct tune *t, const struct tuning_key *key);
/* Adds a choice to the list and to the table. Thread: the measurer, or before it starts. */
void tuned_publish(void *tune, const struct tuned *tuned);

struct store;

/* Unfinished tunings. Thread: the measurer, or before it starts. */

/* Tells the candidates that earlier tunings of the problem have tried. */
void unfinished_recall(const struct tune *t, struct tuning_result *r);
/* Keeps what has been tried, or forgets the problem where everything has. */
void unfinished_keep(struct tune *t, struct store *store, const struct tuning_result *r);
/* Adds a choice that an earlier daemon has kept. `tune`: a struct tune. */
void unfinished_add(void *tune, const struct unfinished *u);
void unfinished_clear(struct tune *t);

/* ---- store.c: the file. Thread: the measurer, or before it starts. ---- */

/* Opens `directory`/tuning.sqlite3; where it is missing it is made, or there is nothing to read without `make`. Keeps
 * nothing where there is no directory or no SQLite: the log says why. Never NULL but without memory. */
struct store *store_open(const char *directory, bool make);
struct store *store_close(struct store *s);
/* Calls `each` for every choice, the oldest first. */
void store_read(struct store *s, void (*each)(void *context, const struct tuned *tuned), void *context);
void store_put(struct store *s, const struct tuned *tuned);
/* Keeps what is unfinished. A problem of which nothing was tried is removed. */
void store_read_unfinished(struct store *s, void (*each)(void *context, const struct unfinished *u), void *context);
void store_put_unfinished(struct store *s, const struct unfinished *u);
void store_clear(struct store *s);

/* ---- idle.c ---- */

void idle_init(struct server *s);
void idle_close(struct server *s);
/* A turn of the loop: begins an idle tuning when it is time. */
void idle_step(struct server *s);
/* Candidates of the problem are left: they are tuned when it is time, if anything is. */
void idle_want(struct server *s, const struct tune_task *task);
/* The tuning of a problem has ended. */
void idle_done(struct server *s, const struct tune_task *task);
/* Every choice is forgotten: all problems may be tuned again, once they have come often again. */
void idle_forget(struct server *s);

#endif
