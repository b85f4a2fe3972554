/* A compiler that does nothing by itself: the test sees what was asked for and says what comes of it. Defines all of
 * compiler.h, so a program that has it needs no library and no helper process. */
#ifndef TESTS_UNIT_COMPILE_FAKE_COMPILER_H
#define TESTS_UNIT_COMPILE_FAKE_COMPILER_H

#include "compile/compiler.h"

struct fake_compile {
    char name[64], source[64], options[256], entries[256]; /* options and entries with blanks between */
};

/* Forgets what was counted; the next compiler has that identity. */
void fake_reset(const char *identity);

/* Until the reset no compile begins. */
void fake_short_of_memory(void);

/* Until the reset no compile can be paused. */
void fake_may_not_pause(void);

unsigned fake_begun(void);                     /* compiles since the reset, and those that went on */
unsigned fake_waiting(void);                   /* that are neither finished, cancelled nor paused */
unsigned fake_paused(const char **ret_source); /* that are paused; the source of the oldest */
unsigned fake_cancelled(void);
const struct fake_compile *fake_last(void); /* the last one begun */

/* Ends the oldest one that waits, or one that is paused: with `compiled` (takes the reference), or with a failure of
 * that reason. */
void fake_succeed(struct compiled *compiled);
void fake_succeed_paused(struct compiled *compiled);
void fake_fail(const char *reason, const char *log);

#endif
