/* A shared cache that does nothing by itself: the test sees what it is asked for and says what comes of it. Defines all
 * of remote/remote.h. */
#ifndef TESTS_UNIT_COMPILE_FAKE_REMOTE_H
#define TESTS_UNIT_COMPILE_FAKE_REMOTE_H

#include "remote/remote.h"

void fake_remote_reset(void);
/* From now on it takes no questions and no modules: it rests. */
void fake_remote_rest(void);

unsigned fake_remote_servers(void);   /* that were made */
unsigned fake_remote_waiting(void);   /* gets that are neither answered nor cancelled */
unsigned fake_remote_late(void);      /* gets cancelled since the compiler was faster */
unsigned fake_remote_cancelled(void); /* gets cancelled for another reason */
unsigned fake_remote_good(void);      /* judgements */

/* Answers the oldest get: with these bytes in a sealed memfd, or with a miss or a failure. */
void fake_remote_answer(const void *bytes, size_t size);
void fake_remote_miss(void);

/* Puts that wait; the oldest one's bytes, for free(); answers it. */
unsigned fake_remote_puts(void);
void fake_remote_put_done(bool stored);

#endif
