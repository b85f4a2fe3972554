/* Containers and the histogram. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "util/buffer.h"
#include "util/error.h"
#include "util/histogram.h"
#include "util/idtable.h"
#include "util/log.h"

static void ids_are_not_reused(void **state)
{
    struct idtable t;
    int a, b;
    uint64_t first, second;

    (void)state;
    idtable_init(&t, 2);
    first = idtable_add(&t, &a);
    assert_true(first > 0);
    assert_ptr_equal(idtable_remove(&t, first), &a);
    second = idtable_add(&t, &b);
    assert_true(second != first);
    assert_null(idtable_get(&t, first));
    assert_null(idtable_remove(&t, first));
    assert_ptr_equal(idtable_get(&t, second), &b);
    assert_null(idtable_get(&t, 0));
    assert_null(idtable_get(&t, UINT64_MAX));
    idtable_free(&t);
}

static void table_has_a_limit(void **state)
{
    struct idtable t;
    int x[40];

    (void)state;
    idtable_init(&t, 40);
    for (int i = 0; i < 40; i++)
        assert_true(idtable_add(&t, &x[i]) > 0);
    assert_int_equal(idtable_add(&t, &x[0]), 0);
    for (uint32_t i = 0; i < 40; i++)
        assert_ptr_equal(idtable_at(&t, i), &x[i]);
    idtable_free(&t);
}

static void buffer_keeps_order_and_limit(void **state)
{
    struct buffer b;
    char big[5000];

    (void)state;
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

static void percentiles_are_close(void **state)
{
    struct histogram *h = calloc(1, sizeof(*h));

    (void)state;
    assert_true(histogram_percentile(h, 0.5) == 0);
    for (int i = 1; i <= 1000; i++)
        histogram_add(h, i * 0.37);
    assert_true(h->min_us == 0.37 && h->max_us == 370.0);
    for (int p = 1; p <= 99; p++) {
        double exact = p * 3.7, got = histogram_percentile(h, p / 100.0);

        assert_true(got > exact * 0.93 && got < exact * 1.07);
    }
    histogram_add(h, 1e12); /* beyond the last bucket */
    histogram_add(h, 0);
    assert_true(histogram_percentile(h, 1) <= 1e12);
    free(h);
}

static void errors_carry_details(void **state)
{
    struct error e;

    (void)state;
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

static void quoted_text_stays_one_line(void **state)
{
    char text[16];

    (void)state;
    assert_string_equal(log_quote(text, sizeof(text), "a\"\n", 3), "\"a\\\"\\x0a\"");
    log_quote(text, sizeof(text), "0123456789abcdefghij", 20);
    assert_true(strlen(text) < sizeof(text));
    assert_int_equal(text[strlen(text) - 1], '"');
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ids_are_not_reused),           cmocka_unit_test(table_has_a_limit),
        cmocka_unit_test(buffer_keeps_order_and_limit), cmocka_unit_test(percentiles_are_close),
        cmocka_unit_test(errors_carry_details),         cmocka_unit_test(quoted_text_stays_one_line),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
