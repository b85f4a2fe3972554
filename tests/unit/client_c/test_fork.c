/* Children that go on with the client that they inherited. */
#include <sys/wait.h>
#include <unistd.h>

#include "scripted.h"

struct inherited {
    struct scene *s;
    kops_buffer *buffer;
    kops_ticket ticket;
};

static int begin(void **state)
{
    struct inherited *x = calloc(1, sizeof(*x));

    x->s = scene_start(NULL);
    assert_ok(kops_buffer_alloc_shared(x->s->client, 64, &x->buffer, &x->s->error));
    *state = x;
    return 0;
}

static int end(void **state)
{
    struct inherited *x = *state;

    kops_buffer_release(x->buffer);
    scene_stop(x->s);
    free(x);
    return 0;
}

static int run_on_inherited(void *context)
{
    struct inherited *x = context;
    struct kops_tensor t = kops_vector(x->buffer, KOPS_F32, 4);

    ((float *)kops_buffer_data(x->buffer))[0] = 3;
    for (int i = 0; i < 2; i++)
        if (kops_square(x->s->client, &t, &t, NULL, NULL, &x->s->error))
            return 1;
    kops_buffer_release(x->buffer);
    if (kops_ping(x->s->client, 0, &x->s->error))
        return 2;
    kops_close(x->s->client);
    return 0;
}

#define WITH_BUFFER(name) TEST_OF(struct inherited *x, name, begin, end)

WITH_BUFFER(child_connects_anew)
{
    struct kops_tensor t = kops_vector(x->buffer, KOPS_F32, 4);

    assert_ok(kops_square(x->s->client, &t, &t, NULL, NULL, &x->s->error));
    assert_int_equal(scene_seen(x->s).requests[1], 3); /* hello, register, run */
    in_child(run_on_inherited, x);
    /* The same memory, another connection, registered there once. */
    assert_true(((float *)kops_buffer_data(x->buffer))[0] == 3);
    assert_int_equal(scene_seen(x->s).requests[1], 3);
    assert_int_equal(scene_seen(x->s).registered, 2);
    assert_int_equal(scene_seen(x->s).requests[2], 6); /* hello, register, two runs, release, ping */
    assert_ok(kops_square(x->s->client, &t, &t, NULL, NULL, &x->s->error));
    assert_int_equal(scene_seen(x->s).requests[1], 4);
}

static int only_let_go(void *context)
{
    struct inherited *x = context;

    kops_buffer_release(x->buffer);
    kops_close(x->s->client);
    return 0;
}

WITH_BUFFER(child_that_only_closes_disturbs_nobody)
{
    in_child(only_let_go, x);
    assert_ok(kops_ping(x->s->client, 0, &x->s->error));
    assert_int_equal(scene_seen(x->s).requests[1], 3);
    assert_int_equal(scene_seen(x->s).requests[2], 0);
}

static int wait_for_parents(void *context)
{
    struct inherited *x = context;

    if (kops_wait(x->s->client, x->ticket, 5000, NULL, &x->s->error) != KOPS_ERR_CONNECTION_LOST)
        return 1;
    return kops_ping(x->s->client, 0, &x->s->error) ? 2 : 0;
}

/* The parent's run is under way meanwhile: it is answered behind the parent's next request. */
WITH_BUFFER(tickets_stay_with_the_parent)
{
    struct kops_result result;

    scene_script(x->s, "l", NULL);
    assert_ok(kops_submit(x->s->client, tagged_run(&x->s->t, "x"), &x->ticket, &x->s->error));
    in_child(wait_for_parents, x);
    assert_ok(kops_ping(x->s->client, 0, &x->s->error));
    assert_ok(kops_wait(x->s->client, x->ticket, 0, &result, &x->s->error));
    assert_string_equal(result.variant, "late");
}

static int grandchild(void *context)
{
    const pid_t pid = fork();
    int status;

    if (pid == 0)
        _exit(run_on_inherited(context));
    if (waitpid(pid, &status, 0) != pid || !WIFEXITED(status) || WEXITSTATUS(status))
        return 10;
    return run_on_inherited(context);
}

WITH_BUFFER(grandchildren_too)
{
    in_child(grandchild, x);
    assert_ok(kops_ping(x->s->client, 0, &x->s->error));
    assert_int_equal(scene_seen(x->s).connections, 3);
}
