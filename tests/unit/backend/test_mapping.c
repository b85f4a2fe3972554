/* Lifetimes in the registry: what is open when, and which memory a reference means. */
#include "mapping_support.h"

MAPPING_TEST(same_reference_is_opened_once)
{
    struct mapping *a, *b;

    MUST(get('a', 5, ann, &a, &e));
    MUST(get('a', 5, bob, &b, &e));
    assert_ptr_equal(a, b);
    mapping_use(a);
    mapping_use(b);
    settle();
    assert_int_equal(a->state, MAPPING_OPEN);
    mapping_unref(a);
    mapping_unref(b);
    mapping_unuse(a);
    settle();
    assert_int_equal(atomic_load(&n_open), 1); /* b's use keeps it */
    mapping_unuse(b);
    settle();
    assert_int_equal(atomic_load(&n_opened), 1);
}

/* The handle's bytes come back with another id: the old mapping ends first, and only then the new one opens. */
MAPPING_TEST(newer_id_replaces_the_older)
{
    struct mapping *old, *new, *again;
    struct mapping_waiter w = {.ready = on_ready};
    int ready = 0;

    MUST(get('a', 5, ann, &old, &e));
    mapping_use(old);
    settle();
    MUST(get('a', 6, ann, &new, &e));
    assert_true(old->stale);
    mapping_use(new);
    w.context = &ready;
    mapping_wait(new, &w);
    for (int i = 0; i < 10; i++)
        uv_run(&loop, UV_RUN_NOWAIT);
    assert_int_equal(ready, 0); /* a job still uses the old memory */
    MUST_FAIL(get('a', 5, ann, &again, &e), ERROR_STALE_BUFFER, "");
    mapping_unuse(old);
    while (!ready)
        uv_run(&loop, UV_RUN_ONCE);
    assert_int_equal(ready, 1);
    mapping_unref(old);
    mapping_unuse(new);
    mapping_unref(new);
}

MAPPING_TEST(older_id_is_refused)
{
    struct mapping *m, *other;

    MUST(get('a', 6, ann, &m, &e));
    MUST_FAIL(get('a', 5, ann, &other, &e), ERROR_STALE_BUFFER, "");
    MUST_FAIL(get('a', 7, bob, &other, &e), ERROR_PERMISSION_DENIED, "");
    assert_false(m->stale);
    MUST(get('a', 5, ann_too, &other, &e)); /* another process's ids say nothing about ours */
    assert_true(m->stale);
    mapping_unref(m);
    mapping_unref(other);
}

MAPPING_TEST(trim_closes_and_use_reopens)
{
    struct mapping *m;

    MUST(get('a', 5, ann, &m, &e));
    mapping_use(m);
    settle();
    assert_int_equal(mapping_trim(m), 0); /* in use */
    mapping_unuse(m);
    assert_int_equal(mapping_trim(m), 1000);
    settle();
    assert_int_equal(atomic_load(&n_open), 0);
    mapping_use(m);
    settle();
    assert_int_equal(m->state, MAPPING_OPEN);
    assert_int_equal(atomic_load(&n_opened), 2);
    mapping_unuse(m);
    mapping_unref(m);
}

static void count_done(struct mapping_flush *flush)
{
    assert_int_equal(atomic_load(&n_open), 0);
    flush->before = UINT64_MAX;
}

/* Whoever waits for closes is told when the memory is unpinned, not before. */
MAPPING_TEST(flush_waits_for_closes)
{
    struct mapping_flush flush = {.done = count_done};
    struct mapping *m;

    mapping_flush(&registry, &flush);
    assert_true(flush.before == UINT64_MAX); /* nothing to wait for */
    MUST(get('a', 5, ann, &m, &e));
    mapping_use(m);
    settle();
    mapping_unuse(m);
    mapping_unref(m);
    mapping_flush(&registry, &flush);
    assert_true(flush.before != UINT64_MAX);
    while (flush.before != UINT64_MAX)
        uv_run(&loop, UV_RUN_ONCE);
}

MAPPING_TEST(failed_open_tells_and_may_be_tried_again)
{
    struct mapping_waiter w = {.ready = on_ready};
    struct mapping *m;
    int ready = 0;

    atomic_store(&refuse_open, true);
    MUST(get('a', 5, ann, &m, &e));
    mapping_use(m);
    w.context = &ready;
    mapping_wait(m, &w);
    while (!ready)
        uv_run(&loop, UV_RUN_ONCE);
    assert_int_equal(ready, -1);
    assert_int_equal(m->error.code, ERROR_INVALID_HANDLE);
    mapping_unuse(m);
    atomic_store(&refuse_open, false);
    mapping_use(m);
    settle();
    assert_int_equal(m->state, MAPPING_OPEN);
    mapping_unuse(m);
    mapping_unref(m);
}

/* Who comes with a newer id while the older is being opened is told as well when that fails. */
MAPPING_TEST(failed_open_lets_the_next_one_try)
{
    struct mapping_waiter w[3];
    struct mapping *m[3];
    int ready[3] = {0};

    atomic_store(&refuse_open, true);
    for (unsigned i = 0; i < 3; i++) {
        MUST(get('a', 5 + i, ann, &m[i], &e));
        mapping_use(m[i]);
        w[i] = (struct mapping_waiter){.ready = on_ready, .context = &ready[i]};
        mapping_wait(m[i], &w[i]);
    }
    settle();
    for (unsigned i = 0; i < 3; i++) {
        assert_int_equal(ready[i], -1);
        assert_int_equal(m[i]->error.code, i == 1 ? ERROR_STALE_BUFFER : ERROR_INVALID_HANDLE);
        mapping_unuse(m[i]);
        mapping_unref(m[i]);
    }
}

MAPPING_TEST(without_id_it_is_neither_shared_nor_kept)
{
    struct mapping *a, *b;

    MUST(get('u', 0, ann, &a, &e));
    MUST(get('u', 0, ann, &b, &e));
    assert_ptr_not_equal(a, b);
    mapping_use(a);
    settle();
    mapping_unuse(a);
    settle();
    assert_int_equal(atomic_load(&n_open), 0);
    mapping_unref(a);
    mapping_unref(b);
}

/* References dropped while the open is under way. */
MAPPING_TEST(dropping_while_opening_closes)
{
    struct mapping *m;

    MUST(get('a', 5, ann, &m, &e));
    mapping_use(m);
    mapping_unuse(m);
    mapping_unref(m);
    settle();
    assert_int_equal(atomic_load(&n_opened), 1);
}
