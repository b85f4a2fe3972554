/* libkops and a real daemon: deadlines and cancelling of a run that takes a while. Needs KOPSD, the daemon's path, in
 * the environment. */
#include "real_daemon.h"

enum { SIDE = 3000, ROUNDS = 3 };

/* A long product. */
struct product {
    struct scene s;
    kops_buffer *memory;
    struct kops_tensor in[2], out;
    struct kops_request request;
};

static int begin(void **state)
{
    struct product *p = calloc(1, sizeof(*p));

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
    struct product *p = *state;

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

static void a_deadline_is_kept_whatever_runs(void **state)
{
    struct product *p = *state;
    struct scene *s = &p->s;
    uint64_t bytes;

    p->request.options.deadline_ms = 20;
    for (int i = 0; i < ROUNDS; i++)
        expect(s, kops_run(s->client, &p->request, NULL, &s->error), KOPS_ERR_DEADLINE_EXCEEDED, false);
    assert_ok(kops_trim(s->client, &bytes, &s->error));
    assert_ok(kops_square(s->client, &p->in[0], &p->out, NULL, NULL, &s->error));
}

static void a_cancelled_run_tells_so(void **state)
{
    struct product *p = *state;
    struct scene *s = &p->s;
    kops_ticket ticket;

    for (int i = 0; i < ROUNDS; i++) {
        assert_ok(kops_submit(s->client, &p->request, &ticket, &s->error));
        assert_ok(kops_ping(s->client, 0, &s->error));
        assert_ok(kops_cancel(s->client, ticket, &s->error));
        expect(s, kops_wait(s->client, ticket, KOPS_FOREVER, NULL, &s->error), KOPS_ERR_CANCELLED, true);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_deadline_is_kept_whatever_runs, begin, end),
        cmocka_unit_test_setup_teardown(a_cancelled_run_tells_so, begin, end),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
