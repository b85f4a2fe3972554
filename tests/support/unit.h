/* Tests in C that are not listed anywhere else: each is run where it stands, in the order in which they stand, with
 * cmocka.
 *
 *     TEST(name) { … }
 *     TEST_WITH(name, set_up, tear_down) { … }    *state is what set_up(state) left there; either may be NULL
 *     ALL_TESTS_WITH(set_up, tear_down)           once around all tests of the program
 *
 * unit.c, which kops_unit_test() links, has main(). The tests of a program are in one file. */
#ifndef KOPS_TESTS_UNIT_H
#define KOPS_TESTS_UNIT_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

void unit_add(const char *name, CMUnitTestFunction test, CMFixtureFunction set_up, CMFixtureFunction tear_down,
              unsigned line);
void unit_around_all(CMFixtureFunction set_up, CMFixtureFunction tear_down);

#define TEST_WITH(name, set_up, tear_down)                                                                             \
    static void name(void **state);                                                                                    \
    __attribute__((constructor)) static void add_##name(void)                                                          \
    {                                                                                                                  \
        unit_add(#name, name, set_up, tear_down, __LINE__);                                                            \
    }                                                                                                                  \
    static void name(__attribute__((unused)) void **state)

#define TEST(name) TEST_WITH(name, NULL, NULL)

#define ALL_TESTS_WITH(set_up, tear_down)                                                                              \
    __attribute__((constructor)) static void add_around_all(void)                                                      \
    {                                                                                                                  \
        unit_around_all(set_up, tear_down);                                                                            \
    }

#endif
