/* Streams: turns between several, of one owner and of two (of more: test_host_owners); opening and closing. Jobs that
 * are cancelled before they start: functional_cancel. */
#include "support.h"

enum { LARGE = 1 << 20, SMALL = 100 };

/* An add of `n` f32 elements with its tensors. */
struct addition {
    struct operand a, b, out;
    struct backend_job job;
};

static void addition_init(struct addition *x, int64_t n)
{
    operand_init(&x->a, DTYPE_F32, 1, &n, CONTIGUOUS);
    operand_init(&x->b, DTYPE_F32, 1, &n, CONTIGUOUS);
    operand_init(&x->out, DTYPE_F32, 1, &n, CONTIGUOUS);
    job_init(&x->job, OP_ADD, (struct operand *[]){&x->a, &x->b}, &x->out, NULL);
}

/* A product of single numbers that takes seconds: strides of 0 repeat them. */
static void long_init(struct addition *x)
{
    const int64_t one[] = {1, 1};

    operand_init(&x->a, DTYPE_F32, 2, one, CONTIGUOUS);
    operand_init(&x->b, DTYPE_F32, 2, one, CONTIGUOUS);
    operand_init(&x->out, DTYPE_F32, 2, one, CONTIGUOUS);
    x->a.tensor.shape[1] = x->b.tensor.shape[0] = (int64_t)1 << 31;
    x->a.tensor.strides[1] = x->b.tensor.strides[0] = 0;
    assert_int_equal(tensor_measure(&x->a.tensor, "a", &(struct error){0}), 0);
    assert_int_equal(tensor_measure(&x->b.tensor, "b", &(struct error){0}), 0);
    job_init(&x->job, OP_GEMM, (struct operand *[]){&x->a, &x->b}, &x->out, NULL);
    x->job.timing = false;
}

/* Long kernels keep nobody's jobs from running but their owner's, however many streams that one has. */
OPENING_TEST(test_owners_share_the_processors)
{
    enum { STREAMS = 4 };
    const int64_t sizes[] = {20000, LARGE}; /* of a light and a heavy worker */
    struct addition lasting[STREAMS];
    struct fixture f = fixture_open(NULL);
    struct backend_stream *second = stream_open(&f);

    for (unsigned i = 0; i < STREAMS; i++) {
        long_init(&lasting[i]);
        lasting[i].job.owner = 1;
        host_backend.submit(stream_open(&f), &lasting[i].job);
    }
    for (unsigned i = 0; i < COUNT(sizes); i++) {
        struct addition other;

        addition_init(&other, sizes[i]);
        other.job.owner = 2;
        host_backend.submit(second, &other.job);
        fixture_wait(&f, &other.job);
        assert_true(job_is_done(&other.job) && !other.job.failed);
        for (unsigned j = 0; j < STREAMS; j++)
            assert_false(job_is_done(&lasting[j].job));
    }
    for (unsigned i = 0; i < STREAMS; i++)
        atomic_store(&lasting[i].job.cancel, true);
    fixture_wait(&f, NULL);
}

/* A job that repeats for long does not keep another stream's from running, whichever worker executes them. */
OPENING_TEST(test_streams_take_turns)
{
    static const int64_t sizes[][2] = {{LARGE, LARGE}, {LARGE, SMALL}, {20000, 20000}};

    for (unsigned i = 0; i < COUNT(sizes); i++) {
        struct addition endless, other;
        struct fixture f = fixture_open(NULL);

        addition_init(&endless, sizes[i][0]);
        endless.job.repeat = 1000000000;
        endless.job.timing = false;
        addition_init(&other, sizes[i][1]);
        other.job.repeat = 3;
        host_backend.submit(f.stream, &endless.job);
        host_backend.submit(stream_open(&f), &other.job);
        fixture_wait(&f, &other.job);
        assert_true(job_is_done(&other.job) && !other.job.failed);
        assert_false(job_is_done(&endless.job));
        atomic_store(&endless.job.cancel, true);
        fixture_wait(&f, &endless.job);
        assert_true(job_is_done(&endless.job) && endless.job.failed);
        assert_int_equal(endless.job.error.code, ERROR_CANCELLED);
    }
}

/* Nobody to wake, and nothing ever run. */
OPENING_TEST(test_open_and_close)
{
    struct backend_device *device;
    unsigned count = 0;
    struct error e;

    for (unsigned i = 0; i < 50; i++) { /* what a device takes it gives back */
        assert_int_equal(host_backend.open(NULL, NULL, &device, 1, &count, &e), 0);
        assert_int_equal(host_backend.poll(device), 0);
        host_backend.close(device);
    }
}
