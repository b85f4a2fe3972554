/* A client that does nothing for a while: bursts of work, and pauses of seconds to days of which nobody may notice more
 * than their length. */
#include <stdio.h>
#include <time.h>

#include "soak.h"

enum { BURST = 70, SCALES = 14, SLACK_US = 20 /* the clocks of a GPU and its host */ };

static void pause_us(double us)
{
    const struct timespec t = {.tv_sec = (time_t)(us / 1e6),
                               .tv_nsec = (long)((us - (double)(time_t)(us / 1e6) * 1e6) * 1e3)};

    nanosleep(&t, NULL);
}

/* The longest, or half of it, or half of that, and so on. */
static double some_us(struct soak *s)
{
    const double longest_us = s->think_s * 1e6 / (double)(1U << random_below(&s->random, SCALES));

    return longest_us * (500 + random_below(&s->random, 501)) / 1000;
}

/* The times that an answer tells lie within the call, one in the other, as the client's own clock has it. */
void check_times(struct soak *s, const struct kops_result *r, double begin_us)
{
    const double now = now_us(), received_us = (double)r->received_ns / 1e3;
    char told[200];

    s->checked++;
    if ((!r->received_ns || (received_us >= begin_us - SLACK_US && received_us + r->total_us <= now + SLACK_US)) &&
        r->total_us >= 0 && r->total_us <= now - begin_us + SLACK_US && !(r->gpu_us < 0) && !(r->host_us < 0) &&
        !(r->gpu_us > r->total_us + SLACK_US) && !(r->host_us > r->total_us + SLACK_US) && /* or they are not known */
        !(r->wall_us > r->total_us + SLACK_US))
        return;
    snprintf(told, sizeof(told), "in %.1f us: received after %.1f us, total %.1f, wall %.1f, gpu %.1f, host %.1f us",
             now - begin_us, received_us - begin_us, r->total_us, r->wall_us, r->gpu_us, r->host_us);
    complain(s, "times that cannot be", told);
}

/* Work goes on while the client thinks; its answer is there when it asks. */
static void think_over_work(struct soak *s)
{
    struct kops_tensor inputs[2] = {s->kept[0], s->kept[1]};
    const struct kops_request request = {
        .op = "add", .inputs = inputs, .n_inputs = 2, .outputs = &s->kept[3], .n_outputs = 1};
    const double begin_us = now_us(), us = some_us(s);
    struct kops_result result;
    struct kops_error e;
    kops_ticket ticket;

    s->requests++;
    if (kops_submit(s->client, &request, &ticket, &e)) {
        count_failure(s, EXPECT_TICKET, "work to think over", &e);
        return;
    }
    pause_us(us);
    if (kops_wait(s->client, ticket, 0, &result, &e)) {
        count_failure(s, EXPECT_TICKET, "work that was thought over", &e);
        return;
    }
    check_vector(s, &s->kept[3], kept_sum, "of work that was thought over");
    check_times(s, &result, begin_us);
}

void think(struct soak *s)
{
    if (s->think_s <= 0 || random_chance(&s->random, BURST))
        return;
    s->since = expect_now();
    if (random_chance(&s->random, 30)) {
        think_over_work(s);
    } else if (random_chance(&s->random, 30)) {
        soak_end(s);
        pause_us(some_us(s));
        soak_begin(s);
    } else {
        pause_us(some_us(s));
    }
    s->spoiled = false;
    check_kept(s);
}
