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
    TUNED_MAX = 4096, /* choices that are kept */
    TASKS_MAX = 64,   /* that wait, of all users together */
};

/* A choice that was made. */
struct tuned {
    struct tuning_key key;
    struct tuning_choice choice;
    char machine[2 * TUNING_TEXT_BYTES], problem[TUNING_TEXT_BYTES], chosen[48], usual[48];
    double us, usual_us, noise; /* of the choice, and of what would run without it */
    int64_t at_s;               /* since 1970 */
};

struct tune_task {
    struct list link; /* in queue or done */
    struct backend_device *device;
    struct tuning_request request;
    bool idle;               /* nobody has asked for it */
    uint64_t seen;           /* then: which problem of idle.c it is */
    atomic_bool cancelled;   /* the loop wants it to end */
    struct request *waiting; /* for its reply; NULL: nobody waits. The loop's */
    struct account *account; /* of who has asked, while it counts there. The loop's */
    bool failed;             /* `error` says why */
    struct error error;
    struct tuning_result result;
    uint64_t took_ns;
};

struct seen;

struct tune {
    struct server *server;
    struct tuning_table *table;
    int table_fd;
    pthread_t thread;
    bool has_thread;

    pthread_mutex_t lock;
    pthread_cond_t wanted;
    struct list queue, done;   /* struct tune_task; under the lock */
    struct tune_task *current; /* under the lock */
    unsigned n_tasks;          /* in all; the loop's */
    bool ending;               /* under the lock */
    atomic_bool news;          /* there is something in `done` */

    /* What has been chosen, the newest last. Under the lock. */
    struct tuned *tuned;
    unsigned n_tuned;
    bool clear_wanted; /* the file and the table are to forget everything */

    /* What the loop tells the measurer. */
    atomic_bool busy[BACKEND_MAX_DEVICES];
    atomic_ullong jobs; /* that were ever begun */

    /* See idle.c. The loop's. */
    struct seen *seen;
    unsigned n_wanted; /* of them */
    uv_timer_t idle;
    uint64_t idle_jobs;    /* jobs that were ever begun, at the timer's last tick */
    uint64_t idle_next_ns; /* no idle tuning before */
};

/* ---- tune.c ---- */

/* Hands a task to the measurer. The thread is started where there is none. After an error the task is the caller's. */
int tune_begin(struct server *s, struct tune_task *task, struct error *e);

/* Starts the measurer where it does not run. */
int tune_start(struct server *s, struct error *e);

/* ---- measurer.c ---- */

void *measurer_run(void *tune);

/* ---- method.c ---- */

/* Answers a request whose task has ended. */
void tune_answer(struct request *r, const struct tune_task *task);

/* ---- tuned.c ---- */

/* The choice for the key; NULL: none. Under the lock. */
const struct tuned *tuned_find(const struct tune *t, const struct tuning_key *key);
/* Adds a choice to the list and to the table. Thread: the measurer, or before it starts. */
void tuned_publish(void *tune, const struct tuned *tuned);

/* ---- store.c: the file. Thread: the measurer, or before it starts. ---- */

struct store;

/* Opens `directory`/tuning.sqlite3; where it is missing it is made, or there is nothing to read without `make`. Keeps
 * nothing where there is no directory or no SQLite: the log says why. Never NULL but without memory. */
struct store *store_open(const char *directory, bool make);
struct store *store_close(struct store *s);
/* Calls `each` for every choice, the oldest first. */
void store_read(struct store *s, void (*each)(void *context, const struct tuned *tuned), void *context);
void store_put(struct store *s, const struct tuned *tuned);
void store_clear(struct store *s);

/* ---- idle.c ---- */

void idle_init(struct server *s);
void idle_close(struct server *s);
/* A turn of the loop: begins an idle tuning when it is time. */
void idle_step(struct server *s);
/* The tuning of a problem has ended. */
void idle_done(struct server *s, const struct tune_task *task);

#endif
