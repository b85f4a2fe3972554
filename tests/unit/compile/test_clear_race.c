/* A clear, and a file that waits to be written, on a pool that is quicker than the loop. */
#include "compile/service_internal.h"
#include "service_support.h"

static struct submitted {
    struct work *work;
    void (*run)(struct work *), (*done)(struct work *);
} held; /* the first one while `hold` is set */
static bool hold;

void __real_work_submit(uv_loop_t *l, struct work *work, void (*run)(struct work *), void (*done)(struct work *));
void __wrap_work_submit(uv_loop_t *l, struct work *work, void (*run)(struct work *), void (*done)(struct work *));

static void has_run(struct work *work)
{
}

/* The next one runs at once, and the one that was held behind it: as on the pool's threads while the loop's is held up.
 */
void __wrap_work_submit(uv_loop_t *l, struct work *work, void (*run)(struct work *), void (*done)(struct work *))
{
    struct submitted first = held;

    if (hold && !first.work) {
        held = (struct submitted){work, run, done};
        return;
    }
    if (first.work) {
        held = (struct submitted){0};
        hold = false;
        run(work);
        first.run(first.work);
        __real_work_submit(l, first.work, has_run, first.done);
        run = has_run;
    }
    __real_work_submit(l, work, run, done);
}

static void cleared(void *context, struct code_result *result, const struct error *e)
{
    assert_non_null(result);
    *(bool *)context = true;
}

OPENING_TEST(what_is_cleared_is_not_written)
{
    const char *directory = folder_new();
    struct code_service *s = service_open(directory);
    struct compiled *compiled = module_new(1, 100);
    struct code_task *task;
    bool is_done = false;

    hold = true;
    service_store(s, compiled);
    MUST(code_cache_clear(s, NULL, cleared, &is_done, &task, &e));
    until_idle();
    assert_true(is_done);
    assert_null(held.work);
    assert_int_equal(directory_count(directory), 0);
    compiled_unref(compiled);
}

ALL_TESTS_WITH(loop_open, loop_close)
