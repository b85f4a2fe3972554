/* Containers and the histogram. */
#include "tests/support/unit.h"
#include "util/buffer.h"
#include "util/error.h"
#include "util/histogram.h"
#include "util/idtable.h"
#include "util/log.h"

TEST(ids_are_not_reused_and_have_a_limit)
{
    struct idtable t;
    int x[40];
    uint64_t first, id = 0;

    idtable_init(&t, 40);
    first = idtable_add(&t, &x[0]);
    assert_true(first > 0);
    assert_ptr_equal(idtable_remove(&t, first), &x[0]);
    for (int i = 0; i < 40; i++) {
        id = idtable_add(&t, &x[i]);
        assert_true(id > 0 && id != first);
        assert_ptr_equal(idtable_get(&t, id), &x[i]);
    }
    assert_int_equal(idtable_add(&t, &x[0]), 0);
    for (uint32_t i = 0; i < 40; i++)
        assert_ptr_equal(idtable_at(&t, i), &x[i]);
    assert_null(idtable_get(&t, first));
    assert_null(idtable_remove(&t, first));
    assert_null(idtable_get(&t, 0));
    assert_null(idtable_get(&t, UINT64_MAX));
    idtable_free(&t);
}

TEST(buffer_keeps_order_and_limit)
{
    struct buffer b;
    char big[5000];

    memset(big, 'x', sizeof(big));
    buffer_init(&b, 6000);
    buffer_append(&b, "abc", 3);
    buffer_consume(&b, 1);
    buffer_append(&b, big, sizeof(big));
    assert_int_equal(buffer_length(&b), 5002);
    assert_memory_equal(b.data + b.start, "bcxx", 4);
    assert_false(b.failed);
    buffer_append(&b, big, 999);
    assert_true(b.failed);
    assert_int_equal(buffer_length(&b), 5002);
    buffer_free(&b);
}

static double percentile(const struct histogram *h, double p)
{
    double us;

    histogram_percentiles(h, 1, &p, &us);
    return us;
}

TEST(percentiles_are_close)
{
    struct histogram *h = calloc(2, sizeof(*h)), *same = h + 1;
    uint64_t ns;

    assert_true(percentile(h, 0.5) == 0);
    for (int i = 1; i <= 1000; i++) {
        histogram_add(h, i * 0.37);
        histogram_add_in(same, i * 0.37, histogram_bucket(i * 0.37, &ns));
    }
    assert_memory_equal(h, same, sizeof(*h));
    assert_true(h->min_us == 0.37 && h->max_us == 370.0);
    for (int p = 1; p <= 99; p++) {
        double exact = p * 3.7, got = percentile(h, p / 100.0);

        assert_true(got > exact * 0.93 && got < exact * 1.07);
    }
    histogram_add(h, 1e12); /* beyond the last bucket */
    histogram_add(h, 0);
    assert_true(histogram_bucket(1e12, &ns) < HISTOGRAM_BUCKETS && histogram_bucket(-1, &ns) == 0);
    assert_true(percentile(h, 1) <= 1e12);
    free(h);
}

TEST(errors_carry_details)
{
    struct error e;

    assert_int_equal(error_set(&e, ERROR_OUT_OF_BOUNDS, "needs %d", 5), -1);
    error_detail_number(&e, "needed", 5);
    error_detail_text(&e, "key", "in[0]");
    assert_string_equal(e.message, "needs 5");
    assert_int_equal(e.n_details, 2);
    for (int i = 0; i < 10; i++)
        error_detail_number(&e, "more", i);
    assert_int_equal(e.n_details, ERROR_DETAILS_MAX);
    assert_string_equal(error_code_name(ERROR_OUT_OF_BOUNDS), "out_of_bounds");
    assert_string_equal(error_code_name((enum error_code)9999), "internal");
}

TEST(quoted_text_stays_one_line)
{
    char text[16];

    assert_string_equal(log_quote(text, sizeof(text), "a\"\n", 3), "\"a\\\"\\x0a\"");
    log_quote(text, sizeof(text), "0123456789abcdefghij", 20);
    assert_true(strlen(text) < sizeof(text));
    assert_int_equal(text[strlen(text) - 1], '"');
}

TEST(lines_are_limited_by_the_second)
{
    const uint64_t second = UINT64_C(1000000000);
    struct log_limit limit = {0};
    uint64_t now = 12345 * second;
    unsigned passed = 0, held_back = 99;

    for (int i = 0; i < 1000; i++)
        passed += log_limit_pass(&limit, now + (uint64_t)i, 7, &held_back);
    assert_int_equal(passed, 7);
    assert_int_equal(held_back, 0);
    assert_false(log_limit_pass(&limit, now + second - 1, 7, &held_back));
    assert_true(log_limit_pass(&limit, now + second, 7, &held_back));
    assert_int_equal(held_back, 994); /* of 1001 */
    assert_true(log_limit_pass(&limit, now + second, 7, &held_back));
    assert_int_equal(held_back, 0);
}

TEST(what_is_old_fades)
{
    static const double ps[] = {0.1, 0.5, 0.9};
    struct histogram *h = calloc(1, sizeof(*h));
    double us[3];

    for (int i = 0; i < 1000; i++)
        histogram_add(h, 10);
    histogram_fade(h, 3); /* 125 are left */
    for (int i = 0; i < 400; i++)
        histogram_add(h, 1000);
    histogram_percentiles(h, 3, ps, us);
    assert_true(us[0] < 11 && us[1] > 900 && us[2] > 900);
    assert_int_equal(h->count, 1400);
    assert_true(h->min_us == 10);
    histogram_fade(h, 64);
    histogram_percentiles(h, 3, ps, us);
    assert_true(us[0] == 1000 && us[2] == 1000); /* the longest is what is left to say */
    histogram_add(h, 10);
    assert_true(percentile(h, 0.5) < 11);
    free(h);
}

TEST(a_full_bucket_does_not_wrap)
{
    struct histogram *h = calloc(1, sizeof(*h));
    uint64_t ns;
    unsigned often = histogram_bucket(10, &ns), seldom = histogram_bucket(1000, &ns);

    histogram_add(h, 10);
    histogram_add(h, 1000);
    h->buckets[often] = UINT32_MAX - 1;
    h->buckets[seldom] = 1000000;
    histogram_add(h, 10);
    assert_int_equal(h->buckets[often], UINT32_MAX / 2);
    assert_int_equal(h->buckets[seldom], 500000);
    assert_true(percentile(h, 0.5) < 11);
    free(h);
}
