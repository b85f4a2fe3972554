/* Draws marks and recognises them. */
#include "marks.h"

#include <sys/random.h>

_Static_assert(!(MARKS_WINDOW & (MARKS_WINDOW - 1)), "places of marks are numbers modulo the window");

bool cuda_random_seed(struct cuda_random *random)
{
    random->drawn = 0;
    return getrandom(random->key, sizeof(random->key), 0) == sizeof(random->key);
}

static uint64_t turn(uint64_t value, unsigned bits)
{
    return value << bits | value >> (64 - bits);
}

static inline void mix(uint64_t v[4])
{
    v[0] += v[1];
    v[1] = turn(v[1], 13) ^ v[0];
    v[0] = turn(v[0], 32);
    v[2] += v[3];
    v[3] = turn(v[3], 16) ^ v[2];
    v[0] += v[3];
    v[3] = turn(v[3], 21) ^ v[0];
    v[2] += v[1];
    v[1] = turn(v[1], 17) ^ v[2];
    v[2] = turn(v[2], 32);
}

/* SipHash-2-4 (Aumasson and Bernstein, 2012) of a message of 8 bytes. A pseudorandom function: who knows its values for
 * some messages, and not the key, knows nothing of the next. Takes some 30 ns, once an execution. */
static uint64_t siphash(const uint64_t key[2], uint64_t message)
{
    const uint64_t blocks[2] = {message, UINT64_C(8) << 56 /* its length */};
    uint64_t v[4] = {key[0] ^ UINT64_C(0x736f6d6570736575), key[1] ^ UINT64_C(0x646f72616e646f6d),
                     key[0] ^ UINT64_C(0x6c7967656e657261), key[1] ^ UINT64_C(0x7465646279746573)};

    for (unsigned i = 0; i < 2; i++) {
        v[3] ^= blocks[i];
        mix(v);
        mix(v);
        v[0] ^= blocks[i];
    }
    v[2] ^= 0xff;
    for (unsigned i = 0; i < 4; i++)
        mix(v);
    return v[0] ^ v[1] ^ v[2] ^ v[3];
}

uint64_t cuda_random_next(struct cuda_random *random)
{
    uint64_t value;

    do
        value = siphash(random->key, random->drawn++);
    while (!value);
    return value;
}

uint64_t cuda_marks_next(struct cuda_marks *marks, struct cuda_random *random)
{
    const uint64_t value = cuda_random_next(random);

    marks->values[(marks->issued + 1) % MARKS_WINDOW] = value;
    return value;
}

void cuda_marks_look(struct cuda_marks *marks, uint64_t value)
{
    /* The oldest first: mostly it is that one. */
    for (uint64_t i = marks->ended + 1; i <= marks->issued; i++)
        if (marks->values[i % MARKS_WINDOW] == value) {
            marks->ended = i;
            marks->seen = value;
            return;
        }
}
