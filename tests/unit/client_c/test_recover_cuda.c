/* Device memory over the death of a real daemon, with a driver in host memory (tests/standin_cuda). Needs KOPSD and
 * KOPS_CUDA_DRIVER, their paths, in the environment. */
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "ordered_fake.h"
#include "real_daemon.h"

enum { N = 1000, BYTES = N * sizeof(float), ILLEGAL_ADDRESS = 700, DEVICE_LOST_STATUS = 75 };

struct scene {
    struct real_daemon daemon;
    kops_client *client;
    struct kops_error error;
    float values[N];
};

static int begin(void **state)
{
    struct scene *s = calloc(1, sizeof(*s));
    struct kops_connect_options options = {0};

    if (!s)
        return -1;
    load();
    real_daemon_init(&s->daemon);
    s->daemon.driver = getenv("KOPS_CUDA_DRIVER");
    real_daemon_start(&s->daemon);
    options.socket = s->daemon.socket;
    assert_ok(kops_connect(&options, &s->client, &s->error));
    for (int i = 0; i < N; i++)
        s->values[i] = (float)(i % 100);
    *state = s;
    return 0;
}

static int end(void **state)
{
    struct scene *s = *state;

    kops_close(s->client);
    real_daemon_free(&s->daemon);
    free(s);
    return 0;
}

static void replace(struct scene *s)
{
    real_daemon_end(&s->daemon, SIGKILL);
    real_daemon_start(&s->daemon);
}

static void succeed(struct scene *s, enum kops_code code)
{
    if (code)
        fail_msg("%s: %s", kops_code_name(code), s->error.message);
}

static void expect_squares(struct scene *s, kops_buffer *buffer)
{
    float squares[N];

    succeed(s, kops_buffer_read(buffer, 0, squares, BYTES, &s->error));
    for (int i = 0; i < N; i++)
        assert_true(squares[i] == s->values[i] * s->values[i]);
}

/* What the dead daemon allocated lives on by the descriptor, contents included. */
static void allocations_outlive_the_daemon(void **state)
{
    struct scene *s = *state;
    kops_buffer *in, *out;
    struct kops_tensor a, b;

    succeed(s, kops_buffer_alloc(s->client, BYTES, NULL, &in, &s->error));
    succeed(s, kops_buffer_alloc(s->client, BYTES, NULL, &out, &s->error));
    assert_null(kops_buffer_data(in));
    a = kops_vector(in, KOPS_F32, N);
    b = kops_vector(out, KOPS_F32, N);
    succeed(s, kops_buffer_write(in, 0, s->values, BYTES, &s->error));
    for (int round = 0; round < 2; round++) {
        replace(s);
        succeed(s, kops_square(s->client, &a, &b, NULL, NULL, &s->error));
        expect_squares(s, out);
    }
    kops_buffer_release(in);
    kops_buffer_release(out);
}

static void exports_are_given_to_the_next_one(void **state)
{
    struct scene *s = *state;
    kops_buffer *mine, *out;
    struct kops_tensor a, b;
    uint64_t memory;

    assert_int_equal(cu.mem_alloc(&memory, BYTES), 0);
    succeed(s, kops_buffer_register_cuda(s->client, memory, KOPS_ACCESS_RW, &mine, &s->error));
    succeed(s, kops_buffer_alloc_shared(s->client, BYTES, &out, &s->error));
    succeed(s, kops_buffer_write(mine, 0, s->values, BYTES, &s->error));
    a = kops_vector(mine, KOPS_F32, N);
    b = kops_vector(out, KOPS_F32, N);
    succeed(s, kops_square(s->client, &a, &b, NULL, NULL, &s->error));
    replace(s);
    memset(kops_buffer_data(out), 0, BYTES);
    succeed(s, kops_square(s->client, &a, &b, NULL, NULL, &s->error));
    expect_squares(s, out);
    kops_buffer_release(mine);
    kops_buffer_release(out);
    cu.mem_free(memory);
}

/* Its owner has freed it meanwhile: the first daemon's mapping ended with it. */
static void what_is_gone_is_lost(void **state)
{
    struct scene *s = *state;
    kops_buffer *mine, *out;
    struct kops_tensor a, b;
    uint64_t memory;

    assert_int_equal(cu.mem_alloc(&memory, BYTES), 0);
    succeed(s, kops_buffer_register_cuda(s->client, memory, KOPS_ACCESS_RW, &mine, &s->error));
    succeed(s, kops_buffer_alloc_shared(s->client, BYTES, &out, &s->error));
    a = kops_vector(mine, KOPS_F32, N);
    b = kops_vector(out, KOPS_F32, N);
    succeed(s, kops_square(s->client, &a, &b, NULL, NULL, &s->error));
    cu.mem_free(memory);
    replace(s);
    assert_int_equal(kops_square(s->client, &a, &b, NULL, NULL, &s->error), KOPS_ERR_BUFFER_LOST);
    assert_int_equal(kops_square(s->client, &a, &b, NULL, NULL, &s->error), KOPS_ERR_BUFFER_LOST);
    succeed(s, kops_ping(s->client, 0, &s->error));
    kops_buffer_release(mine);
    kops_buffer_release(out);
}

