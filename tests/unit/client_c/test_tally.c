/* Launches in this process, as they are counted and told. */
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "here/tally.h"
#include "test.h"

/* ---- a driver whose events end when they are told to ---- */

static unsigned made, records;
static int capturing, unfinished, broken;
static uintptr_t next_event;

/* Of the thread; CU_STREAM_CAPTURE_MODE_GLOBAL at first. */
static int mode;

static cuda_status exchange_capture_mode(int *of_the_thread)
{
    const int before = mode;

    mode = *of_the_thread;
    *of_the_thread = before;
    return 0;
}

static cuda_status event_create(cuda_event *ret, unsigned flags)
{
    assert_int_equal(mode, CUDA_CAPTURE_RELAXED);
    assert_int_equal(flags, 0);
    made++;
    *ret = (cuda_event)++next_event;
    return 0;
}

static cuda_status event_destroy(cuda_event event)
{
    assert_non_null(event);
    made--;
    return 0;
}

static cuda_status event_record(cuda_event event, cuda_queue stream)
{
    (void)event;
    (void)stream;
    records++;
    return broken;
}

static cuda_status event_query(cuda_event event)
{
    (void)event;
    assert_int_equal(mode, CUDA_CAPTURE_RELAXED);
    return unfinished;
}

static cuda_status event_elapsed(float *ret_ms, cuda_event start, cuda_event end)
{
    assert_ptr_not_equal(start, end);
    assert_int_equal(mode, CUDA_CAPTURE_RELAXED);
    *ret_ms = 0.25F;
    return 0;
}

static cuda_status stream_is_capturing(cuda_queue stream, int *ret)
{
    (void)stream;
    *ret = capturing;
    return 0;
}

static const struct cuda_driver driver = {.event_create = event_create,
                                          .event_destroy = event_destroy,
                                          .event_record = event_record,
                                          .event_query = event_query,
                                          .event_elapsed = event_elapsed,
                                          .exchange_capture_mode = exchange_capture_mode,
                                          .stream_is_capturing = stream_is_capturing};

static int set_up(void **state)
{
    made = records = 0;
    capturing = unfinished = broken = 0;
    *state = here_tally_new();
    return *state ? 0 : -1;
}

static int tear_down(void **state)
{
    here_tally_free(*state);
    assert_int_equal(made, 0);
    assert_int_equal(mode, 0);
    return 0;
}

static struct here_counted count(struct here_tally *t, const struct here_shapes *shapes, struct here_row *row)
{
    struct here_counted counted;

    here_tally_lock(t);
    counted = here_tally_count(t, shapes, row);
    here_tally_unlock(t);
    return counted;
}

/* One launch, as here_launch() makes them. */
static bool launch_in(struct here_tally *t, int64_t length, uintptr_t context)
{
    const struct tensor tensor = {.rank = 1, .shape = {length}};
    const struct tensor *const operands[] = {&tensor, NULL};
    struct here_row row = {.generation = 0};
    struct here_counted counted;
    struct here_shapes shapes;

    here_shapes_of(operands, 2, &shapes);
    counted = count(t, &shapes, &row);
    if (counted.timed && here_tally_begin(t, &driver, (cuda_context)context, NULL))
        here_tally_end(t, &driver, NULL, counted.row);
    return counted.due;
}

static bool launch(struct here_tally *t, int64_t length)
{
    return launch_in(t, length, 1);
}

/* The rows that the tally tells, as MessagePack; "" for none. */
static void assert_tells(struct here_tally *t, const char *expected, size_t length)
{
    struct bytes out = {.data = NULL};

    here_tally_read(t);
    assert_int_equal(here_tally_take(t, NULL, &out), length > 0);
    assert_int_equal(out.length, length);
    assert_memory_equal(out.data ? out.data : "", expected, length);
    bytes_free(&out);
}
#define TELLS(t, expected) assert_tells(t, expected, sizeof(expected) - 1)

#define SHAPES(length) "\xa6shapes\x92\x91" length "\x90"
#define COUNT(n)                                                                                                       \
    "\xa5"                                                                                                             \
    "count" n
#define QUARTER_MS "\xa2us\x91\xcb\x40\x6f\x40\0\0\0\0\0"

/* ---- tests ---- */

