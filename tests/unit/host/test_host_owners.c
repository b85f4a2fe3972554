/* Turns of owners: what each gets of a worker's time, and who is next. */
#include <stdbool.h>

#include "executor.h"
#include "tests/support/unit.h"

enum { ALICE = 1001, BOB = 1002, STREAMS = 64 };

static struct owners owners;
static struct list nodes[STREAMS + 1];

/* So long each owner gets, of turns of what they have ready: one of Alice's, many of Bob's. */
static void run(unsigned turns, uint64_t alices_ns, uint64_t bobs_ns, uint64_t ret_spent[2])
{
    ret_spent[0] = ret_spent[1] = 0;
    owners_init(&owners);
    for (unsigned i = 0; i <= STREAMS; i++) {
        list_init(&nodes[i]);
        owners_add(&owners, owners_get(&owners, i ? BOB : ALICE), &nodes[i]);
    }
    for (unsigned i = 0; i < turns; i++) {
        struct owner *owner;
        struct list *node = owners_next(&owners, &owner);
        const bool hers = owner == owners_get(&owners, ALICE);

        assert_true(hers == (node == &nodes[0]));
        ret_spent[!hers] += hers ? alices_ns : bobs_ns;
        owners_charge(owner, hers ? alices_ns : bobs_ns);
        owners_add(&owners, owner, node);
    }
}

TEST(owners_have_equal_time)
{
    static const uint64_t bobs_ns[] = {10000, 20000000}; /* long turns are paid off */

    for (unsigned i = 0; i < 2; i++) {
        uint64_t spent[2];

        run(10000, 10000, bobs_ns[i], spent);
        assert_in_range(spent[0], spent[1] * (9 - i) / 10, spent[1] * (11 + i) / 10);
    }
}

TEST(who_was_idle_is_next)
{
    struct owner *bob = owners_get(&owners, BOB), *owner;
    uint64_t spent[2];

    run(3, 10000, 10000, spent);
    owners_init(&owners);
    assert_null(owners_next(&owners, &owner)); /* nothing is ready */
    for (unsigned i = 0; i <= STREAMS; i++)
        list_init(&nodes[i]);
    for (unsigned i = 1; i <= STREAMS; i++)
        owners_add(&owners, bob, &nodes[i]);
    assert_ptr_equal(owners_next(&owners, &owner), &nodes[1]);
    owners_add(&owners, owners_get(&owners, ALICE), &nodes[0]);
    assert_ptr_equal(owners_next(&owners, &owner), &nodes[0]);
    assert_ptr_equal(owners_next(&owners, &owner), &nodes[2]); /* the streams of one in turn */
}