/* Ops on a stream are lost with the daemon, the stream goes on, and so does what comes after. */
static void streams_go_on(void **state)
{
    struct scene *s = *state;
    kops_buffer *in, *out;
    struct kops_tensor t[2];
    struct kops_request request = {
        .op = "square", .inputs = &t[0], .n_inputs = 1, .outputs = &t[1], .n_outputs = 1, .options = {0}};
    uint64_t memory[2];

    for (int i = 0; i < 2; i++)
        assert_int_equal(cu.mem_alloc(&memory[i], BYTES), 0);
    succeed(s, kops_buffer_register_cuda(s->client, memory[0], KOPS_ACCESS_RW, &in, &s->error));
    succeed(s, kops_buffer_register_cuda(s->client, memory[1], KOPS_ACCESS_RW, &out, &s->error));
    succeed(s, kops_buffer_write(in, 0, s->values, BYTES, &s->error));
    t[0] = kops_vector(in, KOPS_F32, N);
    t[1] = kops_vector(out, KOPS_F32, N);
    close_gate(); /* the daemon waits for the stream, and dies so */
    succeed(s, kops_enqueue(s->client, &request, stream, &s->error));
    real_daemon_end(&s->daemon, SIGKILL);
    open_gate();
    assert_int_equal(cu.stream_synchronize(stream), 0);
    assert_int_equal(kops_synchronize(s->client, stream, 0, &s->error), KOPS_ERR_CONNECTION_LOST);
    real_daemon_start(&s->daemon);
    succeed(s, kops_enqueue(s->client, &request, stream, &s->error));
    succeed(s, kops_synchronize(s->client, stream, 0, &s->error));
    expect_squares(s, out);
    kops_buffer_release(in);
    kops_buffer_release(out);
    for (int i = 0; i < 2; i++)
        cu.mem_free(memory[i]);
}

/* ---- a device that is lost ---- */

struct square {
    struct scene *scene;
    struct kops_tensor from, to;
    pthread_t thread;
    enum kops_code code;
    struct kops_error error;
};

static void *run_square(void *argument)
{
    struct square *q = argument;

    q->code = kops_square(q->scene->client, &q->from, &q->to, NULL, NULL, &q->error);
    return NULL;
}

/* Squares values under daemons that end by themselves, so many, and are started anew. */
static void square_with_losses(struct scene *s, struct square *q, kops_buffer *from, kops_buffer *to, unsigned losses)
{
    *q = (struct square){s, kops_vector(from, KOPS_F32, N), kops_vector(to, KOPS_F32, N)};
    succeed(s, kops_buffer_write(from, 0, s->values, BYTES, &s->error));
    fail_next("kernel", losses, ILLEGAL_ADDRESS, true);
    assert_int_equal(pthread_create(&q->thread, NULL, run_square, q), 0);
    for (unsigned i = 0; i < losses; i++) {
        int status;

        assert_int_equal(waitpid(s->daemon.pid, &status, 0), s->daemon.pid);
        assert_true(WIFEXITED(status));
        assert_int_equal(WEXITSTATUS(status), DEVICE_LOST_STATUS);
        s->daemon.pid = 0;
        real_daemon_start(&s->daemon);
    }
    pthread_join(q->thread, NULL);
}

static void a_lost_device(void **state)
{
    struct scene *s = *state;
    kops_buffer *in, *out;
    struct square q;

    succeed(s, kops_buffer_alloc(s->client, BYTES, NULL, &in, &s->error));
    succeed(s, kops_buffer_alloc(s->client, BYTES, NULL, &out, &s->error));
    /* A call that may run twice does not notice, */
    square_with_losses(s, &q, in, out, 1);
    if (q.code)
        fail_msg("%s", q.error.message);
    expect_squares(s, out);
    /* unless it happens again. */
    square_with_losses(s, &q, in, out, 2);
    assert_int_equal(q.code, KOPS_ERR_DEVICE_LOST);
    assert_non_null(strstr(q.error.message, "repeated once"));
    /* One that may not is told, and the next one is fine. */
    square_with_losses(s, &q, in, in, 1);
    assert_int_equal(q.code, KOPS_ERR_DEVICE_LOST);
    assert_non_null(strstr(q.error.message, "not repeated by itself"));
    succeed(s, kops_buffer_write(in, 0, s->values, BYTES, &s->error));
    succeed(s, kops_square(s->client, &q.from, &q.to, NULL, NULL, &s->error));
    expect_squares(s, in);
    kops_buffer_release(in);
    kops_buffer_release(out);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, begin, end)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(allocations_outlive_the_daemon),
        TEST(exports_are_given_to_the_next_one),
        TEST(what_is_gone_is_lost),
        TEST(streams_go_on),
        TEST(a_lost_device),
    };
    int failed;

    open_control();
    failed = cmocka_run_group_tests(tests, NULL, NULL);
    close_control();
    return failed;
}
