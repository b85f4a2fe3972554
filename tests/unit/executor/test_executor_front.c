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

FRONT(test_a_job_and_its_times)
{
    const struct record_submit *got = submit(f, 0, 0);

    put_times(f, got, 1, 1.5);
    put_times(f, got, 3, 1.5);
    front_fixture_put_done(f, 0, 4);
    assert_int_equal(front_fixture_poll(f), 0);
    assert_int_equal(f->done[0], 1);
    assert_false(f->jobs[0].failed);
    assert_int_equal(f->jobs[0].n_samples, 4);
    assert_true(f->samples[0][0] == 1.5 && f->samples[0][3] == 3.5);
    assert_string_equal(f->steps[0].variant_used, "vector4");
    assert_true(f->jobs[0].wall_us >= 0 && f->jobs[0].wall_us < 1e9);
}

/* The clock of the daemon runs between handing the job over and its end, whatever the executor says. */
FRONT(test_the_daemon_has_its_own_clock)
{
    const uint64_t before_ns = clock_now_ns();
    const struct record_submit *got = submit(f, 0, 0);
    const uint64_t handed_ns = clock_now_ns();
    uint64_t seen_ns;

    while (clock_now_ns() < handed_ns + 3000000)
        ;
    put_times(f, got, REPEAT, 1.5);
    front_fixture_put_done(f, 0, REPEAT);
    seen_ns = clock_now_ns();
    assert_int_equal(front_fixture_poll(f), 0);
    assert_true(f->jobs[0].wall_us >= (double)(seen_ns - handed_ns) / 1e3);
    assert_true(f->jobs[0].wall_us <= (double)(clock_now_ns() - before_ns) / 1e3);
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

/* Those of others wait while it runs, and those that had begun end before it. */
FRONT(test_an_exclusive_job_is_alone)
{
    uint64_t waited_ns, ended_ns;

    submit(f, 0, 0);
    f->exclusive[1] = 1;
    front_fixture_submit(f, 1, 1);
    front_fixture_submit(f, 2, 2);
    assert_false(is_sent(f, 1) || is_sent(f, 2));
    waited_ns = clock_now_ns();
    front_fixture_put_done(f, 0, 0);
    front_fixture_poll(f);
    front_fixture_poll(f);
    assert_true(is_sent(f, 1) && !is_sent(f, 2));
    ended_ns = clock_now_ns();
    front_fixture_put_done(f, 1, 0);
    front_fixture_poll(f);
    front_fixture_poll(f);
    assert_true(f->jobs[1].was_alone && is_sent(f, 2));
    /* Others waited, so no other exclusive one may begin for as long. */
    f->exclusive[3] = 1;
    front_fixture_submit(f, 3, 3);
    front_fixture_put_done(f, 2, 0);
    front_fixture_poll(f);
    assert_true(f->device.hold.again_ns >= ended_ns + (ended_ns - waited_ns));
    while (!is_sent(f, 3))
        front_fixture_poll(f);
    assert_true(clock_now_ns() >= f->device.hold.again_ns);
    front_fixture_put_done(f, 3, 0);
    front_fixture_poll(f);
}

/* The bound passes while it runs: the others go on, and it says that it was not alone. */
FRONT(test_an_exclusive_job_is_bounded)
{
    f->exclusive[0] = 1;
    submit(f, 0, 0);
    front_fixture_submit(f, 1, 1);
    assert_false(is_sent(f, 1));
    assert_int_not_equal(f->device.hold.kept_ns, 0);
    while (!is_sent(f, 1))
        front_fixture_poll(f);
    assert_false(f->done[0]);
    front_fixture_put_done(f, 0, 0);
    front_fixture_poll(f);
    assert_true(f->done[0] && !f->jobs[0].failed && !f->jobs[0].was_alone);
}

FRONT(test_the_executor_ends)
{
    submit(f, 0, 0);
    submit(f, 1, 1);
    front_fixture_end(f);
    lost(f, 0);
    lost(f, 1);
    front_fixture_submit(f, 2, 0); /* after the end, too */
    front_fixture_poll(f);
    lost(f, 2);
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

/* A job that waits for the executor ends; the next one of its stream goes on in its place. */
FRONT(test_a_waiting_job_is_withdrawn)
{
    f->x->ready = false;
    front_fixture_submit(f, 0, 0);
    front_fixture_submit(f, 1, 0);
    front_fixture_withdraw(f, 0);
    f->x->ready = true;
    front_fixture_poll(f);
    assert_true(!is_sent(f, 0) && is_sent(f, 1));
    front_fixture_put_done(f, 1, 0);
    front_fixture_poll(f);
    assert_true(!f->done[0] && f->done[1] == 1);
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

/* One that took counters can read them as long as it lives. */
FRONT(test_a_hold_lasts_until_the_process_has_ended)
{
    struct front_hold *hold = &f->device.hold;

    for (int counts = -1; counts <= 0; counts++) {
        f->x->counts = counts;
        hold->holder = f->x;
        hold->key = f->x->key;
        hold->since_ns = clock_now_ns();
        hold->counting = true; /* its job has ended */
        for (unsigned i = 0; i < 3; i++) {
            front_hold_turn(f->front);
            assert_ptr_equal(hold->holder, counts < 0 ? NULL : f->x);
        }
        assert_int_equal(f->x->stop, counts >= 0);
    }
    front_hold_end(f->x);
    assert_null(hold->holder);
}

/* Also where it had no job: of one that was cancelled, or is on another device. */
FRONT(test_one_that_took_counters_is_spent)
{
    struct front_domain *d = f->x->domain;

    assert_false(front_privilege_is_spent(f->front, d));
    assert_true(front_privilege_is_free(f->front));
    f->x->counts = 0;
    assert_false(front_privilege_is_free(f->front));
    assert_true(front_privilege_is_spent(f->front, d));
    submit(f, 0, 0);
    assert_false(front_privilege_is_spent(f->front, d));
    f->x->unfinished--;
    assert_true(front_privilege_is_spent(f->front, d));
    f->x->unfinished++;
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
