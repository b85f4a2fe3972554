/* Calls that take too long, their cancellation, and replies that come late. */
#include "scene.h"

enum { SHORT_MS = 20, LONG_ENOUGH_MS = 1000 /* to connect in, also where much else runs */ };

static enum kops_code run_shortly(struct scene *s, const char *script, struct kops_result *ret)
{
    scene_script(s, script, NULL);
    tagged_run(&s->t, "x");
    s->t.request.options.timeout_ms = SHORT_MS;
    return kops_run(s->client, &s->t.request, ret, &s->error);
}

/* A run that ended before the cancellation reached it has a result, which is worth more than the caller's limit. */
SCENE(a_run_is_cancelled_in_time)
{
    struct kops_result result;

    assert_int_equal(run_shortly(s, "W", NULL), KOPS_ERR_TIMEOUT);
    assert_int_equal(s->error.code, KOPS_ERR_TIMEOUT);
    assert_ok(kops_ping(s->client, 0, &s->error));
    assert_int_equal(scene_seen(s).cancelled, 1);
    assert_ok(run_shortly(s, "w", &result));
    assert_string_equal(result.variant, "late");
}

/* No reply at all within the grace: it is dropped when it comes, and does not reach the next call. */
SCENE(late_reply_is_dropped)
{
    struct kops_result result;
    double samples[3] = {-1, -1, -1};

    scene_script(s, "l", NULL);
    tagged_run(&s->t, "x");
    s->t.request.options = (struct kops_options){.timeout_ms = SHORT_MS, .samples = samples, .samples_room = 3};
    assert_int_equal(kops_run(s->client, &s->t.request, NULL, &s->error), KOPS_ERR_TIMEOUT);
    for (int i = 0; i < 100; i++) {
        assert_ok(kops_run(s->client, tagged_run(&s->t, "x"), &result, &s->error));
        assert_string_equal(result.variant, "simple");
    }
    assert_true(samples[0] == -1); /* nothing is written after the call has returned */
    assert_int_equal(scene_seen(s).connections, 1);
}

/* ---- tickets ---- */

SCENE(wait_may_be_repeated)
{
    struct kops_result result;
    kops_ticket ticket;
    bool done = true;

    scene_script(s, "wW", NULL);
    assert_ok(kops_submit(s->client, tagged_run(&s->t, "x"), &ticket, &s->error));
    assert_int_equal(kops_wait(s->client, ticket, SHORT_MS, &result, &s->error), KOPS_ERR_TIMEOUT);
    assert_ok(kops_poll(s->client, ticket, &done, &s->error));
    assert_false(done);
    assert_ok(kops_cancel(s->client, ticket, &s->error));
    assert_ok(kops_wait(s->client, ticket, 0, &result, &s->error));
    assert_string_equal(result.variant, "late");
    assert_int_equal(kops_wait(s->client, ticket, 0, &result, &s->error), KOPS_ERR_BAD_ARGUMENT);
    assert_int_equal(kops_poll(s->client, ticket, &done, &s->error), KOPS_ERR_BAD_ARGUMENT);
    assert_int_equal(kops_cancel(s->client, ticket, &s->error), KOPS_ERR_BAD_ARGUMENT);

    assert_ok(kops_submit(s->client, tagged_run(&s->t, "x"), &ticket, &s->error));
    assert_ok(kops_cancel(s->client, ticket, &s->error));
    assert_int_equal(kops_wait(s->client, ticket, 0, &result, &s->error), KOPS_ERR_CANCELLED);
}

/* Memory that the daemon made after its caller gave up is given back. */
TEST(late_buffer_is_released)
{
    struct scene *s;
    kops_buffer *buffer;

    fake_device = "GPU-0"; /* whose memory the daemon makes */
    s = scene_start(&(struct kops_connect_options){.timeout_ms = LONG_ENOUGH_MS});
    scene_script(s, "l", "alloc");
    assert_int_equal(kops_buffer_alloc(s->client, 4096, NULL, &buffer, &s->error), KOPS_ERR_TIMEOUT);
    assert_ok(kops_ping(s->client, KOPS_FOREVER, &s->error)); /* the late reply is in front of this one */
    assert_ok(kops_ping(s->client, KOPS_FOREVER, &s->error)); /* and the release in front of this one */
    assert_string_equal(scene_seen(s).released, "{buffer: 1}");
    scene_stop(s);
}
