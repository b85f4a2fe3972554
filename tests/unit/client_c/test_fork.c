/* Children that go on with the client that they inherited. */
#include <stdatomic.h>

#include "scene.h"

static int run_on_inherited(void *scene)
{
    struct scene *s = scene;
    struct kops_tensor t = kops_vector(s->made[0], KOPS_F32, 4);

    ((float *)kops_buffer_data(s->made[0]))[0] = 3;
    for (int i = 0; i < 2; i++)
        if (kops_square(s->client, &t, &t, NULL, NULL, &s->error))
            return 1;
    kops_buffer_release(s->made[0]);
    if (kops_ping(s->client, 0, &s->error))
        return 2;
    kops_close(s->client);
    return 0;
}

static int grandchild(void *scene)
{
    return child_status(run_on_inherited, scene) ? 10 : run_on_inherited(scene);
}

SCENE(a_child_and_its_child_connect_anew)
{
    kops_buffer *buffer = scene_memory(s, 64);
    struct kops_tensor t = kops_vector(buffer, KOPS_F32, 4);

    assert_ok(kops_square(s->client, &t, &t, NULL, NULL, &s->error));
    assert_int_equal(scene_seen(s).requests[1], 3); /* hello, register, run */
    in_child(run_on_inherited, s);
    /* The same memory, another connection, registered there once. */
    assert_true(((float *)kops_buffer_data(buffer))[0] == 3);
    assert_int_equal(scene_seen(s).requests[1], 3);
    assert_int_equal(scene_seen(s).registered, 2);
    assert_int_equal(scene_seen(s).requests[2], 6); /* hello, register, two runs, release, ping */
    in_child(grandchild, s);
    assert_ok(kops_square(s->client, &t, &t, NULL, NULL, &s->error));
    assert_int_equal(scene_seen(s).requests[1], 4);
    assert_int_equal(scene_seen(s).connections, 4);
}

static int only_let_go(void *scene)
{
    struct scene *s = scene;

    kops_buffer_release(s->made[0]);
    kops_close(s->client);
    return 0;
}

SCENE(a_child_that_only_closes_disturbs_nobody)
{
    scene_memory(s, 64);
    in_child(only_let_go, s);
    assert_ok(kops_ping(s->client, 0, &s->error));
    assert_int_equal(scene_seen(s).requests[1], 3);
    assert_int_equal(scene_seen(s).requests[2], 0);
}

static kops_ticket of_the_parent;

static int wait_for_parents(void *scene)
{
    struct scene *s = scene;

    if (kops_wait(s->client, of_the_parent, 5000, NULL, &s->error) != KOPS_ERR_CONNECTION_LOST)
        return 1;
    return kops_ping(s->client, 0, &s->error) ? 2 : 0;
}

/* The parent's run is under way meanwhile: it is answered behind the parent's next request. */
SCENE(tickets_stay_with_the_parent)
{
    struct kops_result result;

    scene_script(s, "l", NULL);
    assert_ok(kops_submit(s->client, tagged_run(&s->t, "x"), &of_the_parent, &s->error));
    in_child(wait_for_parents, s);
    assert_ok(kops_ping(s->client, 0, &s->error));
    assert_ok(kops_wait(s->client, of_the_parent, 0, &result, &s->error));
    assert_string_equal(result.variant, "late");
}

/* ---- forking while others hold the lock ---- */

static atomic_bool begun, stop;

static int ping_twice(void *client)
{
    return kops_ping(client, 0, NULL) || kops_ping(client, 0, NULL);
}

/* The first thread forks, the others ping until it has. */
static void *fork_or_ping(void *client)
{
    bool failed = false;

    if (atomic_exchange(&begun, true)) {
        while (!failed && !stop)
            failed = kops_ping(client, 0, NULL) != KOPS_OK;
        return failed ? "a ping failed" : NULL;
    }
    for (int i = 0; i < 20 && !failed; i++)
        failed = child_status(ping_twice, client) != 0;
    stop = true;
    return failed ? "a child failed" : NULL;
}

/* AddressSanitizer's allocator keeps its locks over a fork (GCC 12, clang 14), so that a child's malloc may hang there.
 */
#if defined(__has_feature)
#define FORK_IN_THREADS_HANGS __has_feature(address_sanitizer)
#elif defined(__SANITIZE_ADDRESS__)
#define FORK_IN_THREADS_HANGS 1
#else
#define FORK_IN_THREADS_HANGS 0
#endif

SCENE(forks_in_the_middle_of_it)
{
    if (FORK_IN_THREADS_HANGS)
        skip();
    in_threads(9, fork_or_ping, s->client, 0);
}
