/* The golden vectors, cut off at any byte. Whole ones go over a real socket (tests/functional/test_golden.py), and in
 * pieces through tests/fuzz; what the codec makes of them is for tests/fuzz/codec.c, beside msgpack-c. */
#include "golden_vectors.h"
#include "rpc/input.h"
#include "tests/support/unit.h"

enum { LIMIT = 1 << 20 };

static int take(const unsigned char *bytes, size_t length)
{
    struct rpc_frame frame;
    struct rpc_input in;
    struct error e = {0};
    size_t room;
    int r;

    rpc_input_init(&in, LIMIT);
    memcpy(rpc_input_reserve(&in, &room), bytes, length);
    assert_true(room >= length);
    r = rpc_input_commit(&in, length, NULL, 0, &e) < 0 ? -1 : rpc_input_next(&in, &frame, &e);
    rpc_input_free(&in);
    return r;
}

/* A message waits for the rest, and is never a shorter one. */
TEST(cut_anywhere)
{
    for (unsigned i = 0; i < GOLDEN_VECTORS; i++) {
        const struct golden_vector *v = &golden_vectors[i];

        if (!v->text || strstr(v->file, "responses"))
            continue;
        for (size_t length = 1; length < v->length; length++)
            if (take(v->bytes, length) != 0)
                fail_msg("%s/%s cut at %zu is taken, or refused", v->file, v->name, length);
    }
}
