/* The pages that a compile writes, copied in a fork before a source comes: else each costs a fault, which takes a small
 * compile half as long again. Others are left as they are: copying them takes time, too. So does mapping the compiler's
 * code, more than its faults, each of which maps what lies around it.
 *
 * Thread: the process's only one. */
#ifndef KOPS_COMPILE_HELPER_PAGES_H
#define KOPS_COMPILE_HELPER_PAGES_H

#include <stdbool.h>

/* Notes which memory this process can write, and what is in it. `maps`: a descriptor of /proc/self/maps. False: nothing
 * is watched. */
bool pages_watch(int maps);

/* After a compile: notes which pages it has written, of those that are still there. */
void pages_learn(int maps);

/* Gives the memory that nothing is in back to the kernel: in a fork a new page costs less than the copy of an old one.
 */
void pages_release(void);

/* In a fork of it: copies the pages that a compile writes. False where the kernel cannot. */
bool pages_populate(void);

#endif
