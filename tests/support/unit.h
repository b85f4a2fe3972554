/* Tests in C that are not listed anywhere else: each is run where it stands, in the order in which they stand, with
 * cmocka.
 *
 *     TEST(name) { … }
 *     TEST_WITH(name, set_up, tear_down) { … }    *state is what set_up(state) left there; either may be NULL
 *     TEST_OF(struct x *x, name, set_up, tear_down) { … }    x is what set_up(state) left in *state
 *     ALL_TESTS_WITH(set_up, tear_down)           once around all tests of the file
 *
 *     FIRST(function)                             with main()'s arguments; a status of 0 or more ends the program
 *     OPENING_TEST(name) { … }                    what it has opened() is closed at its end
 *
 * unit.c, which kops_unit_test() links, has main(). A program of several files runs the one that its argument names. */
#ifndef KOPS_TESTS_UNIT_H
#define KOPS_TESTS_UNIT_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

void unit_add(const char *file, unsigned line, const struct CMUnitTest *test);
void unit_first(int (*function)(int argc, char **argv));
void unit_around_all(const char *file, CMFixtureFunction set_up, CMFixtureFunction tear_down);

#define TEST_WITH(name, set_up, tear_down)                                                                             \
    static void name(void **state);                                                                                    \
    __attribute__((constructor)) static void add_##name(void)                                                          \
    {                                                                                                                  \
        unit_add(__FILE__, __LINE__, &(struct CMUnitTest){#name, name, set_up, tear_down, NULL});                      \
    }                                                                                                                  \
    static void name(__attribute__((unused)) void **state)

#define TEST_OF(parameter, name, set_up, tear_down)                                                                    \
    static void name(parameter);                                                                                       \
    static void name##_of(void **state)                                                                                \
    {                                                                                                                  \
        name(*state);                                                                                                  \
    }                                                                                                                  \
    __attribute__((constructor)) static void add_##name(void)                                                          \
    {                                                                                                                  \
        unit_add(__FILE__, __LINE__, &(struct CMUnitTest){#name, name##_of, set_up, tear_down, NULL});                 \
    }                                                                                                                  \
    static void name(__attribute__((unused)) parameter)

#define TEST(name) TEST_WITH(name, NULL, NULL)

#define OPENING_TEST(name) TEST_WITH(name, NULL, close_opened)

/* Pairs of texts, each equal: what there is, what is wanted. */
#define assert_texts(...)                                                                                              \
    do {                                                                                                               \
        const char *const pairs[] = {__VA_ARGS__};                                                                     \
                                                                                                                       \
        for (size_t pair = 0; pair < sizeof(pairs) / sizeof(*pairs); pair += 2)                                        \
            assert_string_equal(pairs[pair], pairs[pair + 1]);                                                         \
    } while (0)

#define ALL_TESTS_WITH(set_up, tear_down)                                                                              \
    __attribute__((constructor)) static void add_around_all(void)                                                      \
    {                                                                                                                  \
        unit_around_all(__FILE__, set_up, tear_down);                                                                  \
    }

#define FIRST(function)                                                                                                \
    __attribute__((constructor)) static void add_first(void)                                                           \
    {                                                                                                                  \
        unit_first(function);                                                                                          \
    }

/* ---- what a test has opened, closed at its end, whether it passed or failed ---- */

/* `close` is called with `object`, which is returned, at the end of the test: the last one that was opened first. */
void *opened(void *object, void (*close)(void *object));
/* Closes it now; the test itself has closed it, or will. */
void close_now(void *object);
void closed_by_test(void *object);
/* How many are open, and closes those that were opened since: for a case of many in one test. */
unsigned opened_so_far(void);
void close_since(unsigned so_far);
/* A test's teardown: closes all but what keep_opened() has found open, in a group's setup. */
int close_opened(void **state);
void keep_opened(void);
/* Of the group as well. */
void close_kept(void);

/* ---- calls of the daemon, which tell of a failure by a `struct error`: here it is named `e` ---- */

/* MUST(f(x, &e)): the call returns 0. */
#define MUST(call)                                                                                                     \
    do {                                                                                                               \
        struct error e = {0};                                                                                          \
                                                                                                                       \
        if ((call) != 0)                                                                                               \
            fail_msg("%s: %s", #call, e.message);                                                                      \
    } while (0)

/* It returns -1, with that code and a message that has these words. */
#define MUST_FAIL(call, expected, words)                                                                               \
    do {                                                                                                               \
        struct error e = {0};                                                                                          \
                                                                                                                       \
        if ((call) != -1 || e.code != (expected) || !strstr(e.message, words))                                         \
            fail_msg("%s: code %d: %s", #call, (int)e.code, e.message);                                                \
    } while (0)

#endif
