/* What a test has opened, closed by its teardown, whether it passed or failed. */
#ifndef KOPS_TESTS_UNIT_OPENED_H
#define KOPS_TESTS_UNIT_OPENED_H

#include "tests/support/unit.h"

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

#define OPENING_TEST(test) TEST_WITH(test, NULL, close_opened)

#endif
