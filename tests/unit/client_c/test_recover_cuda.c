/* Device memory over the death of a real daemon, with a driver in host memory (tests/standin_cuda). Needs KOPSD and
 * KOPS_CUDA_DRIVER, their paths, in the environment. */
#include <signal.h>
#include <sys/wait.h>

#include "ordered_fake.h"
#include "real_daemon.h"

enum { N = 1000, BYTES = N * sizeof(float), ILLEGAL_ADDRESS = 700, UNKNOWN = 999, DEVICE_LOST_STATUS = 75 };

static float values[N];

static int begin(void **state)
{
    struct scene *s = calloc(1, sizeof(*s));

    must(s);
    load();
    scene_init(s, getenv("KOPS_CUDA_DRIVER"));
    for (int i = 0; i < N; i++)
        values[i] = (float)(i % 100);
    *state = s;
    return 0;
}

/* Two vectors; of what kind the memory is. */
struct vectors {
    kops_buffer *in, *out;
    struct kops_tensor a, b;
    uint64_t memory; /* of `in`, if it is this process's */
};

enum kind { OF_THE_DAEMON, EXPORTED_AND_SHARED };

static void make_vectors(struct scene *s, struct vectors *v, enum kind kind)
{
    if (kind == OF_THE_DAEMON) {
        succeed(s, kops_buffer_alloc(s->client, BYTES, NULL, &v->in, &s->error));
        succeed(s, kops_buffer_alloc(s->client, BYTES, NULL, &v->out, &s->error));
        assert_null(kops_buffer_data(v->in));
    } else {
        v->memory = allocate(BYTES);
        succeed(s, kops_buffer_register_cuda(s->client, v->memory, KOPS_ACCESS_RW, &v->in, &s->error));
        succeed(s, kops_buffer_alloc_shared(s->client, BYTES, &v->out, &s->error));
    }
    succeed(s, kops_buffer_write(v->in, 0, values, BYTES, &s->error));
    v->a = kops_vector(v->in, KOPS_F32, N);
    v->b = kops_vector(v->out, KOPS_F32, N);
}

static void release_vectors(struct vectors *v)
{
    kops_buffer_release(v->in);
    kops_buffer_release(v->out);
}

static enum kops_code square(struct scene *s, const struct vectors *v)
{
    return kops_square(s->client, &v->a, &v->b, NULL, NULL, &s->error);
}

/* Reads the squares, and leaves nothing of them. */
static void expect_squares(struct scene *s, kops_buffer *buffer)
{
    static const float nothing[N];
    float squares[N];

    succeed(s, kops_buffer_read(buffer, 0, squares, BYTES, &s->error));
    for (int i = 0; i < N; i++)
        assert_true(squares[i] == values[i] * values[i]);
    succeed(s, kops_buffer_write(buffer, 0, nothing, BYTES, &s->error));
}

#define WITH_GPU(name) TEST_OF(struct scene *s, name, begin, scene_end)

/* What the dead daemon allocated lives on by the descriptor, contents included; exports are given to the next one. */
WITH_GPU(memory_outlives_the_daemon)
{
    for (enum kind kind = OF_THE_DAEMON; kind <= EXPORTED_AND_SHARED; kind++) {
        struct vectors v;

        make_vectors(s, &v, kind);
        for (int round = 0; round < 3; round++) {
            succeed(s, square(s, &v));
            expect_squares(s, v.out);
            replace(s);
        }
        release_vectors(&v);
    }
}

/* Its owner has freed it meanwhile: the first daemon's mapping ended with it. */
WITH_GPU(what_is_gone_is_lost)
{
    struct vectors v;

    make_vectors(s, &v, EXPORTED_AND_SHARED);
    succeed(s, square(s, &v));
    cu.mem_free(v.memory);
    replace(s);
    assert_int_equal(square(s, &v), KOPS_ERR_BUFFER_LOST);
    assert_int_equal(square(s, &v), KOPS_ERR_BUFFER_LOST);
    succeed(s, kops_ping(s->client, 0, &s->error));
    release_vectors(&v);
}

/* Ops on a stream are lost with the daemon, the stream goes on, and so does what comes after. */
WITH_GPU(streams_go_on)
{
    struct vectors v;
    struct kops_request request = {.op = "square", .inputs = &v.a, .n_inputs = 1, .outputs = &v.b, .n_outputs = 1};
    uint64_t memory = allocate(BYTES);

    make_vectors(s, &v, EXPORTED_AND_SHARED);
    kops_buffer_release(v.out);
    succeed(s, kops_buffer_register_cuda(s->client, memory, KOPS_ACCESS_RW, &v.out, &s->error));
    v.b.buffer = v.out;
    close_gate(); /* the daemon waits for the stream, and dies so */
    succeed(s, kops_enqueue(s->client, &request, stream, &s->error));
    real_daemon_end(&s->daemon, SIGKILL);
    open_gate();
    finish(stream);
    assert_int_equal(kops_synchronize(s->client, stream, 0, &s->error), KOPS_ERR_CONNECTION_LOST);
    real_daemon_start(&s->daemon);
    succeed(s, kops_enqueue(s->client, &request, stream, &s->error));
    succeed(s, kops_synchronize(s->client, stream, 0, &s->error));
    expect_squares(s, v.out);
    release_vectors(&v);
}

/* ---- a device that is lost ---- */

struct square {
    struct scene *scene;
    const struct vectors *v;
    enum kops_code code;
};

static void *run_square(void *argument)
{
    struct square *q = argument;

    q->code = square(q->scene, q->v);
    return NULL;
}

/* Squares values under a daemon whose GPU has gone: it gives the GPU up, and the next one has it again. */
static enum kops_code square_with_a_loss(struct scene *s, const struct vectors *v)
{
    struct standin_fault *gone = fail_next("cuDeviceGetCount", UINT32_MAX, UNKNOWN, false);
    struct square q = {s, v, KOPS_OK};
    struct threads thread;
    int status;

    succeed(s, kops_buffer_write(v->in, 0, values, BYTES, &s->error));
    fail_next("kernel", 1, ILLEGAL_ADDRESS, true);
    threads_start(&thread, 1, run_square, &q, 0);
    assert_int_equal(waitpid(s->daemon.pid, &status, 0), s->daemon.pid);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), DEVICE_LOST_STATUS);
    s->daemon.pid = 0;
    gone->armed = 0;
    real_daemon_start(&s->daemon);
    threads_join(&thread);
    return q.code;
}

WITH_GPU(a_lost_device)
{
    struct vectors v, in_place;

    make_vectors(s, &v, OF_THE_DAEMON);
    in_place = v;
    in_place.b = v.a;
    /* A call that may run twice does not notice. */
    succeed(s, square_with_a_loss(s, &v));
    expect_squares(s, v.out);
    /* One that may not is told, and the next one is fine. */
    assert_int_equal(square_with_a_loss(s, &in_place), KOPS_ERR_DEVICE_LOST);
    succeed(s, kops_buffer_write(v.in, 0, values, BYTES, &s->error));
    succeed(s, square(s, &in_place));
    expect_squares(s, v.in);
    release_vectors(&v);
}

ALL_TESTS_WITH(open_control, close_control)
