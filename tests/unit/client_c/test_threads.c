/* One client, many threads. Worth most under ThreadSanitizer. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

#include "test.h"

enum { THREADS = 8, RUNS = 200 };

/* The variant of the reply is the tag of the request. */
static void serve_echo(struct fake_connection *c, void *context)
{
    struct fake_request r;

    (void)context;
    while (fake_next(c, &r)) {
        const msgpack_object *attrs = fake_param(&r.params, "attrs");
        const msgpack_object *tag = attrs ? fake_param(attrs, "tag") : NULL;
        char text[32];

        if (!tag) {
            fake_answer(c, &r);
            continue;
        }
        snprintf(text, sizeof(text), "%.*s", (int)tag->via.str.size, tag->via.str.ptr);
        fake_reply_run(c, r.msgid, text);
    }
}

struct worker {
    pthread_t thread;
    kops_client *client;
    int number;
    atomic_bool *stop;
    const char *failed;
};

#define expect(condition)                                                                                              \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            w->failed = #condition;                                                                                    \
            return NULL;                                                                                               \
        }                                                                                                              \
    } while (0)

static void *mixed_work(void *argument)
{
    struct worker *w = argument;
    struct kops_error error;

    for (int i = 0; i < RUNS; i++) {
        struct kops_result first, second;
        struct tagged t, u;
        kops_ticket ticket;
        char tag[2][32];

        snprintf(tag[0], sizeof(tag[0]), "%d.%d a", w->number, i);
        snprintf(tag[1], sizeof(tag[1]), "%d.%d b", w->number, i);
        expect(!kops_submit(w->client, tagged_run(&t, tag[0]), &ticket, &error));
        expect(!kops_run(w->client, tagged_run(&u, tag[1]), &second, &error));
        expect(!kops_wait(w->client, ticket, 0, &first, &error));
        expect(!strcmp(first.variant, tag[0]) && !strcmp(second.variant, tag[1]));
        if (i % 16 == 0) {
            kops_buffer *buffer;

            expect(!kops_buffer_alloc_shared(w->client, 4096, &buffer, &error));
            kops_buffer_release(buffer);
        }
    }
    return NULL;
}

static void start(struct worker *workers, kops_client *client, void *(*work)(void *), atomic_bool *stop)
{
    for (int i = 0; i < THREADS; i++) {
        workers[i] = (struct worker){.client = client, .number = i, .stop = stop};
        assert_int_equal(pthread_create(&workers[i].thread, NULL, work, &workers[i]), 0);
    }
}

static void join(struct worker *workers)
{
    for (int i = 0; i < THREADS; i++)
        pthread_join(workers[i].thread, NULL);
    for (int i = 0; i < THREADS; i++)
        if (workers[i].failed)
            fail_msg("thread %d: %s", i, workers[i].failed);
}

static void every_thread_gets_its_own_replies(void **state)
{
    struct fake *f;
    kops_client *client;
    struct worker workers[THREADS];

    (void)state;
    fake_set_inflight(12); /* less than the threads want together */
    f = fake_start(serve_echo, NULL);
    client = connect_to(f);
    start(workers, client, mixed_work, NULL);
    join(workers);
    kops_close(client);
    fake_stop(f);
}

/* ---- connections that break under many threads ---- */

static void serve_short_lived(struct fake_connection *c, void *context)
{
    struct fake_request r;

    (void)context;
    for (int i = 0; (i < 100 || c->number > 20) && fake_next(c, &r); i++)
        fake_answer(c, &r);
}

static void *work_through_losses(void *argument)
{
    struct worker *w = argument;
    struct kops_error error;
    kops_buffer *buffer;
    struct kops_tensor t;
    enum kops_code r;

    do
        r = kops_buffer_alloc_shared(w->client, 4096, &buffer, &error);
    while (r == KOPS_ERR_CONNECTION_LOST);
    expect(!r);
    t = kops_vector(buffer, KOPS_F32, 16);
    for (int i = 0; i < RUNS; i++) {
        r = kops_square(w->client, &t, &t, NULL, NULL, &error);
        expect(r == KOPS_OK || r == KOPS_ERR_CONNECTION_LOST);
    }
    kops_buffer_release(buffer);
    return NULL;
}

static void lost_connections_are_replaced(void **state)
{
    struct fake *f;
    kops_client *client;
    struct kops_error error;
    struct worker workers[THREADS];

    (void)state;
    fake_set_inflight(64);
    f = fake_start(serve_short_lived, NULL);
    client = connect_to(f);
    start(workers, client, work_through_losses, NULL);
    join(workers);
    while (kops_ping(client, 0, &error) == KOPS_ERR_CONNECTION_LOST)
        continue;
    assert_int_equal(error.code, KOPS_OK);
    kops_close(client);
    fake_stop(f);
}

/* ---- forking while others hold the lock ---- */

static void *ping_until_told(void *argument)
{
    struct worker *w = argument;
    struct kops_error error;

    while (!atomic_load(w->stop))
        expect(!kops_ping(w->client, 0, &error));
    return NULL;
}

/* AddressSanitizer's allocator keeps its locks over a fork (GCC 12, clang 14), so that a child's malloc may hang there.
 */
#if defined(__SANITIZE_ADDRESS__)
#define FORK_IN_THREADS_HANGS 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define FORK_IN_THREADS_HANGS 1
#endif
#endif
#ifndef FORK_IN_THREADS_HANGS
#define FORK_IN_THREADS_HANGS 0
#endif

static void forks_in_the_middle_of_it(void **state)
{
    struct fake *f;
    kops_client *client;
    struct worker workers[THREADS];
    atomic_bool stop = false;

    (void)state;
    if (FORK_IN_THREADS_HANGS)
        skip();
    f = fake_start(fake_serve_well, NULL);
    client = connect_to(f);
    start(workers, client, ping_until_told, &stop);
    for (int i = 0; i < 20; i++) {
        pid_t pid = fork();
        int status;

        if (pid == 0) {
            struct kops_error error;

            _exit(kops_ping(client, 0, &error) || kops_ping(client, 0, &error) ? 1 : 0);
        }
        assert_int_equal(waitpid(pid, &status, 0), pid);
        assert_true(WIFEXITED(status));
        assert_int_equal(WEXITSTATUS(status), 0);
    }
    atomic_store(&stop, true);
    join(workers);
    kops_close(client);
    fake_stop(f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_thread_gets_its_own_replies),
        cmocka_unit_test(lost_connections_are_replaced),
        cmocka_unit_test(forks_in_the_middle_of_it),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
