/* A daemon with one device of an executor without a process, whose part a test plays. */
#ifndef KOPS_TESTS_FRONT_FIXTURE_H
#define KOPS_TESTS_FRONT_FIXTURE_H

#include "executor/front.h"
#include "tests/support/unit.h"

enum { JOBS = 32, REPEAT = 4, STREAMS = 4 };

struct front_fixture {
    struct front *front;
    struct executor *x; /* NULL: it has ended, and no other can be had */
    struct executor_region *region;
    struct front_device device;
    struct backend_stream *streams[STREAMS];
    struct backend_job jobs[JOBS];
    struct step steps[JOBS];
    uint64_t exclusive[JOBS]; /* whose exclusive job it is; 0: it is an ordinary one */
    double samples[JOBS][REPEAT];
    struct record_submit sent[JOBS]; /* as the executor got it; kind is not RECORD_SUBMIT: never */
    unsigned done[JOBS];             /* how often done() came */
    unsigned order[JOBS], n_done;    /* the first JOBS ends */
    /* The server's part: jobs that wait in each stream's queue, the first one first, and the number that it has given.
     */
    unsigned queue[STREAMS][JOBS], n_queued[STREAMS], n_given[STREAMS];
    unsigned stream_of[JOBS];
    struct ring in, out; /* the executor's ends */
    int other, bell;     /* the executor's ends of the control socket and of the bell */
};

/* One at a time. Ends the process where something cannot be made. */
struct front_fixture *front_fixture_new(void);
void front_fixture_free(struct front_fixture *f);

/* Submits job `i`, of one step (steps[i]; an op without memory where that has no output) with REPEAT timed executions,
 * and takes it as the executor does. */
void front_fixture_submit(struct front_fixture *f, unsigned i, unsigned stream);
/* Job `i`, which waits, ends without the executor. */
void front_fixture_withdraw(struct front_fixture *f, unsigned i);
/* Takes what the daemon has sent. */
void front_fixture_take(struct front_fixture *f);
/* Writes a record as the executor does; what finds no room is left out. */
void front_fixture_put(struct front_fixture *f, const void *record, uint32_t size);
/* Says that job `i` has ended, with so many samples told before. */
void front_fixture_put_done(struct front_fixture *f, unsigned i, uint32_t n_samples);
/* Says that the device was lost under job `i`, which began then; 0: it had not. */
void front_fixture_put_lost(struct front_fixture *f, unsigned i, uint64_t started_ns);
/* The daemon looks; where it kills the executor, that has ended at once. */
unsigned front_fixture_poll(struct front_fixture *f);
/* Another executor without a process that is ready and has no domain; it has to be ended. */
struct executor *front_fixture_spare(struct front_fixture *f);
void front_fixture_end_spare(struct front_fixture *f, struct executor *spare);
/* As the state of a test. */
int front_fixture_begin(void **state);
int front_fixture_finish(void **state);
#define FRONT(name) TEST_OF(struct front_fixture *f, name, front_fixture_begin, front_fixture_finish)

/* The executor ends, and the daemon looks. */
void front_fixture_end(struct front_fixture *f);

#endif
