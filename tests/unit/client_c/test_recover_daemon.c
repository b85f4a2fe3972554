/* libkops and a real daemon, which ends runs, or is killed and replaced. Needs KOPSD, the daemon's path, in the
 * environment. */
#include <stdatomic.h>

#include "real_daemon.h"

enum { N = 1000 };

static const uint32_t places[] = {0, 1, 2};

/* What the daemon allocated is there after it, and with another one: the contents, too. */
SCENE(buffers_keep_their_contents)
{
    kops_buffer *made, *shared;
    struct kops_tensor a, b;
    float *in, *out;

    assert_int_equal(strlen(kops_info(s->client)->instance), 32);
    succeed(s, kops_buffer_alloc(s->client, N * sizeof(float), NULL, &made, &s->error));
    succeed(s, kops_buffer_alloc_shared(s->client, N * sizeof(float), &shared, &s->error));
    in = kops_buffer_data(made);
    out = kops_buffer_data(shared);
    for (int i = 0; i < N; i++)
        in[i] = (float)i;
    a = kops_vector(made, KOPS_F32, N);
    b = kops_vector(shared, KOPS_F32, N);
    for (int round = 1; round <= 3; round++) {
        replace(s);
        for (int i = 0; i < N; i++)
            assert_true(in[i] == (float)i);
        succeed(s, kops_add(s->client, &a, &a, &b, NULL, NULL, &s->error));
        for (int i = 0; i < N; i++)
            assert_true(out[i] == 2 * (float)i);
        memset(out, 0, N * sizeof(*out));
    }
    kops_buffer_release(made);
    kops_buffer_release(shared);
}

SCENE(programs_are_defined_anew)
{
    kops_program *program;
    kops_buffer *buffer;
    struct kops_tensor tensors[3];
    const struct kops_step steps[] = {
        {.op = "add", .inputs = places, .n_inputs = 2, .outputs = &places[2], .n_outputs = 1},
        {.op = "square", .inputs = &places[2], .n_inputs = 1, .outputs = &places[2], .n_outputs = 1}};
    const struct kops_sequence sequence = {tensors, 3, steps, 2};
    struct kops_result result;
    float *data;

    succeed(s, kops_buffer_alloc(s->client, 3 * N * sizeof(float), NULL, &buffer, &s->error));
    data = kops_buffer_data(buffer);
    vectors_in(buffer, N, 3, tensors);
    for (int i = 0; i < 2 * N; i++)
        data[i] = 3;
    succeed(s, kops_program_define(s->client, &sequence, NULL, &program, &s->error));
    replace(s);
    succeed(s, kops_program_run(program, NULL, 0, NULL, &result, &s->error));
    assert_true(data[2 * N] == 36);
    assert_true(result.send_us >= 0 && result.reply_us >= 0); /* not NAN */
    replace(s);
    succeed(s, kops_sequence_run(s->client, &sequence, NULL, &result, &s->error));
    assert_true(data[3 * N - 1] == 36);
    assert_true(result.send_us >= 0 && result.reply_us >= 0);
    kops_program_release(program);
    kops_buffer_release(buffer);
}

/* Nothing was under way, so nobody noticed: what the dead one cannot have read is sent to the next one, or was not run
 * for sure. */
SCENE(killed_between_calls)
{
    kops_ticket ticket;
    kops_buffer *buffer;
    struct kops_tensor t;
    struct kops_request request = {.op = "add", .n_inputs = 2, .n_outputs = 1};
    int64_t ran = 1;
    float *data;

    succeed(s, kops_buffer_alloc_shared(s->client, 2 * N * sizeof(float), &buffer, &s->error));
    t = kops_vector(buffer, KOPS_F32, N);
    data = kops_buffer_data(buffer);
    data[0] = 1;
    replace(s);
    succeed(s, kops_add(s->client, &t, &t, &t, NULL, NULL, &s->error));
    assert_true(data[0] == 2);
    replace(s);
    request.inputs = (struct kops_tensor[]){t, t};
    request.outputs = &t;
    succeed(s, kops_submit(s->client, &request, &ticket, &s->error));
    if (kops_wait(s->client, ticket, 0, NULL, &s->error)) {
        assert_int_equal(s->error.code, KOPS_ERR_CONNECTION_LOST);
        assert_true(kops_error_number(&s->error, "ran", &ran));
        assert_int_equal(ran, 0);
        assert_true(data[0] == 2);
    } else {
        assert_true(data[0] == 4);
    }
    kops_buffer_release(buffer);
}

/* ---- in the middle of calls, under many threads ---- */

enum { THREADS = 6, KILLS = 4, RUNS_BETWEEN = 20 };

struct worker {
    struct scene *scene;
    atomic_uint runs;
    atomic_bool *stop, ended;
    struct kops_error error;
};

