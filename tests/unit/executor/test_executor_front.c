/* The daemon's side of an executor, against an executor that this test plays: jobs end once and in order, whatever
 * comes. */
#include <sys/epoll.h>
#include <sys/socket.h>

#include "executor/front.h"
#include "front_fixture.h"
#include "tests/support/unit.h"
#include "util/clock.h"

/* The record of the job as the executor got it. */
static const struct record_submit *submit(struct front_fixture *f, unsigned i, unsigned stream)
{
    front_fixture_submit(f, i, stream);
    assert_int_equal(f->sent[i].kind, RECORD_SUBMIT);
    return &f->sent[i];
}

static void put_times(struct front_fixture *f, const struct record_submit *of, uint32_t n, double first_us)
{
    _Alignas(8) unsigned char bytes[sizeof(struct record_samples) + (REPEAT + 1) * sizeof(double)];
    const struct record_samples head = {.kind = RECORD_SAMPLES, .slot = of->slot, .serial = of->serial, .n = n};

    memcpy(bytes, &head, sizeof(head));
    for (uint32_t i = 0; i < n; i++) {
        const double us = first_us + i;

        memcpy(bytes + sizeof(head) + i * sizeof(us), &us, sizeof(us));
    }
    front_fixture_put(f, bytes, (uint32_t)(sizeof(head) + n * sizeof(double)));
}

static void lost(const struct front_fixture *f, unsigned i)
{
    assert_int_equal(f->done[i], 1);
    assert_true(f->jobs[i].failed);
    assert_int_equal(f->jobs[i].error.code, ERROR_DEVICE_LOST);
    assert_true(f->device.base.lost);
}

/* What an executor says that cannot be. Of two jobs in one stream the first one is the one that is lied about. */
struct lie {
    const char *what;
    struct {
        uint32_t n;      /* samples in a record; 0 with us: an empty one */
        double first_us; /* 0: there is no such record */
    } records[2];
    unsigned ends;     /* times that the job's end is told */
    bool out_of_order; /* the second job's end */
    bool first_is_done;
};

static const struct lie lies[] = {
    {"each time may be, and together they cannot", {{REPEAT, 1e9 / REPEAT}}, 1, false, false},
    {"a time of an hour", {{1, 3600e6}}, 1, false, false},
    {"more samples than executions", {{REPEAT, 1.5}, {1, 1.5}}, 0, false, false},
    {"samples of nothing", {{0, 1.5}}, 0, false, false},
    {"an end out of order", {{0, 0}}, 0, true, false},
    {"an end that comes twice", {{0, 0}}, 2, false, true},
};

TEST(test_lies)
{
    for (unsigned l = 0; l < sizeof(lies) / sizeof(lies[0]); l++) {
        struct front_fixture *f = front_fixture_new();
        const struct record_submit *first = submit(f, 0, 0);

        print_message("%s\n", lies[l].what);
        submit(f, 1, lies[l].out_of_order ? 0 : 1);
        for (unsigned r = 0; r < 2 && lies[l].records[r].first_us > 0; r++)
            put_times(f, first, lies[l].records[r].n, lies[l].records[r].first_us);
        for (unsigned i = 0; i < lies[l].ends; i++)
            front_fixture_put_done(f, 0, lies[l].records[0].n);
        if (lies[l].out_of_order)
            front_fixture_put_done(f, 1, 0);
        front_fixture_poll(f);
        if (lies[l].first_is_done)
            assert_true(f->done[0] == 1 && !f->jobs[0].failed);
        else
            lost(f, 0);
        lost(f, 1);
        assert_int_equal(f->order[0], 0); /* each stream's in order, all the same */
        front_fixture_free(f);
    }
}

static struct backend_job *next_one;
static void (*ended)(struct backend_job *job);

