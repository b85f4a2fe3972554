/* The daemon's side of an executor, against an executor that this test plays: jobs end once and in order, whatever
 * comes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#include "executor/front.h"

enum { JOBS = 32, REPEAT = 4 };

/* A daemon with one device of an executor without a process; `other` is the executor's end of its control socket. */
struct fixture {
    struct executor x;
    struct front_device device;
    struct backend_stream *streams[2];
    struct backend_job jobs[JOBS];
    struct step steps[JOBS];
    double samples[JOBS][REPEAT];
    unsigned done[JOBS]; /* how often done() came */
    unsigned order[JOBS], n_done;
    struct ring in, out; /* the executor's ends */
    int other;
};

static struct fixture *now;

static void wake(void *context)
{
    (void)context;
}

static void done(struct backend_job *job)
{
    const unsigned i = (unsigned)(job - now->jobs);

    now->done[i]++;
    now->order[now->n_done++] = i;
}

static int setup(void **state)
{
    struct fixture *f = now = calloc(1, sizeof(*f));
    struct executor *x = &f->x;
    struct error e;
    int pair[2], fd;

    x->region = region_new(&fd, &e);
    assert_non_null(x->region);
    close(fd);
    assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), 0);
    x->control = pair[0];
    f->other = pair[1];
    x->bell = eventfd(0, EFD_NONBLOCK);
    x->doorbell = eventfd(0, EFD_NONBLOCK);
    x->watch = epoll_create1(0);
    for (unsigned i = 0; i < EXECUTOR_CHANNELS; i++)
        x->channels[i] = -1;
    x->host.wake = wake;
    x->jobs = calloc(EXECUTOR_JOBS_MAX + 1, sizeof(*x->jobs));
    list_init(&x->overflow);
    list_init(&x->blocked);
    list_init(&x->streams);
    ids_init(&x->stream_ids, EXECUTOR_STREAMS_MAX);
    ids_init(&x->program_ids, EXECUTOR_PROGRAMS_MAX);
    ids_init(&x->slots, EXECUTOR_JOBS_MAX);
    ring_init(&x->out, &x->region->to_executor, x->region->to_executor_bytes);
    ring_init(&x->in, &x->region->to_daemon, x->region->to_daemon_bytes);
    ring_init(&f->in, &x->region->to_executor, x->region->to_executor_bytes);
    ring_init(&f->out, &x->region->to_daemon, x->region->to_daemon_bytes);
    f->device.executor = x;
    for (unsigned i = 0; i < 2; i++)
        assert_int_equal(front_stream_new(&f->device.base, PRIORITY_NORMAL, &f->streams[i], &e), 0);
    *state = f;
    return 0;
}

static int teardown(void **state)
{
    struct fixture *f = *state;

    for (unsigned i = 0; i < 2; i++)
        front_stream_free(f->streams[i]);
    front_poll(&f->device.base); /* drops what waited */
    close(f->x.control);
    close(f->other);
    close(f->x.bell);
    close(f->x.doorbell);
    close(f->x.watch);
    region_unmap(f->x.region);
    ids_free(&f->x.stream_ids);
    ids_free(&f->x.program_ids);
    ids_free(&f->x.slots);
    free(f->x.jobs);
    free(f);
    return 0;
}

static void submit(struct fixture *f, unsigned i, unsigned stream)
{
    struct backend_job *job = &f->jobs[i];

    f->steps[i] = (struct step){.op = OP_ADD, .n_inputs = 2, .n_outputs = 1};
    f->steps[i].plan.elementwise.rank = 1;
    *job = (struct backend_job){
        .steps = &f->steps[i], .n_steps = 1, .repeat = REPEAT, .timing = true, .samples = f->samples[i], .done = done};
    front_submit(f->streams[stream], job);
}

/* The next record that the executor gets; its kind. */
static uint32_t take(struct fixture *f, struct record_submit *ret)
{
    uint32_t size, kind;
    const void *at;

    do {
        at = ring_peek(&f->in, &size);
        assert_non_null(at);
        memcpy(&kind, at, sizeof(kind));
        if (kind == RECORD_SUBMIT)
            memcpy(ret, at, sizeof(*ret));
        ring_next(&f->in);
    } while (kind == RECORD_STREAM_NEW);
    return kind;
}

static void put(struct fixture *f, const void *record, uint32_t size)
{
    void *at = ring_reserve(&f->out, size);

    if (!at)
        return;
    memcpy(at, record, size);
    ring_publish(&f->out);
}

static void put_samples(struct fixture *f, const struct record_submit *of, uint32_t n)
{
    struct {
        struct record_samples head;
        double us[REPEAT + 1];
    } record = {.head = {.kind = RECORD_SAMPLES, .slot = of->slot, .serial = of->serial, .n = n}};

    for (uint32_t i = 0; i < n; i++)
        record.us[i] = 1.5 + i;
    put(f, &record, (uint32_t)(sizeof(record.head) + n * sizeof(double)));
}