static const char *add_until_told(struct worker *w, const struct kops_tensor *t, float *data)
{
    while (!atomic_load(w->stop)) {
        const float value = (float)atomic_load(&w->runs);

        for (int i = 0; i < 2 * N; i++)
            data[i] = value;
        if (kops_add(w->scene->client, &t[0], &t[1], &t[2], NULL, NULL, &w->error))
            return w->error.message;
        for (int i = 0; i < N; i++)
            if (data[2 * N + i] != 2 * value)
                return "a wrong sum";
        atomic_fetch_add(&w->runs, 1);
    }
    return NULL;
}

static void *add_often(void *argument)
{
    struct worker *w = argument;
    const char *failed = w->error.message;
    struct kops_tensor t[3];
    kops_buffer *buffer;

    if (!kops_buffer_alloc(w->scene->client, 3 * N * sizeof(float), NULL, &buffer, &w->error)) {
        vectors_in(buffer, N, 3, t);
        failed = add_until_told(w, t, kops_buffer_data(buffer));
        kops_buffer_release(buffer);
    }
    atomic_store(&w->ended, true);
    return (void *)(uintptr_t)failed;
}

/* Every thread has run some ops since. */
static void wait_for_runs(struct worker *workers)
{
    unsigned from[THREADS];

    for (int i = 0; i < THREADS; i++)
        from[i] = atomic_load(&workers[i].runs);
    for (int i = 0; i < THREADS; i++)
        while (!atomic_load(&workers[i].ended) && atomic_load(&workers[i].runs) - from[i] < RUNS_BETWEEN)
            sched_yield();
}

SCENE(killed_under_threads)
{
    struct worker workers[THREADS];
    atomic_bool stop = false;
    struct threads threads;

    for (int i = 0; i < THREADS; i++)
        workers[i] = (struct worker){.scene = s, .stop = &stop};
    threads_start(&threads, THREADS, add_often, workers, sizeof(workers[0]));
    for (int i = 0; i < KILLS; i++) {
        wait_for_runs(workers);
        replace(s);
    }
    wait_for_runs(workers);
    atomic_store(&stop, true);
    threads_join(&threads);
}

/* ---- deadlines and cancelling, of a run that takes a while ---- */

enum { SIDE = 3000, ROUNDS = 3 };

/* A long product. */
struct long_product {
    struct scene s;
    kops_buffer *memory;
    struct kops_tensor in[2], out;
    struct kops_request request;
};

static int begin(void **state)
{
    struct long_product *p = calloc(1, sizeof(*p));

    must(p);
    scene_init(&p->s, NULL);
    succeed(&p->s, kops_buffer_alloc_shared(p->s.client, 2 * sizeof(float) * SIDE * SIDE, &p->memory, &p->s.error));
    p->in[0] = p->in[1] = p->out = kops_matrix(p->memory, KOPS_F32, SIDE, SIDE);
    p->out.offset = sizeof(float) * SIDE * SIDE;
    p->request =
        (struct kops_request){.op = "gemm", .inputs = p->in, .n_inputs = 2, .outputs = &p->out, .n_outputs = 1};
    *state = p;
    return 0;
}

static int end(void **state)
{
    struct long_product *p = *state;

    kops_buffer_release(p->memory);
    scene_free(&p->s);
    free(p);
    return 0;
}

static void expect(struct scene *s, enum kops_code got, enum kops_code wanted, bool ended)
{
    int64_t said = -1;

    assert_int_equal(got, wanted);
    assert_true(kops_error_number(&s->error, "ended", &said));
    assert_int_equal(said, ended);
}

TEST_WITH(a_deadline_is_kept_whatever_runs, begin, end)
{
    struct long_product *p = *state;
    struct scene *s = &p->s;
    uint64_t bytes;

    p->request.options.deadline_ms = 20;
    for (int i = 0; i < ROUNDS; i++)
        expect(s, kops_run(s->client, &p->request, NULL, &s->error), KOPS_ERR_DEADLINE_EXCEEDED, false);
    assert_ok(kops_trim(s->client, &bytes, &s->error));
    assert_ok(kops_square(s->client, &p->in[0], &p->out, NULL, NULL, &s->error));
}

TEST_WITH(a_cancelled_run_tells_so, begin, end)
{
    struct long_product *p = *state;
    struct scene *s = &p->s;
    kops_ticket ticket;

    for (int i = 0; i < ROUNDS; i++) {
        assert_ok(kops_submit(s->client, &p->request, &ticket, &s->error));
        assert_ok(kops_ping(s->client, 0, &s->error));
        assert_ok(kops_cancel(s->client, ticket, &s->error));
        expect(s, kops_wait(s->client, ticket, KOPS_FOREVER, NULL, &s->error), KOPS_ERR_CANCELLED, true);
    }
}
