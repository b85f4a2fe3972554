/* Who asks for code: one compile for all who ask at once, memory, disk, failures, those who go away. */
#include <sys/stat.h>

#include "support.h"

OPENING_TEST(from_the_compiler_then_memory_then_disk)
{
    const char *directory = folder_new();
    struct code_service *s = service_open(directory);
    struct code_counters c;

    assert_int_equal(fetch(s, "a", 1), CODE_COMPILED);
    assert_int_equal(fetch(s, "a", 1), CODE_MEMORY);
    c = code_service_counters(s);
    assert_true(c.compiles == 1 && c.memory_hits == 1 && c.disk_hits == 0);
    close_now(s); /* waits for the file */

    s = service_open(directory); /* the next boot */
    assert_int_equal(fetch(s, "a", 1), CODE_DISK);
    assert_int_equal(fetch(s, "a", 1), CODE_MEMORY);
    c = code_service_counters(s);
    assert_true(c.compiles == 0 && c.memory_hits == 1 && c.disk_hits == 1);
    close_now(s);

    fake_compiler.identity = "fake 2"; /* another compiler: nothing of the old one is used */
    s = service_open(directory);
    assert_int_equal(fetch(s, "a", 4), CODE_COMPILED);
    fake_compiler.identity = "fake 1";
}

OPENING_TEST(failures_are_told_and_forgotten)
{
    struct code_service *s = service_open(folder_new());
    struct asker a = {0}, b = {0};

    ask(&a, s, "a");
    ask(&b, s, "a");
    until_compiling(1);
    fake_fail("source", "k.cu(1): error: expected a declaration");
    until_answered(&a);
    until_answered(&b);
    assert_null(a.compiled);
    assert_int_equal(a.code, ERROR_INVALID_ARGUMENT);
    assert_string_equal(a.reason, "source");
    assert_string_equal(b.log, "k.cu(1): error: expected a declaration");
    assert_int_equal(code_service_counters(s).failures, 1);
    assert_int_equal(fetch(s, "a", 1), CODE_COMPILED); /* asked anew: it may have been the time or the memory */
}

static void count_answers(void *context, struct compiled *compiled, enum code_origin origin, const struct error *e,
                          const struct compile_failure *failure)
{
    assert_non_null(compiled);
    ++*(unsigned *)context;
    compiled_unref(compiled);
}

OPENING_TEST(without_memory_for_a_compile)
{
    struct compile_input in = input_of("a");
    struct code_service *s = service_open(folder_new());
    struct code_request *request;
    struct asker a = {0}, b = {0};
    unsigned answers = 0;

    fake_compiler.short_of_memory = true;
    ask(&a, s, "a");
    ask(&b, s, "a");
    until_answered(&a); /* after the disk was asked */
    assert_int_equal(a.code, ERROR_OUT_OF_MEMORY);
    assert_int_equal(b.code, ERROR_OUT_OF_MEMORY);
    close_now(s);
    s = service_open(NULL);
    fake_compiler.short_of_memory = true;
    MUST_FAIL(code_get(s, &in, count_answers, &answers, &request, &e), ERROR_OUT_OF_MEMORY, "");
    until_idle();
    assert_int_equal(answers, 0);
}

OPENING_TEST(those_who_go_away)
{
    for (unsigned disk = 0; disk < 2; disk++) {
        struct code_service *s = service_open(disk ? folder_new() : NULL);
        struct asker a = {0}, b = {0}, c = {0};

        ask(&a, s, "a");
        ask(&b, s, "a");
        until_compiling(1);
        code_request_cancel(a.request);
        assert_int_equal(fake_waiting(), 1); /* b waits on */
        fake_succeed(module_new(1, 1000), false);
        until_answered(&b);

        ask(&a, s, "b");
        ask(&c, s, "b");
        until_compiling(1);
        code_request_cancel(c.request);
        code_request_cancel(a.request);
        assert_int_equal(fake_waiting(), 0); /* nobody is left: the compile is stopped */
        assert_int_equal(fake_compiler.cancelled, 1);
        assert_int_equal(fetch(s, "b", 2), CODE_COMPILED);

        ask(&a, s, "c"); /* gone before the disk has answered */
        code_request_cancel(a.request);
        until_idle();
        assert_int_equal(fake_waiting(), 0);
        ask(&a, s, "c");
        if (disk) /* somebody comes just then */
            code_request_cancel(a.request);
        ask(&c, s, "c");
        until_compiling(1);
        fake_succeed(module_new(3, 1000), false);
        until_answered(&c);
        assert_int_equal(a.answers, !disk);
        close_now(s);
    }
}

static struct asker later;

static void cancels_the_next_and_asks_again(struct asker *a)
{
    struct asker *next = a->context;

    code_request_cancel(next->request);
    ask(&later, a->service, "a"); /* memory has it by now, or a new compile begins */
}

