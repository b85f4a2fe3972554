/* A compiler that does nothing by itself: the test sees what was asked for and says what comes of it. Defines all of
 * compiler.h, so a program that has it needs no library and no helper process. */
#ifndef TESTS_UNIT_COMPILE_FAKE_COMPILER_H
#define TESTS_UNIT_COMPILE_FAKE_COMPILER_H

#include "compile/compiler.h"

struct fake_compile {
    char name[64], source[64], options[256], entries[256]; /* options and entries with blanks between */
};

extern struct fake_compiler {
    const char *identity;
    unsigned begun; /* compiles, and those that went on */
    unsigned cancelled;
    struct fake_compile last;            /* begun */
    bool short_of_memory, may_not_pause; /* no compile begins, none can be paused */
} fake_compiler;

/* Forgets what was counted; the next compiler has that identity. */
void fake_reset(const char *identity);

unsigned fake_waiting(void);                   /* that are neither finished, cancelled nor paused */
unsigned fake_paused(const char **ret_source); /* that are paused; the source of the oldest */

/* Ends the oldest one that waits, or one that is paused: with `compiled` (takes the reference), or with a failure of
 * that reason. */
void fake_succeed(struct compiled *compiled, bool paused);
void fake_fail(const char *reason, const char *log);

#endif
