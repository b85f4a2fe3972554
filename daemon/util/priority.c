#include "util/priority.h"

#include <errno.h>
#include <sys/resource.h>
#include <unistd.h>

enum { STEPS = 5, NICE_MOST = 19 };

void priority_lower(void)
{
    int nice;

    errno = 0;
    nice = getpriority(PRIO_PROCESS,
                       (id_t)getpid()); /* on Linux that of a thread, the first one; POSIX would mean the process */
    if (!errno)
        setpriority(PRIO_PROCESS, 0, nice + STEPS < NICE_MOST ? nice + STEPS : NICE_MOST);
}
