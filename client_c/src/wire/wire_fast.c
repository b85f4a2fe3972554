#include "wire_fast.h"

#include <math.h>
#include <string.h>

size_t wire_response_head(const unsigned char *d, size_t length, uint32_t *ret_msgid)
{
    if (length < 5 || d[0] != 0x94 || d[1] != 1)
        return 0;
    if (d[2] < 0x80) {
        *ret_msgid = d[2];
        return 3;
    }
    if (d[2] == 0xcc) {
        *ret_msgid = d[3];
        return 4;
    }
    if (d[2] == 0xcd && length > 6) {
        *ret_msgid = (uint32_t)d[3] << 8 | d[4];
        return 5;
    }
    if (d[2] == 0xce && length > 8) {
        *ret_msgid = (uint32_t)d[3] << 24 | (uint32_t)d[4] << 16 | (uint32_t)d[5] << 8 | d[6];
        return 7;
    }
    return 0;
}

bool wire_is_success(const char *data, size_t length, uint32_t *ret_msgid, bool *ret_empty)
{
    const unsigned char *d = (const unsigned char *)data;
    size_t head = wire_response_head(d, length, ret_msgid);

    if (!head || length < head + 2 || d[head] != 0xc0)
        return false;
    *ret_empty = d[head + 1] == 0x80;
    return (d[head + 1] & 0xf0) == 0x80;
}

/* ---- results of runs ---- */

static const struct {
    const char *key;
    size_t length, offset;
} timing_keys[] = {
#define TIMING(key, member)                                                                                            \
    {                                                                                                                  \
        key, sizeof(key) - 1, offsetof(struct kops_result, member)                                                     \
    }
    TIMING("recv_to_start_us", recv_to_start_us),
    TIMING("queue_us", queue_us),
    TIMING("gpu_us", gpu_us),
    TIMING("host_us", host_us),
    TIMING("total_us", total_us),
    TIMING("map_us", map_us),
    TIMING("h2d_us", h2d_us),
    TIMING("d2h_us", d2h_us),
    TIMING("min", min_us),
    TIMING("median", median_us),
    TIMING("p90", p90_us),
    TIMING("max", max_us),
#undef TIMING
};

enum { TIMINGS = sizeof(timing_keys) / sizeof(timing_keys[0]) };

void wire_clear_result(struct kops_result *r)
{
    memset(r, 0, sizeof(*r));
    for (unsigned i = 0; i < TIMINGS; i++)
        *(double *)(void *)((char *)r + timing_keys[i].offset) = (double)NAN;
}

double *wire_timing(struct kops_result *r, const char *key, size_t length, unsigned *from)
{
    for (unsigned n = 0; n < TIMINGS; n++) {
        unsigned i = (*from + n) % TIMINGS;

        if (timing_keys[i].length == length && !memcmp(key, timing_keys[i].key, length)) {
            *from = i + 1;
            return (double *)(void *)((char *)r + timing_keys[i].offset);
        }
    }
    return NULL;
}

/* What is left of a message that was found to be valid MessagePack. */
struct reader {
    const unsigned char *at, *end;
};

/* A text of the two usual forms; NULL: something else. */
static const char *read_text(struct reader *r, size_t *ret_length)
{
    const char *text;

    if (r->at < r->end && (*r->at & 0xe0) == 0xa0) {
        *ret_length = *r->at & 0x1f;
        r->at++;
    } else if (r->end - r->at >= 2 && *r->at == 0xd9) {
        *ret_length = r->at[1];
        r->at += 2;
    } else {
        return NULL;
    }
    if ((size_t)(r->end - r->at) < *ret_length)
        return NULL;
    text = (const char *)r->at;
    r->at += *ret_length;
    return text;
}

static bool read_small_map(struct reader *r, unsigned *ret_pairs)
{
    if (r->at == r->end || (*r->at & 0xf0) != 0x80)
        return false;
    *ret_pairs = *r->at++ & 0x0f;
    return true;
}

static bool read_double(struct reader *r, double *ret)
{
    uint64_t bits = 0;

    if (r->end - r->at < 9 || *r->at != 0xcb)
        return false;
    for (unsigned i = 1; i < 9; i++)
        bits = bits << 8 | r->at[i];
    memcpy(ret, &bits, sizeof(*ret));
    r->at += 9;
    return true;
}

static bool read_timings(struct reader *r, struct kops_result *result)
{
    unsigned pairs, from = 0;

    if (!read_small_map(r, &pairs))
        return false;
    while (pairs--) {
        size_t length;
        const char *key = read_text(r, &length);
        double *place = key ? wire_timing(result, key, length, &from) : NULL;

        if (!place || !read_double(r, place))
            return false;
    }
    return true;
}

static bool read_name(struct reader *r, char *into, size_t size)
{
    size_t length;
    const char *text = read_text(r, &length);

    if (!text || length >= size)
        return false;
    memcpy(into, text, length);
    into[length] = 0;
    return true;
}

bool wire_fast_run(const char *data, size_t length, struct wire_timings *t)
{
    struct reader r = {(const unsigned char *)data, (const unsigned char *)data + length};
    bool timings = false, device = false;
    unsigned pairs;
    uint32_t msgid;

    r.at += wire_response_head(r.at, length, &msgid) + 1;
    wire_clear_result(&t->result);
    if (!read_small_map(&r, &pairs))
        return false;
    while (pairs--) {
        size_t n;
        const char *key = read_text(&r, &n);

        if (key && n == 7 && !memcmp(key, "timings", 7) && read_timings(&r, &t->result))
            timings = true;
        else if (key && n == 6 && !memcmp(key, "device", 6) &&
                 read_name(&r, t->result.device, sizeof(t->result.device)))
            device = true;
        else if (!key || n != 7 || memcmp(key, "variant", 7) != 0 ||
                 !read_name(&r, t->result.variant, sizeof(t->result.variant)))
            return false;
    }
    return timings && device && r.at == r.end;
}
