/* The compiler's parts: jobs wait for processes; processes come from a helper that forks. Thread: the loop's. */
#ifndef KOPS_COMPILE_COMPILER_INTERNAL_H
#define KOPS_COMPILE_COMPILER_INTERNAL_H

#include <sys/types.h>

#include "compile/compiler.h"
#include "compile/helper_wire.h"
#include "compile/toolkit.h"
#include "util/list.h"
#include "util/loop.h"

struct compile_job {
    struct list link; /* in compiler.waiting; by itself once a process has it */
    struct compiler *compiler;
    struct process *process; /* NULL while the job waits */
    struct buffer frame;     /* kept for a second process */
    struct request request;  /* the frame's content: an answer must have its entries and architecture */
    bool broken;             /* too large, or memory was short */
    bool paused;             /* waits for no process until it is resumed; its process is stopped */
    unsigned ended;          /* processes that ended over it */
    unsigned lost;           /* processes that ended with the helper that had forked them */
    compile_done *done;
    void *context;
};

/* The helper that forks. Lives until it was reaped, then frees itself. */
struct forker {
    struct work work; /* starting it may block: first */
    struct compiler *compiler;
    struct list link; /* in compiler.forkers */
    pid_t pid;        /* 0: not started */
    int control, pidfd;
    uv_poll_t control_poll, pidfd_poll;
    uv_timer_t patience; /* for a helper that does not get ready, or does not end */
    struct error error;  /* set when it could not be started */
    unsigned handles;    /* not closed yet */
    unsigned polls;      /* made so far: control's, then the pidfd's */
    bool ready, alone, stopped, said_why, hung_up;
    bool used; /* alone: its process was asked for */
};

enum process_state { PROCESS_STARTING, PROCESS_WARM, PROCESS_BUSY, PROCESS_ENDING };

/* A process that compiles one source. Lives until it has ended and its handles are closed. */
struct process {
    struct list link; /* in compiler.processes */
    struct compiler *compiler;
    struct forker *forker; /* NULL when that is gone */
    uint64_t id;
    enum process_state state;
    struct compile_job *job; /* BUSY */
    int socket, pidfd;       /* pidfd: -1 until it is known */
    uv_poll_t poll;
    uv_timer_t deadline;
    unsigned handles;
    struct buffer in;
    size_t sent;      /* bytes of the job's frame */
    uint64_t left_ms; /* a paused job: to its deadline */
    bool killed, hung_up, exited, closing;
    bool lost; /* ended with its helper, not by itself */
    int status;
    uint64_t peak_kib;
};

struct compiler {
    uv_loop_t *loop;
    struct toolkit_place place;
    char *user, *binary;
    enum compiler_sandbox sandbox;
    unsigned helpers, memory_mib, time_s, keep_s, cores;
    char name[COMPILED_COMPILER_SIZE];
    struct list waiting, processes, forkers;
    struct forker *forker; /* new processes come from it; NULL: none */
    bool unusable;         /* for the reason `why`, until the settings change */
    bool alone;
    bool keep_warm;    /* keep more processes than jobs need */
    unsigned spares;   /* their number */
    uint64_t short_ms; /* in the loop's time: when processes were last too few, or one was given up */
    struct error why;
    unsigned failures;      /* helpers in a row that failed */
    uint64_t not_before_ms; /* in the loop's time: no helper is started earlier */
    uint64_t next_id;
    uv_timer_t idle, kick;
    unsigned handles;
    bool closing;
    void (*closed)(void *context);
    void *closed_context;
};

/* Gives waiting jobs to processes, asks for processes, starts a helper, where due. */
void compiler_schedule(struct compiler *c);
/* Calls compiler_schedule() soon, from the loop. */
void compiler_kick(struct compiler *c);
/* Repeats a job whose process has ended without an answer, by itself or with its helper: the job waits again, before
 * all others. False, and nothing done: that has happened too often. */
bool job_repeat(struct compile_job *job, bool lost);
/* Removes the job and calls its done(). */
void job_finish(struct compile_job *job, struct compiled *compiled, const struct error *e,
                const struct compile_failure *failure);
/* Failures in a row, without a process that gets ready between them, before all waiting requests fail. A process that
 * ends without a message was killed or crashed: no waiting source is the cause. */
enum { TOLERATED_NEVER = 0, TOLERATED_STARTS = 2, TOLERATED_LOSSES = 8 };

/* A helper or a process could not be started, or died: the next start waits longer each time. Failures during the wait
 * belong to the first and do not count again, unless they are never tolerated. */
void compiler_helper_failed(struct compiler *c, const struct error *e, unsigned tolerated);
/* A process waits for a source: earlier failures are forgotten. */
void compiler_helper_works(struct compiler *c);
/* Frees a compiler that is closing once nothing is left of it. */
void compiler_let_go(struct compiler *c);

/* Starts a helper; it becomes compiler.forker. */
int forker_start(struct compiler *c, struct error *e);
/* Ends the helper: no more processes come from it. */
void forker_stop(struct forker *f);
/* Asks for a process, which is in compiler.processes then. Returns 1 with `e` when the helper does not listen any more,
 * -1 with `e` when the daemon lacks something. */
int forker_ask(struct forker *f, struct error *e);

void process_assign(struct process *p, struct compile_job *job);
/* Stops the process and its deadline. False: the daemon may not. */
bool process_pause(struct process *p);
void process_resume(struct process *p);
/* Kills a process whose answer is not wanted. */
void process_kill(struct process *p);

#endif