/* As the server does whose first job has ended: the next one's deadline is over, and it is the first now. */
static void end_next_one(struct backend_job *job)
{
    ended(job);
    next_one->domain = 7; /* of a user, whose executor may be killed for it */
    atomic_store(&next_one->end_now, true);
    front_cancel(next_one);
}

/* Both are lost in one turn: the second has ended, too, when its cancel comes. */
FRONT(test_cancelled_between_its_end_and_done)
{
    submit(f, 0, 0);
    submit(f, 1, 0);
    ended = f->jobs[0].done;
    next_one = &f->jobs[1];
    f->jobs[0].done = end_next_one;
    front_fixture_end(f);
    lost(f, 0);
    lost(f, 1);
}

static bool is_sent(struct front_fixture *f, unsigned i)
{
    front_fixture_take(f);
    return f->sent[i].kind == RECORD_SUBMIT;
}

/* Of exclusive jobs one is sent at a time, of each user in turn, and no other job beside it. */
FRONT(test_exclusive_jobs_take_turns)
{
    static const unsigned order[] = {0, 4, 1, 5, 2, 3}; /* user 1 has 0 to 3, user 2 has 4 and 5 */

    for (unsigned i = 0; i < 6; i++)
        f->exclusive[i] = i < 4 ? 1 : 2;
    for (unsigned i = 0; i < 6; i++)
        front_fixture_submit(f, i, i < 4 ? i % 2 : 2 + i % 2); /* two streams of each */
    for (unsigned k = 0; k < 6; k++) {
        for (unsigned i = 0; i < 6; i++)
            assert_int_equal(is_sent(f, i), i == order[k] || f->done[i]);
        front_fixture_put_done(f, order[k], 0);
        front_fixture_poll(f);
        front_fixture_poll(f);
        assert_int_equal(f->done[order[k]], 1);
        assert_true(f->jobs[order[k]].was_alone);
    }
    assert_null(f->device.hold.holder);
}

/* Also while the loop never sleeps: who watches for jobs that hang asks how far a job is. */
FRONT(test_progress)
{
    const struct record_submit *got = submit(f, 0, 0);

    atomic_store(&f->x->region->ended[got->slot], 3);
    for (unsigned i = 0; i < 10000 && f->jobs[0].ended < 3; i++)
        front_fixture_poll(f);
    assert_int_equal(f->jobs[0].ended, 3);
    for (uint32_t lie = 0; lie < 100; lie += REPEAT + 1) { /* it does not go back, nor beyond the executions */
        atomic_store(&f->x->region->ended[got->slot], lie);
        front_arm(&f->device.base);
        front_fixture_poll(f);
        assert_int_equal(f->jobs[0].ended, 3);
    }
}

/* A bell that rings late, or for nothing, is silent after a look: else the loop would never sleep. */
FRONT(test_a_late_bell)
{
    struct epoll_event event;

    front_arm(&f->device.base);
    front_fixture_poll(f);
    assert_int_equal(send(f->bell, "bell", 4, 0), 4);
    assert_int_equal(epoll_wait(f->front->watch, &event, 1, 0), 1);
    front_fixture_poll(f); /* the loop looks because the descriptor is readable */
    assert_int_equal(epoll_wait(f->front->watch, &event, 1, 0), 0);
}

/* One that rings without end costs the loop time. */
FRONT(test_a_bell_that_rings_for_nothing)
{
    unsigned rings = 0;

    submit(f, 0, 0);
    while (!f->done[0] && rings++ < 100000) {
        front_arm(&f->device.base);
        send(f->bell, "bell", 4, MSG_NOSIGNAL);
        front_fixture_poll(f);
    }
    lost(f, 0);
}

/* A poll goes on for the sake of a long job that the executor issues, but not without end. */
FRONT(test_an_executor_that_always_issues)
{
    unsigned polls = 0;

    submit(f, 0, 0);
    atomic_store(&f->x->region->issuing, 1);
    do {
        f->device.base.active = false;
        front_fixture_poll(f);
        polls++;
    } while (f->device.base.active && polls < 100000);
    assert_in_range(polls, 2, 10000);
}