static void put_done(struct fixture *f, const struct record_submit *of, uint32_t n_samples)
{
    struct {
        struct record_done head;
        char variant[STEP_VARIANT_BYTES];
    } record = {.head = {.kind = RECORD_DONE,
                         .slot = of->slot,
                         .serial = of->serial,
                         .ended = REPEAT,
                         .n_samples = n_samples,
                         .n_variants = 1,
                         .started_ns = 7},
                .variant = "vector4"};

    put(f, &record, sizeof(record));
}

static void lost(const struct fixture *f, unsigned i)
{
    assert_int_equal(f->done[i], 1);
    assert_true(f->jobs[i].failed);
    assert_int_equal(f->jobs[i].error.code, ERROR_DEVICE_LOST);
    assert_true(f->device.base.lost);
}

static void test_a_job_and_its_times(void **state)
{
    struct fixture *f = *state;
    struct record_submit got;

    submit(f, 0, 0);
    assert_int_equal(take(f, &got), RECORD_SUBMIT);
    put_samples(f, &got, 1);
    put_samples(f, &got, 3);
    put_done(f, &got, 4);
    assert_int_equal(front_poll(&f->device.base), 0);
    assert_int_equal(f->done[0], 1);
    assert_false(f->jobs[0].failed);
    assert_int_equal(f->jobs[0].n_samples, 4);
    assert_true(f->samples[0][0] == 1.5 && f->samples[0][3] == 3.5);
    assert_string_equal(f->steps[0].variant_used, "vector4");
}

static void test_an_end_out_of_order(void **state)
{
    struct fixture *f = *state;
    struct record_submit got[2];

    for (unsigned i = 0; i < 2; i++) {
        submit(f, i, 0);
        take(f, &got[i]);
    }
    put_done(f, &got[1], 0);
    front_poll(&f->device.base);
    lost(f, 0);
    lost(f, 1);
    assert_int_equal(f->order[0], 0); /* each stream's in order, all the same */
}

static void test_an_end_that_comes_twice(void **state)
{
    struct fixture *f = *state;
    struct record_submit got;

    submit(f, 0, 0);
    take(f, &got);
    put_done(f, &got, 0);
    put_done(f, &got, 0);
    submit(f, 1, 1);
    front_poll(&f->device.base);
    assert_int_equal(f->done[0], 1);
    assert_false(f->jobs[0].failed);
    lost(f, 1);
}

static void test_more_samples_than_executions(void **state)
{
    struct fixture *f = *state;
    struct record_submit got;

    submit(f, 0, 0);
    take(f, &got);
    put_samples(f, &got, REPEAT);
    put_samples(f, &got, 1);
    front_poll(&f->device.base);
    lost(f, 0);
}

static void test_the_executor_ends(void **state)
{
    struct fixture *f = *state;

    submit(f, 0, 0);
    submit(f, 1, 1);
    shutdown(f->other, SHUT_RDWR);
    front_arm(&f->device.base);
    front_poll(&f->device.base);
    lost(f, 0);
    lost(f, 1);
    submit(f, 2, 0); /* after the end, too */
    front_poll(&f->device.base);
    lost(f, 2);
}

/* Any records at all: every job ends exactly once, and nothing is written outside of its own room. */
static void test_nonsense(void **state)
{
    for (unsigned round = 0; round < 3000; round++) {
        struct fixture *f = *state;
        struct record_submit got[JOBS];
        unsigned n = 1 + (unsigned)rand() % JOBS;

        for (unsigned i = 0; i < n; i++) {
            submit(f, i, (unsigned)rand() % 2);
            take(f, &got[i]);
        }
        for (unsigned i = (unsigned)rand() % 8; i--;) {
            const struct record_submit *of = &got[rand() % (int)n];
            uint32_t noise[64];

            for (unsigned k = 0; k < 64; k++)
                noise[k] = (uint32_t)(rand() % 3 ? rand() % 8 : rand());
            noise[1] = rand() % 8 ? of->slot : noise[1];
            noise[2] = rand() % 8 ? of->serial : noise[2];
            if (rand() % 3)
                put(f, noise, (uint32_t)rand() % sizeof(noise));
            else
                put_done(f, of, (uint32_t)rand() % 2);
        }
        front_poll(&f->device.base);
        if (!atomic_load(&f->x.gone)) { /* the rest ends with the executor */
            shutdown(f->other, SHUT_RDWR);
            front_arm(&f->device.base);
            front_poll(&f->device.base);
        }
        for (unsigned i = 0; i < n; i++)
            assert_int_equal(f->done[i], 1);
        teardown(state);
        setup(state);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_a_job_and_its_times, setup, teardown),
        cmocka_unit_test_setup_teardown(test_an_end_out_of_order, setup, teardown),
        cmocka_unit_test_setup_teardown(test_an_end_that_comes_twice, setup, teardown),
        cmocka_unit_test_setup_teardown(test_more_samples_than_executions, setup, teardown),
        cmocka_unit_test_setup_teardown(test_the_executor_ends, setup, teardown),
        cmocka_unit_test_setup_teardown(test_nonsense, setup, teardown),
    };

    srand(5);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
