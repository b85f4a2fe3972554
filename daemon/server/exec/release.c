/* The release method: gives up a buffer, an inline reference, a program, a module or a kernel. */

#include "server/code/code.h"
#include "server/exec/program.h"
#include "server/exec/room.h"
#include "server/memory/connection_resources.h"
#include "server/peer/request.h"

static int bad_argument(struct error *e, const char *key, const char *why)
{
    error_set(e, ERROR_INVALID_ARGUMENT, "%s", why);
    return error_detail_text(e, "key", key);
}

void handle_release(struct request *r, const struct rpc_arg *args, struct request_fds *fds)
{
    struct connection *c = r->connection;
    unsigned given = 0;
    struct error e;
    int result;

    (void)fds;
    for (unsigned i = RELEASE_buffer; i <= RELEASE_kernel; i++)
        given += args[i].present;
    if (given != 1)
        result = bad_argument(&e, "buffer", "release takes one of `buffer`, `ipc`, `program`, `module` and `kernel`");
    else if (args[RELEASE_buffer].present)
        result = connection_release_buffer(c, args[RELEASE_buffer].u, &e);
    else if (args[RELEASE_ipc].present)
        result = connection_release_inline(c, &args[RELEASE_ipc], &e);
    else if (args[RELEASE_module].present)
        result = connection_release_module(c, args[RELEASE_module].u, &e);
    else if (args[RELEASE_kernel].present)
        result = connection_release_kernel(c, args[RELEASE_kernel].u, &e);
    else
        result = connection_release_program(c, args[RELEASE_program].u, &e);
    if (result < 0)
        request_end_error(r, &e);
    else
        request_end_empty(r);
}
