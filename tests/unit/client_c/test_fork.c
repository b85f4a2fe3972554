/* Children that go on with the client that they inherited. */
#include <stdatomic.h>
#include <sys/wait.h>
#include <unistd.h>

#include "test.h"

/* What each connection saw, by its number. */
struct seen {
    atomic_uint requests[8], registers[8];
};

static void serve_counting(struct fake_connection *c, void *context)
{
    struct seen *s = context;
    struct fake_request r;

    while (fake_next(c, &r)) {
        s->requests[c->number]++;
        s->registers[c->number] += !strcmp(r.method, "register");
        fake_answer(c, &r);
    }
}

/* Runs `work` in a child; fails the test unless it returns 0. */
static void in_child(int (*work)(kops_client *, kops_buffer *), kops_client *client, kops_buffer *buffer)
{
    pid_t pid = fork();
    int status;

    if (pid == 0)
        _exit(work(client, buffer));
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
}

static int run_on_inherited(kops_client *client, kops_buffer *buffer)
{
    struct kops_error error;
    struct kops_tensor t = kops_vector(buffer, KOPS_F32, 4);

    ((float *)kops_buffer_data(buffer))[0] = 3;
    if (kops_square(client, &t, &t, NULL, NULL, &error))
        return 1;
    if (kops_square(client, &t, &t, NULL, NULL, &error))
        return 2;
    kops_buffer_release(buffer);
    if (kops_ping(client, 0, &error))
        return 3;
    kops_close(client);
    return 0;
}

static void child_connects_anew(void **state)
{
    struct seen seen = {0};
    struct fake *f = fake_start(serve_counting, &seen);
    kops_client *client = connect_to(f);
    struct kops_error error;
    struct kops_tensor t;
    kops_buffer *buffer;

    (void)state;
    assert_ok(kops_buffer_alloc_shared(client, 64, &buffer, &error));
    t = kops_vector(buffer, KOPS_F32, 4);
    assert_ok(kops_square(client, &t, &t, NULL, NULL, &error));
    assert_int_equal(seen.requests[1], 3); /* hello, register, run */
    in_child(run_on_inherited, client, buffer);
    /* The same memory, another connection, registered there once. */
    assert_true(((float *)kops_buffer_data(buffer))[0] == 3);
    assert_int_equal(seen.requests[1], 3);
    assert_int_equal(seen.registers[2], 1);
    assert_int_equal(seen.requests[2], 6); /* hello, register, two runs, release, ping */
    assert_ok(kops_square(client, &t, &t, NULL, NULL, &error));
    assert_int_equal(seen.requests[1], 4);
    kops_buffer_release(buffer);
    kops_close(client);
    fake_stop(f);
}

static int only_let_go(kops_client *client, kops_buffer *buffer)
{
    kops_buffer_release(buffer);
    kops_close(client);
    return 0;
}

static void child_that_only_closes_disturbs_nobody(void **state)
{
    struct seen seen = {0};
    struct fake *f = fake_start(serve_counting, &seen);
    kops_client *client = connect_to(f);
    struct kops_error error;
    kops_buffer *buffer;

    (void)state;
    assert_ok(kops_buffer_alloc_shared(client, 64, &buffer, &error));
    in_child(only_let_go, client, buffer);
    assert_ok(kops_ping(client, 0, &error));
    assert_int_equal(seen.requests[1], 3);
    assert_int_equal(seen.requests[2], 0);
    kops_buffer_release(buffer);
    kops_close(client);
    fake_stop(f);
}

/* ---- with a run of the parent under way ---- */

static void serve_held_run(struct fake_connection *c, void *context)
{
    struct fake_request r;
    uint32_t held = 0;

    (void)context;
    while (fake_next(c, &r)) {
        if (!strcmp(r.method, "run") && c->number == 1) {
            held = r.msgid;
            continue;
        }
        if (held)
            fake_reply_run(c, held, "simple");
        held = 0;
        fake_answer(c, &r);
    }
}

static kops_ticket parents_ticket;

static int wait_for_parents(kops_client *client, kops_buffer *buffer)
{
    struct kops_error error;

    (void)buffer;
    if (kops_wait(client, parents_ticket, 0, NULL, &error) != KOPS_ERR_CONNECTION_LOST)
        return 1;
    return kops_ping(client, 0, &error) ? 2 : 0;
}

static void tickets_stay_with_the_parent(void **state)
{
    struct fake *f = fake_start(serve_held_run, NULL);
    kops_client *client = connect_to(f);
    struct kops_error error;
    struct kops_result result;
    struct tagged t;

    (void)state;
    assert_ok(kops_submit(client, tagged_run(&t, "x"), &parents_ticket, &error));
    in_child(wait_for_parents, client, NULL);
    assert_ok(kops_ping(client, 0, &error)); /* makes the daemon answer the run, too */
    assert_ok(kops_wait(client, parents_ticket, 0, &result, &error));
    assert_string_equal(result.variant, "simple");
    kops_close(client);
    fake_stop(f);
}

static int grandchild(kops_client *client, kops_buffer *buffer)
{
    pid_t pid = fork();
    int status;

    if (pid == 0)
        _exit(run_on_inherited(client, buffer));
    if (waitpid(pid, &status, 0) != pid || !WIFEXITED(status) || WEXITSTATUS(status))
        return 10;
    return run_on_inherited(client, buffer);
}

static void grandchildren_too(void **state)
{
    struct seen seen = {0};
    struct fake *f = fake_start(serve_counting, &seen);
    kops_client *client = connect_to(f);
    struct kops_error error;
    kops_buffer *buffer;

    (void)state;
    assert_ok(kops_buffer_alloc_shared(client, 64, &buffer, &error));
    in_child(grandchild, client, buffer);
    assert_ok(kops_ping(client, 0, &error));
    kops_buffer_release(buffer);
    kops_close(client);
    fake_stop(f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(child_connects_anew),
        cmocka_unit_test(child_that_only_closes_disturbs_nobody),
        cmocka_unit_test(tickets_stay_with_the_parent),
        cmocka_unit_test(grandchildren_too),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
