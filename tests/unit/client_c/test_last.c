/* The last calls of a kernel: only one that is equal to one of them in every respect is launched without being checked.
 */
#include "here/last.h"
#include "test.h"

static const int64_t shape[] = {4, 8}, other_shape[] = {8, 4}, strides[] = {8, 1}, other_strides[] = {16, 1};

/* A call with everything that a call may have. */
struct scene {
    struct here_tensor tensors[2];
    struct kops_argument args[6];
    struct kops_launch_geometry geometry;
    struct here_call call;
};

static void prepare(struct scene *s)
{
    memset(s, 0, sizeof(*s));
    s->tensors[0] = (struct here_tensor){.pointer = 4096, .shape = shape, .rank = 2, .dtype = KOPS_F32, .bytes = 128};
    s->tensors[1] = (struct here_tensor){
        .pointer = 8192, .shape = shape, .strides = strides, .rank = 2, .dtype = KOPS_F32, .bytes = 0};
    s->args[0] = kops_arg_tensor(NULL);
    s->args[1] = kops_arg_null();
    s->args[2] = kops_arg_tensor(NULL);
    s->args[3] = kops_arg_int(-1);
    s->args[4] = kops_arg_float(0.5);
    s->args[5] = kops_arg_bool(true);
    s->geometry.grid = (struct kops_dims){2, {3, 4, 0}};
    s->geometry.block = (struct kops_dims){1, {32, 0, 0}};
    s->geometry.has_shared = true;
    s->geometry.shared = 64;
    s->call = (struct here_call){
        .tensors = s->tensors, .n_tensors = 2, .args = s->args, .n_args = 6, .geometry = &s->geometry, .device = -1};
}

/* Whether the scene's call is the one that is kept. */
static bool is_kept(struct here_last *last, const struct scene *s)
{
    return here_last_find(last, &s->call) != NULL;
}

static void keep(struct here_last *last, const struct scene *s)
{
    const struct here_shapes shapes = {.n_operands = 1, .n_words = 2, .words = {1, 5}};
    struct plan_kernel plan;

    memset(&plan, 7, sizeof(plan));
    plan.param_bytes = 16;
    for (unsigned i = 0; i < LAST_CALLS; i++)
        last->calls[i].row = (struct here_row){.generation = 3, .index = 4};
    here_last_keep(last, &s->call, &plan, &shapes);
}

static void the_same_call_has_its_plan(void **state)
{
    struct here_last last = {.found = 0};
    const struct here_last_call *found;
    struct scene s, again;

    (void)state;
    prepare(&s);
    prepare(&again);
    assert_false(is_kept(&last, &s));
    keep(&last, &s);
    found = here_last_find(&last, &again.call);
    assert_non_null(found);
    assert_int_equal(found->plan.param_bytes, 16);
    assert_int_equal(found->plan.params[15], 7);
    assert_int_equal(found->shapes.words[1], 5);
    assert_int_equal(found->row.generation, 0); /* the row of other shapes is not theirs */
    again.call.stream = (cuda_queue)&s;         /* depends on no check */
    assert_true(is_kept(&last, &again));
    here_last_drop(&last);
    assert_false(is_kept(&last, &s));
}