OPENING_TEST(answers_may_change_everything)
{
    for (unsigned works = 0; works < 2; works++) {
        struct code_service *s = service_open(NULL);
        struct asker a = {0}, b = {0}, c = {0};

        later = (struct asker){0};
        a.then = cancels_the_next_and_asks_again;
        a.context = &b;
        ask(&a, s, "a");
        ask(&b, s, "a");
        ask(&c, s, "a");
        if (works)
            fake_succeed(module_new(1, 1000), false);
        else
            fake_fail("time", "");
        assert_int_equal(a.answers, 1);
        assert_int_equal(b.answers, 0);
        assert_int_equal(c.answers, 1);
        assert_int_equal(later.answers, works);
        assert_int_equal(fake_waiting(), !works);
        if (!works)
            fake_succeed(module_new(1, 1000), false);
        assert_int_equal(later.answers, 1);
        assert_int_equal(c.answers, 1);
        close_now(s);
    }
}

static bool closed_inside;

static void note(void *context)
{
    closed_inside = true;
}

static void closes_the_service(struct asker *a)
{
    closed_by_test(a->service);
    code_service_close(a->service, note, NULL);
}

OPENING_TEST(closing_at_any_time)
{
    enum { DISK_IS_ASKED, IT_COMPILES, IN_THE_FIRST_ANSWER, AFTER_THE_ANSWERS, WHEN }; /* with a file to be written */

    for (unsigned when = 0; when < WHEN; when++) {
        struct code_service *s = service_open(folder_new());
        struct asker a = {0}, b = {0};

        ask(&a, s, "a");
        ask(&b, s, "a");
        if (when > DISK_IS_ASKED)
            until_compiling(1);
        if (when <= IT_COMPILES) {
            close_now(s);
            assert_int_equal(fake_compiler.begun, when);
            assert_int_equal(fake_compiler.cancelled, when);
            assert_int_equal(a.answers + b.answers, 0);
            continue;
        }
        closed_inside = false;
        if (when == IN_THE_FIRST_ANSWER)
            a.then = closes_the_service;
        fake_succeed(module_new(1, 1000), false);
        assert_int_equal(a.answers, 1);
        assert_int_equal(b.answers, when == AFTER_THE_ANSWERS);
        if (when == AFTER_THE_ANSWERS)
            closes_the_service(&b);
        uv_run(&loop, UV_RUN_DEFAULT);
        assert_true(closed_inside);
    }
}

/* What the compiler gets is the normal form, also when the disk was asked before and the caller's texts are gone. */
OPENING_TEST(what_the_compiler_gets)
{
    struct code_service *s = service_open(folder_new());
    char source[] = "source", option[] = "-DN=4", entry[] = "f<int>", file[] = "b.h", text[] = "1";
    const char *options[] = {option, "-use_fast_math"}, *same[] = {"--use_fast_math", "-D", "N=4"};
    const char *entries[] = {entry, "g"}, *same_entries[] = {"f<int>", "g"};
    const struct compile_file files[] = {{"a.h", "2", 1}, {file, text, 1}},
                              turned[] = {{"b.h", "1", 1}, {"a.h", "2", 1}};
    const struct compile_input in = {"n.cu", source, 6, files, 2, options, 2, entries, 2, "sm_90a"},
                               again = {"n.cu", "source", 6, turned, 2, same, 3, same_entries, 2, "sm_90a"};
    struct code_request *request;
    unsigned answers = 0;

    MUST(code_get(s, &in, count_answers, &answers, &request, &e));
    memset(source, 'x', 6);
    memset(option, 'x', 5);
    memset(entry, 'x', 6);
    memset(file, 'x', 3);
    memset(text, 'x', 1);
    until_compiling(1);
    assert_texts(fake_compiler.last.name, "n.cu", fake_compiler.last.source, "source a.h=2 b.h=1",
                 fake_compiler.last.options, "--use_fast_math --define-macro=N=4", fake_compiler.last.entries,
                 "f<int> g");
    fake_succeed(module_new(1, 10), false);
    assert_int_equal(answers, 1);
    MUST(code_get(s, &again, count_answers, &answers, &request, &e)); /* other words for the same: no compile */
    assert_int_equal(answers, 2);
    assert_null(request);
}

OPENING_TEST(works_without_a_usable_directory)
{
    const char *directory = folder_new();
    struct code_service *s;

    assert_int_equal(chmod(directory, 0777), 0);
    log_begin();
    s = service_open(directory);
    assert_int_equal(log_end("event=cache_directory_unusable"), 1);
    assert_int_equal(fetch(s, "a", 1), CODE_COMPILED);
    assert_int_equal(fetch(s, "a", 1), CODE_MEMORY);
}

OPENING_TEST(what_memory_has_no_room_for)
{
    const char *directory = folder_new();
    struct code_service *s = service_open_with(directory, 1 << 20, 0);

    assert_int_equal(fetch(s, "a", 1), CODE_COMPILED);
    until_idle();
    assert_int_equal(fetch(s, "a", 1), CODE_DISK);
    assert_int_equal(fetch(s, "a", 1), CODE_DISK);
    close_now(s);
    s = service_open_with(directory, 0, 0); /* nothing is kept at all */
    assert_int_equal(fetch(s, "a", 1), CODE_COMPILED);
    assert_int_equal(fetch(s, "a", 1), CODE_COMPILED);
}

ALL_TESTS_WITH(loop_open, loop_close)
