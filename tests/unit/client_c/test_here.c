/* Launches in this process: as they are counted and told, and which of them are launched without being checked. */
#include "base/clock.h"
#include "here/kernel.h"
#include "here/tally.h"
#include "scene.h"

/* ---- a driver whose events end when they are told to ---- */

static unsigned made, records;
static int capturing, unfinished, broken;
static uintptr_t next_event, in_context;

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
    records++;
    return broken;
}

static cuda_status event_query(cuda_event event)
{
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
    in_context = 1;
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

static struct here_shapes shapes_of_length(int64_t length)
{
    const struct tensor tensor = {.rank = 1, .shape = {length}};
    const struct tensor *const operands[] = {&tensor, NULL};
    struct here_shapes shapes;

    here_shapes_of(operands, 2, &shapes);
    return shapes;
}

/* One launch, as here_launch() makes them. */
static bool launch(struct here_tally *t, int64_t length)
{
    const struct here_shapes shapes = shapes_of_length(length);
    struct here_row row = {.generation = 0};
    struct here_counted counted;

    counted = count(t, &shapes, &row);
    if (counted.timed && here_tally_begin(t, &driver, (cuda_context)in_context, NULL))
        here_tally_end(t, &driver, NULL, counted.row);
    return counted.due;
}

static void launch_often(struct here_tally *t, unsigned n)
{
    for (unsigned i = 0; i < n; i++)
        launch(t, 8);
}

/* The rows that the tally tells, of that op or of a kernel, as text; "" for none. */
static void assert_tells(struct here_tally *t, const struct op *op, const char *expected)
{
    struct bytes out = {.data = NULL};

    here_tally_read(t);
    assert_int_equal(here_tally_take(t, op, &out), *expected != 0);
    if (*expected)
        assert_packed(out.data, out.length, expected);
    bytes_free(&out);
}
#define TELLS(t, expected) assert_tells(t, NULL, expected)

static void forget(struct here_tally *t)
{
    struct bytes out = {.data = NULL};

    assert_true(here_tally_take(t, NULL, &out));
    bytes_free(&out);
}

/* ---- tests ---- */

#define TALLY(name) TEST_OF(struct here_tally *t, name, set_up, tear_down)

TALLY(test_counts_by_shapes)
{
    TELLS(t, "");
    assert_false(launch(t, 8));
    TELLS(t, "[{shapes: [[8], []], count: 1}]");
    TELLS(t, "");
    for (unsigned i = 0; i < 3; i++)
        launch(t, i == 1 ? 9 : 8);
    /* the second launch of all was timed: the first of these */
    TELLS(t, "[{shapes: [[8], []], count: 2, us: [250.0]}, {shapes: [[9], []], count: 1}]");
}

TALLY(test_times_one_in_many_and_waits_for_none)
{
    unfinished = 600; /* CUDA_ERROR_NOT_READY */
    launch_often(t, 2 * TALLY_EVERY);
    assert_int_equal(records, 2); /* the first one's end is not read, so there is no second */
    TELLS(t, "[{shapes: [[8], []], count: 122}]");
    unfinished = 0;
    TELLS(t, "[{shapes: [[8], []], count: 0, us: [250.0]}]");
    launch_often(t, TALLY_EVERY);
    assert_int_equal(records, 4);
    TELLS(t, "[{shapes: [[8], []], count: 61, us: [250.0]}]");
}

TALLY(test_times_no_more_than_it_tells)
{
    launch_often(t, 20 * TALLY_EVERY);
    assert_int_equal(records, 2 * (TALLY_SAMPLES + 1)); /* a time is read when the next launch is timed */
    forget(t);
    launch_often(t, TALLY_EVERY);
    assert_int_equal(records, 2 * (TALLY_SAMPLES + 2));
}

/* In graphs there are no events. */
TALLY(test_counts_what_it_cannot_time)
{
    const unsigned every = 2 * TALLY_EVERY;

    capturing = 1;
    launch_often(t, every);
    assert_int_equal(records, 0);
    TELLS(t, "[{shapes: [[8], []], count: 122}]");
    capturing = 0;
    broken = 1;
    launch_often(t, every);
    TELLS(t, "[{shapes: [[8], []], count: 122}]");
    broken = 0;
    unfinished = 709; /* CUDA_ERROR_CONTEXT_IS_DESTROYED: a lost time is not waited for */
    launch_often(t, TALLY_EVERY);
    here_tally_read(t);
    assert_int_equal(made, 0);
    unfinished = 0;
    launch_often(t, TALLY_EVERY);
    TELLS(t, "[{shapes: [[8], []], count: 122, us: [250.0]}]");
}

TALLY(test_follows_the_context)
{
    launch_often(t, TALLY_EVERY);
    in_context = 2;
    launch_often(t, TALLY_EVERY);
    assert_int_equal(records, 4);
    assert_int_equal(made, 2); /* those of the context before are destroyed */
}

TALLY(test_more_shapes_than_there_is_room_for)
{
    struct bytes out = {.data = NULL};

    for (int64_t i = 1; i <= TALLY_ROWS + 1; i++)
        launch(t, i); /* the last one is not counted: the table is full */
    assert_true(here_tally_take(t, NULL, &out));
    assert_memory_equal(out.data, "\xdc\0\x40", 3); /* a list of 64 */
    bytes_free(&out);
    assert_false(launch(t, TALLY_ROWS + 2));
    TELLS(t, "[{shapes: [[66], []], count: 1}]");
}

TALLY(test_is_due_now_and_then)
{
    const uint64_t began = clock_ns();
    unsigned due = 0;

    /* A full table is due sooner than once a second, but not with each launch. */
    for (int64_t i = 1; clock_ns() - began < 200000000; i++)
        due += launch(t, i % (2 * TALLY_ROWS));
    assert_in_range(due, 1, 4);
}

TALLY(test_attributes_make_other_rows)
{
    struct here_shapes shapes = shapes_of_length(8);

    count(t, &shapes, &(struct here_row){.generation = 0});
    shapes.flags = 1; /* gemm's trans_a */
    count(t, &shapes, &(struct here_row){.generation = 0});
    assert_tells(t, op_find("gemm", 4),
                 "[{shapes: [[8], []], count: 1}, {shapes: [[8], []], count: 1, attrs: {trans_a: true}}]");
}

/* A row is found once, and not after it is gone; a launch that is refused does not count. */
TALLY(test_rows)
{
    const struct here_shapes shapes = shapes_of_length(TALLY_ROWS);
    struct here_row row = {.generation = 0}, before;

    count(t, &shapes, &row);
    before = row;
    count(t, &shapes, &row);
    assert_memory_equal(&row, &before, sizeof(row));
    for (int64_t i = 1; i < TALLY_ROWS; i++)
        launch(t, i);
    forget(t);    /* the table was full: it begins anew */
    launch(t, 8); /* has the place of the row that is gone */
    here_tally_uncount(t, before);
    here_tally_time(t, before, 250);
    count(t, &shapes, &row);
    count(t, &shapes, &row);
    here_tally_uncount(t, row);
    here_tally_time(t, row, 250);
    TELLS(t, "[{shapes: [[8], []], count: 1}, {shapes: [[64], []], count: 1, us: [250.0]}]");
    here_tally_uncount(t, row); /* was told of already */
    TELLS(t, "");
}

static int tell(void *tally)
{
    struct bytes out = {.data = NULL};

    return here_tally_take(tally, NULL, &out);
}

TALLY(test_a_child_tells_nothing_of_its_parent)
{
    launch(t, 8);
    in_child(tell, t);
    TELLS(t, "[{shapes: [[8], []], count: 1}]");
}

/* ---- the last calls of a kernel; that every other call is checked is for test_here_kernel_daemon.c ---- */

struct repeated {
    struct kops_argument arg;
    struct here_call call;
    struct here_last last; /* what is kept */
};

static int begin_repeated(void **state)
{
    static struct repeated s;

    s = (struct repeated){.call = {.args = &s.arg, .n_args = 1, .device = -1}};
    *state = &s;
    return 0;
}

static bool is_kept(struct repeated *s)
{
    return here_last_find(&s->last, &s->call) != NULL;
}

static void keep(struct repeated *s)
{
    const struct here_shapes shapes = {.n_operands = 1, .n_words = 2, .words = {1, 5}};
    struct plan_kernel plan;

    memset(&plan, 7, sizeof(plan));
    plan.param_bytes = 16;
    here_last_keep(&s->last, &s->call, &plan, &shapes);
}

#define REPEATED(name) TEST_OF(struct repeated *s, name, begin_repeated, NULL)

REPEATED(a_bool_is_told_apart_whatever_lies_beside_it)
{
    s->arg = kops_arg_bool(true);
    keep(s);
    memset(&s->arg.value, 0xee, sizeof(s->arg.value));
    s->arg.value.boolean = true;
    assert_true(is_kept(s));
    s->arg.value.boolean = false;
    assert_false(is_kept(s));
}

/* Calls that differ in a number: whether each is kept. */
static void assert_kept(struct repeated *s, int from, int to, bool kept)
{
    for (int i = from; i < to; i++) {
        s->arg = kops_arg_int(i);
        assert_int_equal(is_kept(s), kept);
    }
}

REPEATED(calls_by_turns_are_kept_until_there_are_more)
{
    for (int i = 0; i < LAST_CALLS; i++) {
        s->arg = kops_arg_int(i);
        keep(s);
    }
    for (int round = 0; round < 2; round++)
        assert_kept(s, 0, LAST_CALLS, true);
    assert_kept(s, LAST_CALLS, LAST_CALLS + 1, false);
    keep(s);
    assert_kept(s, 0, 1, false); /* the oldest made room */
    assert_kept(s, 1, LAST_CALLS + 1, true);
    here_last_drop(&s->last);
    assert_kept(s, 0, LAST_CALLS + 1, false);
}

REPEATED(the_longest_call_has_room_and_longer_ones_are_not_kept)
{
    static const int64_t ones[TENSOR_MAX_RANK + 1] = {1, 1, 1, 1, 1, 1, 1, 1, 1};
    const struct kops_launch_geometry geometry = {.grid = {.n = 3}, .block = {.n = 3}, .cluster = {.n = 3}};
    struct native_tensor tensors[KERNEL_MAX_TENSORS + 1];
    struct kops_argument args[KERNEL_MAX_PARAMS + 1];

    for (unsigned i = 0; i <= KERNEL_MAX_TENSORS; i++)
        tensors[i] = (struct native_tensor){.shape = ones, .strides = ones, .rank = TENSOR_MAX_RANK, .dtype = KOPS_F32};
    for (unsigned i = 0; i <= KERNEL_MAX_PARAMS; i++)
        args[i] = kops_arg_int(i);
    s->call = (struct here_call){.tensors = tensors,
                                 .n_tensors = KERNEL_MAX_TENSORS,
                                 .args = args,
                                 .n_args = KERNEL_MAX_PARAMS,
                                 .geometry = &geometry};
    keep(s);
    assert_true(is_kept(s));
    s->call.n_args++;
    assert_false(is_kept(s));
    keep(s);
    assert_false(is_kept(s));
    s->call.n_args--;
    s->call.n_tensors++;
    assert_false(is_kept(s));
    s->call.n_tensors--;
    tensors[3].rank++;
    assert_false(is_kept(s));
}