static void test_counts_by_shapes(void **state)
{
    struct here_tally *t = *state;

    TELLS(t, "");
    assert_false(launch(t, 8));
    TELLS(t, "\x91\x82" SHAPES("\x08") COUNT("\x01"));
    TELLS(t, "");
    for (unsigned i = 0; i < 3; i++)
        launch(t, i == 1 ? 9 : 8);
    /* the second launch of all was timed: the first of these */
    TELLS(t, "\x92\x83" SHAPES("\x08") COUNT("\x02") QUARTER_MS "\x82" SHAPES("\x09") COUNT("\x01"));
}

static void test_times_one_in_many_and_waits_for_none(void **state)
{
    struct here_tally *t = *state;

    unfinished = 600; /* CUDA_ERROR_NOT_READY */
    for (unsigned i = 0; i < 2 * TALLY_EVERY; i++)
        launch(t, 8);
    assert_int_equal(records, 2); /* the first one's end is not read, so there is no second */
    TELLS(t, "\x91\x82" SHAPES("\x08") COUNT("\x7a"));
    unfinished = 0;
    TELLS(t, "\x91\x83" SHAPES("\x08") COUNT("\0") QUARTER_MS);
    for (unsigned i = 0; i < TALLY_EVERY; i++)
        launch(t, 8);
    assert_int_equal(records, 4);
    TELLS(t, "\x91\x83" SHAPES("\x08") COUNT("\x3d") QUARTER_MS);
}

static void test_times_no_more_than_it_tells(void **state)
{
    struct here_tally *t = *state;
    struct bytes told = {.data = NULL};

    for (unsigned i = 0; i < 20 * TALLY_EVERY; i++)
        launch(t, 8);
    assert_int_equal(records, 2 * (TALLY_SAMPLES + 1)); /* a time is read when the next launch is timed */
    assert_true(here_tally_take(t, NULL, &told));
    bytes_free(&told);
    for (unsigned i = 0; i < TALLY_EVERY; i++)
        launch(t, 8);
    assert_int_equal(records, 2 * (TALLY_SAMPLES + 2));
}

static void test_puts_no_events_into_graphs(void **state)
{
    struct here_tally *t = *state;

    capturing = 1;
    for (unsigned i = 0; i < 2 * TALLY_EVERY; i++)
        launch(t, 8);
    assert_int_equal(records, 0);
    TELLS(t, "\x91\x82" SHAPES("\x08") COUNT("\x7a"));
}

static void test_follows_the_context(void **state)
{
    struct here_tally *t = *state;

    for (unsigned i = 0; i < 2 * TALLY_EVERY; i++)
        launch_in(t, 8, i < TALLY_EVERY ? 1 : 2);
    assert_int_equal(records, 4);
    assert_int_equal(made, 2); /* those of the context before are destroyed */
}

static void test_goes_on_where_the_driver_does_not(void **state)
{
    struct here_tally *t = *state;

    broken = 1;
    for (unsigned i = 0; i < 2 * TALLY_EVERY; i++)
        launch(t, 8);
    TELLS(t, "\x91\x82" SHAPES("\x08") COUNT("\x7a"));
}

static void test_more_shapes_than_there_is_room_for(void **state)
{
    struct here_tally *t = *state;
    struct bytes out = {.data = NULL};

    for (int64_t i = 1; i <= TALLY_ROWS + 1; i++)
        launch(t, i); /* the last one is not counted: the table is full */
    assert_true(here_tally_take(t, NULL, &out));
    assert_memory_equal(out.data, "\xdc\0\x40", 3); /* a list of 64 */
    bytes_free(&out);
    assert_false(launch(t, TALLY_ROWS + 2));
    TELLS(t, "\x91\x82" SHAPES("\x42") COUNT("\x01"));
}

static void test_is_due_now_and_then(void **state)
{
    struct here_tally *t = *state;
    const uint64_t began = clock_ns();
    unsigned due = 0;

    /* A full table is due sooner than once a second, but not with each launch. */
    for (int64_t i = 1; clock_ns() - began < 200000000; i++)
        due += launch(t, i % (2 * TALLY_ROWS));
    assert_in_range(due, 1, 4);
}

static void test_a_lost_time_is_not_waited_for(void **state)
{
    struct here_tally *t = *state;

    unfinished = 709; /* CUDA_ERROR_CONTEXT_IS_DESTROYED */
    for (unsigned i = 0; i < TALLY_EVERY; i++)
        launch(t, 8);
    here_tally_read(t);
    assert_int_equal(made, 0);
    unfinished = 0;
    for (unsigned i = 0; i < TALLY_EVERY; i++)
        launch(t, 8);
    TELLS(t, "\x91\x83" SHAPES("\x08") COUNT("\x7a") QUARTER_MS);
}