/* The last job of a stream that waits ends: the front does not remember it. */
FRONT(test_a_withdrawn_exclusive_job_holds_nobody)
{
    submit(f, 0, 0);
    f->exclusive[1] = 1;
    front_fixture_submit(f, 1, 1);
    front_fixture_submit(f, 2, 2);
    assert_false(is_sent(f, 1) || is_sent(f, 2));
    front_fixture_withdraw(f, 1);
    front_fixture_poll(f);
    assert_true(is_sent(f, 2));
    front_fixture_put_done(f, 0, 0);
    front_fixture_put_done(f, 2, 0);
    front_fixture_poll(f);
    assert_int_equal(f->device.hold.holder != NULL || !list_empty(&f->device.hold.alone), 0);
    assert_null(((struct front_stream *)(void *)f->streams[1])->domain);
}

/* Behind a job that the executor has lost no other can have ended well. */
FRONT(test_an_end_behind_a_lost_job)
{
    submit(f, 0, 0);
    submit(f, 1, 0);
    front_fixture_put_lost(f, 0, 0);
    front_fixture_put_done(f, 1, 0);
    front_fixture_poll(f);
    lost(f, 0);
    lost(f, 1);
}

static int run_work(struct backend_work *work)
{
    return 0;
}

static bool work_done;

static void note_work(struct backend_work *work, const struct error *why)
{
    work_done = !why;
}

/* The spare that a new user gets has that user's first work in the same turn: no other turn need come soon. */
FRONT(test_a_spare_gets_work_at_once)
{
    enum { USER = 77 };
    struct executor *spare = front_fixture_spare(f);
    struct backend_work work = {.run = run_work, .done = note_work};
    struct list *node;

    work_done = false;
    MUST(front_work(&f->device.base, USER, &work, &e));
    front_poll(&f->device.base);
    assert_non_null(spare->domain);
    node = list_pop(&spare->tasks);
    assert_non_null(node);
    list_entry(node, struct front_task, link)->run(spare, list_entry(node, struct front_task, link));
    front_poll(&f->device.base);
    assert_true(work_done);
    front_fixture_end_spare(f, spare);
}

static void submit_again(struct backend_job *job)
{
    struct backend_stream *s = (struct backend_stream *)(void *)((char *)job->impl - 1);

    if (front_submit(s, job))
        job->ended = 1;
}

static void ignore(struct backend_job *job)
{
    (void)job;
}

/* A job that came behind records without room in the ring has not asked for a turn yet. It goes once they have gone. */
FRONT(test_a_job_behind_an_overflow)
{
    struct executor *spare = front_fixture_spare(f);
    struct step step = {.op = OP_ADD, .n_inputs = 2, .n_outputs = 1, .in_place = -1, .plan.elementwise.rank = 1};
    double sample;
    struct backend_job job = {.steps = &step,
                              .n_steps = 1,
                              .repeat = 1,
                              .samples = &sample,
                              .done = ignore,
                              .go_on = submit_again,
                              .again = ignore,
                              .domain = domain_of(1, 5)};
    struct ring reader;
    uint32_t size;

    backend_job_begin(&job);
    atomic_store(&spare->active, 1);
    ring_init(&reader, &spare->region->to_executor, spare->region->to_executor_bytes);
    while (list_empty(&spare->overflow))
        front_send_number(spare, RECORD_CANCEL, 1, 0);
    assert_false(front_submit(f->streams[0], &job));
    for (unsigned i = 0; i < 10; i++) {
        while (ring_peek(&reader, &size))
            ring_next(&reader);
        front_arm(&f->device.base);
        front_poll(&f->device.base);
    }
    assert_true(list_empty(&spare->overflow));
    assert_int_equal(job.ended, 1);
    assert_int_equal(spare->unfinished, 1);
}