static void every_other_call_is_checked(void **state)
{
    struct here_last last = {.found = 0};
    struct scene s;

    (void)state;
    prepare(&s);
    keep(&last, &s);
    assert_true(is_kept(&last, &s));
#define OTHER(change)                                                                                                  \
    do {                                                                                                               \
        prepare(&s);                                                                                                   \
        change;                                                                                                        \
        if (is_kept(&last, &s))                                                                                        \
            fail_msg("taken for the same: %s", #change);                                                               \
    } while (0)
    OTHER(s.tensors[0].pointer += 4);
    OTHER(s.tensors[0].bytes = 120);
    OTHER(s.tensors[0].bytes = 0);
    OTHER(s.tensors[0].dtype = KOPS_F64);
    OTHER(s.tensors[0].rank = 1);
    OTHER(s.tensors[0].shape = other_shape);
    OTHER(s.tensors[0].strides = strides);
    OTHER(s.tensors[1].strides = other_strides);
    OTHER(s.tensors[1].strides = NULL);
    OTHER(s.call.n_tensors = 1);
    OTHER(s.call.n_args = 5);
    OTHER(s.call.device = 0);
    OTHER(s.call.geometry = NULL);
    OTHER(s.args[1] = kops_arg_tensor(NULL));
    OTHER(s.args[0] = kops_arg_null());
    OTHER(s.args[3] = kops_arg_float(-1));
    OTHER(s.args[3] = kops_arg_int(-2));
    OTHER(s.args[3] = kops_arg_int(UINT32_MAX));
    OTHER(s.args[3] = kops_arg_uint(UINT64_MAX));
    OTHER(s.args[4] = kops_arg_float(-0.5));
    OTHER(s.args[5] = kops_arg_bool(false));
    OTHER(s.geometry.grid.size[1] = 5);
    OTHER(s.geometry.grid.n = 3);
    OTHER(s.geometry.block.n = 0);
    OTHER(s.geometry.cluster = ((struct kops_dims){1, {2, 0, 0}}));
    OTHER(s.geometry.shared = 65);
    OTHER(s.geometry.has_shared = false);
#undef OTHER
}

/* The words of the call without strides are the first ones of the other. */
static void strides_at_the_end_count(void **state)
{
    struct here_last last = {.found = 0};
    struct scene s;

    (void)state;
    prepare(&s);
    s.call.geometry = NULL;
    keep(&last, &s);
    assert_true(is_kept(&last, &s));
    s.tensors[1].strides = NULL;
    assert_false(is_kept(&last, &s));
}

static void a_bool_is_told_apart_whatever_lies_beside_it(void **state)
{
    struct here_last last = {.found = 0};
    struct scene s;

    (void)state;
    prepare(&s);
    keep(&last, &s);
    memset(&s.args[5].value, 0xee, sizeof(s.args[5].value));
    s.args[5].value.boolean = true;
    assert_true(is_kept(&last, &s));
    s.args[5].value.boolean = false;
    assert_false(is_kept(&last, &s));
}

static void calls_by_turns_are_kept_until_there_are_more(void **state)
{
    struct here_last last = {.found = 0};
    const struct here_last_call *found[LAST_CALLS];
    struct scene s;

    (void)state;
    prepare(&s);
    for (int i = 0; i < LAST_CALLS; i++) {
        s.args[3] = kops_arg_int(i);
        keep(&last, &s);
    }
    for (int round = 0; round < 2; round++)
        for (int i = 0; i < LAST_CALLS; i++) {
            s.args[3] = kops_arg_int(i);
            found[i] = here_last_find(&last, &s.call);
            assert_non_null(found[i]);
            assert_true(i == 0 || found[i] != found[i - 1]);
        }
    s.args[3] = kops_arg_int(LAST_CALLS);
    assert_false(is_kept(&last, &s));
    keep(&last, &s);
    assert_true(is_kept(&last, &s));
    s.args[3] = kops_arg_int(0); /* the oldest made room */
    assert_false(is_kept(&last, &s));
    for (int i = 1; i < LAST_CALLS; i++) {
        s.args[3] = kops_arg_int(i);
        assert_true(is_kept(&last, &s));
    }
    here_last_drop(&last);
    for (int i = 1; i <= LAST_CALLS; i++) {
        s.args[3] = kops_arg_int(i);
        assert_false(is_kept(&last, &s));
    }
}

static void the_longest_call_has_room_and_longer_ones_are_not_kept(void **state)
{
    static const int64_t ones[TENSOR_MAX_RANK + 1] = {1, 1, 1, 1, 1, 1, 1, 1, 1};
    struct here_tensor tensors[KERNEL_MAX_TENSORS + 1];
    struct kops_argument args[KERNEL_MAX_PARAMS + 1];
    struct here_last last = {.found = 0};
    struct scene s;

    (void)state;
    prepare(&s);
    for (unsigned i = 0; i <= KERNEL_MAX_TENSORS; i++)
        tensors[i] = (struct here_tensor){.shape = ones, .strides = ones, .rank = TENSOR_MAX_RANK, .dtype = KOPS_F32};
    for (unsigned i = 0; i <= KERNEL_MAX_PARAMS; i++)
        args[i] = kops_arg_int(i);
    s.geometry.grid.n = s.geometry.block.n = s.geometry.cluster.n = 3;
    s.call = (struct here_call){.tensors = tensors,
                                .n_tensors = KERNEL_MAX_TENSORS,
                                .args = args,
                                .n_args = KERNEL_MAX_PARAMS,
                                .geometry = &s.geometry};
    keep(&last, &s);
    assert_true(is_kept(&last, &s));
    s.call.n_args++;
    assert_false(is_kept(&last, &s));
    keep(&last, &s);
    assert_false(is_kept(&last, &s));
    s.call.n_args--;
    s.call.n_tensors++;
    assert_false(is_kept(&last, &s));
    s.call.n_tensors--;
    tensors[3].rank++;
    assert_false(is_kept(&last, &s));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_same_call_has_its_plan),
        cmocka_unit_test(every_other_call_is_checked),
        cmocka_unit_test(strides_at_the_end_count),
        cmocka_unit_test(a_bool_is_told_apart_whatever_lies_beside_it),
        cmocka_unit_test(calls_by_turns_are_kept_until_there_are_more),
        cmocka_unit_test(the_longest_call_has_room_and_longer_ones_are_not_kept),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