static void test_attributes_make_other_rows(void **state)
{
    struct here_tally *t = *state;
    const struct tensor tensor = {.rank = 1, .shape = {8}};
    const struct tensor *const operands[] = {&tensor, NULL};
    struct bytes out = {.data = NULL};
    struct here_shapes shapes;

    here_shapes_of(operands, 2, &shapes);
    count(t, &shapes, &(struct here_row){.generation = 0});
    shapes.flags = 1; /* gemm's trans_a */
    count(t, &shapes, &(struct here_row){.generation = 0});
    assert_true(here_tally_take(t, op_find("gemm", 4), &out));
#define TRANSPOSED                                                                                                     \
    "\xa5"                                                                                                             \
    "attrs\x81\xa7trans_a\xc3"
    assert_int_equal(
        out.length, sizeof("\x92\x82" SHAPES("\x08") COUNT("\x01") "\x83" SHAPES("\x08") COUNT("\x01") TRANSPOSED) - 1);
    assert_memory_equal(
        out.data, "\x92\x82" SHAPES("\x08") COUNT("\x01") "\x83" SHAPES("\x08") COUNT("\x01") TRANSPOSED, out.length);
    bytes_free(&out);
}

static void shapes_of_length(int64_t length, struct here_shapes *ret)
{
    const struct tensor tensor = {.rank = 1, .shape = {length}};
    const struct tensor *const operands[] = {&tensor, NULL};

    here_shapes_of(operands, 2, ret);
}

static void test_a_row_is_found_once_and_not_after_it_is_gone(void **state)
{
    struct here_row row = {.generation = 0}, before;
    struct here_tally *t = *state;
    struct bytes out = {.data = NULL};
    struct here_shapes shapes;

    shapes_of_length(TALLY_ROWS, &shapes);
    count(t, &shapes, &row);
    before = row;
    count(t, &shapes, &row);
    assert_memory_equal(&row, &before, sizeof(row));
    for (int64_t i = 1; i < TALLY_ROWS; i++)
        launch(t, i);
    assert_true(here_tally_take(t, NULL, &out)); /* the table was full: it begins anew */
    bytes_free(&out);
    launch(t, 8); /* has the place of the row that is gone */
    here_tally_uncount(t, before);
    here_tally_time(t, before, 250);
    count(t, &shapes, &row);
    TELLS(t, "\x92\x82" SHAPES("\x08") COUNT("\x01") "\x82" SHAPES("\x40") COUNT("\x01"));
}

static void test_a_launch_that_is_refused_does_not_count(void **state)
{
    struct here_row row = {.generation = 0};
    struct here_tally *t = *state;
    struct here_shapes shapes;

    shapes_of_length(8, &shapes);
    for (unsigned i = 0; i < 3; i++)
        count(t, &shapes, &row);
    here_tally_uncount(t, row);
    here_tally_time(t, row, 250);
    TELLS(t, "\x91\x83" SHAPES("\x08") COUNT("\x02") QUARTER_MS);
    here_tally_uncount(t, row); /* was told of already */
    TELLS(t, "");
}

static void test_a_child_tells_nothing_of_its_parent(void **state)
{
    struct here_tally *t = *state;
    struct bytes out = {.data = NULL};
    int status;
    pid_t child;

    launch(t, 8);
    child = fork();
    if (!child)
        _exit(here_tally_take(t, NULL, &out));
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    TELLS(t, "\x91\x82" SHAPES("\x08") COUNT("\x01"));
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        TEST(test_counts_by_shapes),
        TEST(test_times_one_in_many_and_waits_for_none),
        TEST(test_times_no_more_than_it_tells),
        TEST(test_puts_no_events_into_graphs),
        TEST(test_follows_the_context),
        TEST(test_goes_on_where_the_driver_does_not),
        TEST(test_more_shapes_than_there_is_room_for),
        TEST(test_is_due_now_and_then),
        TEST(test_a_lost_time_is_not_waited_for),
        TEST(test_attributes_make_other_rows),
        TEST(test_a_row_is_found_once_and_not_after_it_is_gone),
        TEST(test_a_launch_that_is_refused_does_not_count),
        TEST(test_a_child_tells_nothing_of_its_parent),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
