/* The rule of places, by what the Python client does, too. */
#include "tests/support/unit.h"
#include "util/places.h"

#include "places_vectors.h"

enum { LISTS = sizeof(place_lists) / sizeof(place_lists[0]), SERVERS = sizeof(place_trust) / sizeof(place_trust[0]) };

static unsigned row; /* of the list that is checked */

static bool is_private(const char *folder)
{
    return place_lists[row].is_private[0] && !strcmp(place_lists[row].is_private[0], folder);
}

TEST(the_sockets_that_are_tried)
{
    char paths[PLACES_MAX][PLACE_BYTES];

    for (row = 0; row < LISTS; row++) {
        assert_int_equal(places_list(place_lists[row].runtime, place_lists[row].uid, is_private, paths),
                         place_lists[row].n);
        for (unsigned i = 0; i < place_lists[row].n; i++)
            assert_string_equal(paths[i], place_lists[row].paths[i]);
    }
}

TEST(the_servers_that_are_trusted)
{
    for (unsigned i = 0; i < SERVERS; i++)
        if (places_trusts(&place_trust[i].server) != place_trust[i].trusted)
            fail_msg("%s", place_trust[i].about);
}
