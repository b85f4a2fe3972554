/* Memory of a real daemon's GPU, read and written by a process without CUDA. The daemon has a driver in host memory
 * (tests/standin_cuda). Needs KOPSD and KOPS_CUDA_DRIVER, their paths, in the environment. */
#include <sys/wait.h>
#include <unistd.h>

#include "real_daemon.h"

enum { N = 1000, BYTES = N * sizeof(float), LARGE = (20 << 20) + 12345, THREADS = 4, ROUNDS = 200 };

static const char *driver;

static int begin(void **state)
{
    static struct real s;

    real_init(&s, driver);
    *state = &s;
    return 0;
}

static int end(void **state)
{
    real_free(*state);
    return 0;
}

static kops_buffer *allocate(struct real *s, size_t size)
{
    kops_buffer *made = NULL;

    assert_ok(kops_buffer_alloc(s->client, size, NULL, &made, &s->error));
    assert_null(kops_buffer_data(made));
    assert_non_null(kops_buffer_device(made));
    return made;
}

#define WITH_GPU(name) TEST_OF(struct real *s, name, begin, end)

/* By this daemon, and by the next ones. */
WITH_GPU(ops_work_on_what_was_written)
{
    kops_buffer *buffer = allocate(s, 2 * BYTES);
    struct kops_tensor in = kops_vector(buffer, KOPS_F32, N), out = in;
    float values[N], got[N];

    out.offset = BYTES;
    assert_int_equal(strlen(kops_info(s->client)->instance), 32);
    for (int i = 0; i < N; i++)
        values[i] = (float)i;
    assert_ok(kops_buffer_write(buffer, 0, values, BYTES, &s->error));
    for (int round = 0; round < 3; round++) {
        assert_ok(kops_square(s->client, &in, &out, NULL, NULL, &s->error));
        replace(s);
        assert_ok(kops_buffer_read(buffer, BYTES, got, BYTES, &s->error));
        for (int i = 0; i < N; i++)
            assert_true(got[i] == values[i] * values[i]);
        assert_ok(kops_buffer_write(buffer, BYTES, values, BYTES, &s->error));
    }
    assert_ok(kops_square(s->client, &in, &out, NULL, NULL, &s->error));
    assert_ok(kops_copy(s->client, &out, &in, NULL, NULL, &s->error));
    assert_ok(kops_buffer_read(buffer, 0, values, BYTES, &s->error));
    assert_memory_equal(values, got, BYTES);
    assert_int_equal(kops_buffer_map_cuda(buffer, &(uint64_t){0}, &s->error), KOPS_ERR_NO_CUDA);
    kops_buffer_release(buffer);
}

WITH_GPU(any_range_is_copied_and_nothing_else)
{
    kops_buffer *buffer = allocate(s, LARGE + 7);
    unsigned char *data = malloc(LARGE), *got = malloc(LARGE + 7);
    const size_t sizes[] = {1, 4095, 65537, LARGE};

    assert_non_null(data);
    assert_non_null(got);
    for (size_t i = 0; i < LARGE; i++)
        data[i] = (unsigned char)(i * 31 + i / 4096);
    for (size_t n = 0; n < sizeof(sizes) / sizeof(sizes[0]); n++) {
        const size_t size = sizes[n];

        memset(got, 0xee, LARGE + 7);
        assert_ok(kops_buffer_write(buffer, 0, got, size + 7, &s->error));
        assert_ok(kops_buffer_write(buffer, 3, data, size, &s->error));
        memset(got, 0, LARGE + 7);
        assert_ok(kops_buffer_read(buffer, 0, got, size + 7, &s->error));
        assert_memory_equal(got + 3, data, size);
        assert_int_equal(got[2], 0xee);
        assert_int_equal(got[size + 3], 0xee);
    }
    assert_ok(kops_buffer_read(buffer, 5, NULL, 0, &s->error));
    assert_int_equal(kops_buffer_read(buffer, kops_buffer_size(buffer), got, 1, &s->error), KOPS_ERR_BAD_ARGUMENT);
    kops_buffer_release(buffer);
    free(data);
    free(got);
}

struct worker {
    kops_buffer *buffer;
    unsigned char number;
};

static void *work(void *argument)
{
    const struct worker *w = argument;
    unsigned char data[5000], got[5000];
    struct kops_error error;

    for (unsigned i = 0; i < ROUNDS; i++) {
        memset(data, w->number + (int)i, sizeof(data));
        if (kops_buffer_write(w->buffer, w->number * sizeof(data), data, sizeof(data), &error) ||
            kops_buffer_read(w->buffer, w->number * sizeof(got), got, sizeof(got), &error) ||
            memcmp(data, got, sizeof(got)) != 0)
            return "other bytes came back";
    }
    return NULL;
}

/* The buffer is the memory of all; what it is copied through is not. */
WITH_GPU(threads_and_children_do_not_meet)
{
    kops_buffer *buffer = allocate(s, (THREADS + 1) * 5000);
    struct worker workers[THREADS + 1];
    unsigned char got[2];
    int status;
    pid_t child;

    for (unsigned i = 0; i <= THREADS; i++)
        workers[i] = (struct worker){buffer, (unsigned char)i};
    assert_ok(kops_buffer_write(buffer, 0, "so that there is memory to copy through", 40, &s->error));
    child = fork();
    if (!child) {
        const bool good = !work(&workers[THREADS]);

        kops_close(s->client);
        _exit(good ? 0 : 1);
    }
    in_threads(THREADS, work, workers, sizeof(workers[0]));
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    assert_ok(kops_buffer_read(buffer, THREADS * 5000 - 1, got, 2, &s->error));
    assert_int_equal(got[0], THREADS - 1 + ROUNDS - 1);
    assert_int_equal(got[1], THREADS + ROUNDS - 1);
    kops_buffer_release(buffer);
}

static int hide_driver(void **state)
{
    driver = getenv("KOPS_CUDA_DRIVER") ? strdup(getenv("KOPS_CUDA_DRIVER")) : NULL;
    return setenv("KOPS_CUDA_DRIVER", "/nonexistent", 1); /* for this process, not for the daemon */
}

ALL_TESTS_WITH(hide_driver, NULL)
