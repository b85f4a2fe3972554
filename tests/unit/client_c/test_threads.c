/* One client, many threads. Worth most under ThreadSanitizer. */
#include <stdatomic.h>

#include "scripted.h"

enum { THREADS = 8, RUNS = 200 };

/* The variant of the reply is the tag of the request. */
static void serve_echo(struct fake_connection *c, void *context)
{
    struct fake_request r;

    while (fake_next(c, &r)) {
        if (r.tag[0])
            fake_reply_run(c, r.msgid, r.tag);
        else
            fake_answer(c, &r);
    }
}

struct worker {
    kops_client *client;
    int number;
    atomic_bool *stop;
};

static void prepare(struct worker *workers, kops_client *client, atomic_bool *stop)
{
    for (int i = 0; i < THREADS; i++)
        workers[i] = (struct worker){client, i, stop};
}

#define expect(condition)                                                                                              \
    do {                                                                                                               \
        if (!(condition))                                                                                              \
            return #condition;                                                                                         \
    } while (0)

static void *mixed_work(void *argument)
{
    const struct worker *w = argument;
    struct kops_error error;

    for (int i = 0; i < RUNS; i++) {
        struct kops_result first, second;
        struct tagged t, u;
        kops_ticket ticket;
        char tag[2][16];

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

TEST(every_thread_gets_its_own_replies)
{
    struct worker workers[THREADS];
    struct scene *s;

    fake_set_inflight(12); /* less than the threads want together */
    s = scene_serve(serve_echo, NULL, NULL);
    fake_set_inflight(64);
    prepare(workers, s->client, NULL);
    in_threads(THREADS, mixed_work, workers, sizeof(workers[0]));
    scene_stop(s);
}

/* ---- forking while others hold the lock ---- */

static void *ping_until_told(void *argument)
{
    const struct worker *w = argument;
    struct kops_error error;

    while (!atomic_load(w->stop))
        expect(!kops_ping(w->client, 0, &error));
    return NULL;
}

static int ping_twice(void *client)
{
    struct kops_error error;

    return kops_ping(client, 0, &error) || kops_ping(client, 0, &error) ? 1 : 0;
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

SCENE(forks_in_the_middle_of_it)
{
    struct worker workers[THREADS];
    atomic_bool stop = false;
    struct threads threads;

    if (FORK_IN_THREADS_HANGS)
        skip();
    prepare(workers, s->client, &stop);
    threads_start(&threads, THREADS, ping_until_told, workers, sizeof(workers[0]));
    for (int i = 0; i < 20; i++)
        in_child(ping_twice, s->client);
    atomic_store(&stop, true);
    threads_join(&threads);
}
