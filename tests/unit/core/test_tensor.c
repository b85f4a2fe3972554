/* Bounds, overflow and overlap of views; overlap is checked against counting elements. */
#include <time.h>

#include "core/tensor.h"
#include "tests/support/unit.h"

static struct tensor make(unsigned rank, const int64_t *shape, const int64_t *strides, uint64_t offset)
{
    struct tensor t = {.dtype = DTYPE_F32, .rank = rank, .offset = offset};

    memcpy(t.shape, shape, rank * sizeof(int64_t));
    if (strides)
        memcpy(t.strides, strides, rank * sizeof(int64_t));
    else
        tensor_set_contiguous(&t);
    return t;
}
#define SHAPE(...)                                                                                                     \
    (sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t)), (const int64_t[])                                            \
    {                                                                                                                  \
        __VA_ARGS__                                                                                                    \
    }
#define STRIDES(...) ((const int64_t[]){__VA_ARGS__})

TEST(measures_extent)
{
    const struct {
        struct tensor t;
        uint64_t count, extent;
    } cases[] = {
        {make(SHAPE(3, 4), NULL, 8), 12, 48},  {make(SHAPE(3, 4), STRIDES(100, 2), 0), 12, (200 + 6 + 1) * 4},
        {make(SHAPE(5), STRIDES(0), 0), 5, 4}, {make(SHAPE(5, 0, INT64_MAX), NULL, 1 << 20), 0, 0},
        {{.dtype = DTYPE_F64}, 1, 8},
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct tensor t = cases[i].t;
        const uint64_t end = cases[i].count ? t.offset + cases[i].extent : 0;

        MUST(tensor_measure(&t, "t", &e));
        assert_int_equal(t.count, cases[i].count);
        assert_int_equal(t.extent, cases[i].extent);
        MUST(tensor_check_bounds(&t, end, "t", &e));
        if (end)
            MUST_FAIL(tensor_check_bounds(&t, end - 1, "t", &e), ERROR_OUT_OF_BOUNDS, "");
    }
}

TEST(refuses_overflow)
{
    const struct {
        struct tensor t;
        enum error_code code;
    } cases[] = {
        {make(SHAPE(INT64_MAX), NULL, 0), ERROR_OUT_OF_RANGE},
        {make(SHAPE(1LL << 62, 2), NULL, 0), ERROR_OUT_OF_RANGE},
        {make(SHAPE(1LL << 32, 1LL << 32), NULL, 0), ERROR_OUT_OF_RANGE},
        {make(SHAPE(2, 2), STRIDES(INT64_MAX, INT64_MAX), 0), ERROR_OUT_OF_RANGE},
        {make(SHAPE(2), STRIDES(INT64_MAX), 0), ERROR_OUT_OF_RANGE},
        {make(SHAPE(1LL << 61), STRIDES(1), 0), ERROR_OUT_OF_RANGE},
        {make(SHAPE(10), NULL, UINT64_MAX - 3), ERROR_OUT_OF_RANGE},
        {make(SHAPE(10), NULL, 6), ERROR_MISALIGNED},
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct tensor t = cases[i].t;

        MUST_FAIL(tensor_measure(&t, "t", &e), cases[i].code, "");
    }
}

/* Marks the elements of a small view; returns true when one was marked already. */
static bool mark(const struct tensor *t, unsigned char *marks, unsigned char bit)
{
    int64_t index[TENSOR_MAX_RANK] = {0};
    bool met = false;

    for (uint64_t n = 0; n < t->count; n++) {
        int64_t at = (int64_t)t->offset / 4;

        for (unsigned i = 0; i < t->rank; i++)
            at += index[i] * t->strides[i];
        met = met || marks[at];
        marks[at] |= bit;
        for (unsigned i = t->rank; i-- > 0;) {
            if (++index[i] < t->shape[i])
                break;
            index[i] = 0;
        }
    }
    return met;
}

static struct tensor random_view(void)
{
    struct tensor t = {.dtype = DTYPE_F32, .rank = (unsigned)(rand() % 4), .offset = 4 * (uint64_t)(rand() % 12)};

    for (unsigned i = 0; i < t.rank; i++) {
        t.shape[i] = rand() % 5;
        t.strides[i] = rand() % 3 ? 1 << rand() % 6 : rand() % 12;
    }
    MUST(tensor_measure(&t, "t", &e));
    return t;
}

TEST(overlap_agrees_with_counting)
{
    unsigned exact = 0, shared = 0;

    srand((unsigned)time(NULL));
    for (int n = 0; n < 200000; n++) {
        struct tensor a = random_view(), b = random_view();
        unsigned char marks[1024] = {0};
        bool met;

        met = mark(&a, marks, 1);
        /* Never calls an overlapping layout disjoint; may call an interleaved one overlapping. */
        if (met)
            assert_true(tensor_overlaps_itself(&a));
        met = mark(&b, (memset(marks, 0, sizeof(marks)), mark(&a, marks, 1), marks), 2);
        for (size_t i = 0, both = 0; i < sizeof(marks) && !both; i++)
            both = met = marks[i] == 3;
        if (met) {
            shared++;
            assert_true(tensor_share_elements(&a, &b));
        } else {
            exact += !tensor_share_elements(&a, &b);
        }
    }
    assert_true(shared > 1000);
    assert_true(exact > 1000);
}

TEST(interleaved_views_are_told_apart)
{
    struct tensor left = make(SHAPE(10, 5), STRIDES(10, 1), 0), right = make(SHAPE(10, 5), STRIDES(10, 1), 20);
    struct tensor even = make(SHAPE(50), STRIDES(2), 0), odd = make(SHAPE(50), STRIDES(2), 4);
    struct tensor column = make(SHAPE(10, 1), STRIDES(10, 1), 16);
    struct tensor *const all[] = {&left, &right, &even, &odd, &column};

    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
        MUST(tensor_measure(all[i], "", &e));
    assert_false(tensor_share_elements(&left, &right));
    assert_false(tensor_share_elements(&even, &odd));
    assert_true(tensor_share_elements(&left, &column));
    assert_false(tensor_share_elements(&right, &column));
    assert_false(tensor_overlaps_itself(&left));
    assert_true(tensor_same_view(&left, &left));
    assert_false(tensor_same_view(&left, &right));
}

/* Many pairs may be looked at, and somebody may make each as hard as can be. */
TEST(a_search_ends_with_its_budget)
{
    struct tensor even = make(SHAPE(9, 9, 9), STRIDES(202, 22, 2), 0),
                  odd = make(SHAPE(9, 9, 9), STRIDES(206, 26, 6), 4);
    unsigned budget = 20000, pairs = 0;
    struct error e;

    tensor_measure(&even, "", &e);
    tensor_measure(&odd, "", &e);
    assert_false(tensor_share_elements(&even, &odd));
    while (!tensor_share_elements_within(&even, &odd, &budget))
        assert_true(++pairs < 20000);
    assert_int_equal(budget, 0);
    assert_true(pairs > 0);
    assert_true(tensor_share_elements_within(&even, &odd, &budget));
    assert_false(tensor_share_elements(&even, &odd));
}
