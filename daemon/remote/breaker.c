#include "remote/breaker.h"

bool breaker_allows(struct breaker *b, uint64_t now_ms)
{
    if (!b->open)
        return true;
    if (b->trying || now_ms < b->until_ms)
        return false;
    b->trying = true;
    return true;
}

bool breaker_succeed(struct breaker *b)
{
    const bool was_open = b->open;

    *b = (struct breaker){0};
    return was_open;
}

bool breaker_fail(struct breaker *b, uint64_t now_ms)
{
    const bool was_open = b->open;

    if (was_open && !b->trying)
        return false;
    if (!was_open && ++b->failures < BREAKER_FAILURES)
        return false;
    b->trying = false;
    b->open = true;
    b->rest_ms = was_open ? 2 * b->rest_ms : BREAKER_FIRST_MS;
    if (b->rest_ms > BREAKER_LAST_MS)
        b->rest_ms = BREAKER_LAST_MS;
    b->until_ms = now_ms + b->rest_ms;
    return !was_open;
}

void breaker_abandon(struct breaker *b)
{
    b->trying = false;
}

uint64_t breaker_rests(const struct breaker *b, uint64_t now_ms)
{
    if (!b->open || now_ms >= b->until_ms)
        return 0;
    return b->until_ms - now_ms;
}
