#include "util/backoff.h"

static unsigned after_service(struct backoff *b, uint64_t now_ms)
{
    const uint64_t burst_ms = (uint64_t)BACKOFF_BURST * BACKOFF_EACH_MS;

    b->failures = 0;
    if (b->paid_until_ms < now_ms)
        b->paid_until_ms = now_ms;
    b->paid_until_ms += BACKOFF_EACH_MS;
    return b->paid_until_ms - now_ms > burst_ms ? (unsigned)(b->paid_until_ms - now_ms - burst_ms) : 0;
}

static unsigned after_failure(struct backoff *b, uint64_t now_ms)
{
    unsigned delay_ms = BACKOFF_FIRST_MS;

    if (now_ms - b->last_ms > BACKOFF_FORGET_MS)
        b->failures = 0;
    b->failures++;
    if (b->failures == 1)
        return 0;
    for (unsigned i = 2; i < b->failures && delay_ms < BACKOFF_LAST_MS; i++)
        delay_ms *= 2;
    return delay_ms < BACKOFF_LAST_MS ? delay_ms : BACKOFF_LAST_MS;
}

unsigned backoff_after(struct backoff *b, bool had_served, uint64_t now_ms)
{
    const unsigned delay_ms = had_served ? after_service(b, now_ms) : after_failure(b, now_ms);

    b->last_ms = now_ms;
    return delay_ms;
}
