/* Which process this is, without a system call: every call of the library asks. Thread: any. */
#ifndef KOPS_CLIENT_PROCESS_H
#define KOPS_CLIENT_PROCESS_H

#include <sys/types.h>

/* getpid(). The number is kept in a page that the kernel empties in the child of every fork, however it is made. */
pid_t process_id(void);

#endif
