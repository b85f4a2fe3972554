#include "reply.h"

#include <stdlib.h>
#include <unistd.h>

void native_reply_free(struct native_reply *r)
{
    if (!r)
        return;
    for (unsigned i = 0; i < r->n_fds; i++)
        if (r->fds[i] >= 0)
            close(r->fds[i]);
    free(r->data);
    *r = (struct native_reply){.data = NULL};
}
