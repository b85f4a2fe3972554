/* Processes of one program that work at the same time, with memory in common. */
#ifndef KOPS_BENCH_TEAM_H
#define KOPS_BENCH_TEAM_H

#include <stddef.h>

struct team;

/* `shared_bytes` of zeroed memory that every member sees. NULL, with a message, when there is none. */
struct team *team_new(size_t members, size_t shared_bytes);
struct team *team_free(struct team *team);
void *team_shared(struct team *team);

/* Runs `work` in `members` new processes and waits for all. One that fails (does not return 0) ends the others.
 * Returns 0, or the first failed one's exit status. */
int team_run(struct team *team, int (*work)(struct team *team, size_t member, void *context), void *context);

/* Called by a member: returns once all members have called it. */
void team_meet(struct team *team);

#endif
