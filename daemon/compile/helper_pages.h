/* The pages that a compile touches, made present in a fork before it is needed: else each costs a fault, which takes a
 * small compile half as long again.
 *
 * Thread: the process's only one. */
#ifndef KOPS_COMPILE_HELPER_PAGES_H
#define KOPS_COMPILE_HELPER_PAGES_H

#include <stdbool.h>

/* Notes which memory this process has. `maps`: a descriptor of /proc/self/maps. */
void pages_learn(int maps);

/* In a fork of it: copies the writable pages, maps the compiler's code. False where the kernel cannot. */
bool pages_populate(void);

#endif
