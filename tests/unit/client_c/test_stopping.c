/* libkops and a real daemon: deadlines and cancelling of a run that takes a while. Needs KOPSD, the daemon's path, in
 * the environment. */
#include "real_daemon.h"
#include "test.h"

enum { SIDE = 3000, ROUNDS = 3 };

struct scene {
    struct real_daemon daemon;
    kops_client *client;
    kops_buffer *memory;
    struct kops_tensor in, out;
    struct kops_error error;
};

static int begin(void **state)
{
    struct scene *s = calloc(1, sizeof(*s));
    struct kops_connect_options options = {0};

    if (!s)
        return -1;
    real_daemon_init(&s->daemon);
    real_daemon_start(&s->daemon);
    options.socket = s->daemon.socket;
    assert_ok(kops_connect(&options, &s->client, &s->error));
    assert_ok(kops_buffer_alloc_shared(s->client, 2 * sizeof(float) * SIDE * SIDE, &s->memory, &s->error));
    s->in = s->out = kops_matrix(s->memory, KOPS_F32, SIDE, SIDE);
    s->out.offset = sizeof(float) * SIDE * SIDE;
    *state = s;
    return 0;
}

static int end(void **state)
{
    struct scene *s = *state;

    kops_buffer_release(s->memory);
    kops_close(s->client);
    real_daemon_free(&s->daemon);
    free(s);
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
    struct scene *s = *state;
    const struct kops_tensor inputs[] = {s->in, s->in};
    struct kops_request product = {.op = "gemm", .inputs = inputs, .n_inputs = 2, .outputs = &s->out, .n_outputs = 1};
    uint64_t bytes;

    product.options.deadline_ms = 20;
    for (int i = 0; i < ROUNDS; i++)
        expect(s, kops_run(s->client, &product, NULL, &s->error), KOPS_ERR_DEADLINE_EXCEEDED, false);
    assert_ok(kops_trim(s->client, &bytes, &s->error));
    assert_ok(kops_square(s->client, &s->in, &s->out, NULL, NULL, &s->error));
}

static void a_cancelled_run_tells_so(void **state)
{
    struct scene *s = *state;
    const struct kops_tensor inputs[] = {s->in, s->in};
    struct kops_request product = {.op = "gemm", .inputs = inputs, .n_inputs = 2, .outputs = &s->out, .n_outputs = 1};
    kops_ticket ticket;

    for (int i = 0; i < ROUNDS; i++) {
        assert_ok(kops_submit(s->client, &product, &ticket, &s->error));
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
