/* User kernels: compile, kernel, launch, cache. */
#include "server/request.h"

static void refuse(struct request *r)
{
    struct error e;

    error_set(&e, ERROR_UNSUPPORTED, "this daemon runs its own ops only");
    request_end_error(r, &e);
}

void handle_compile(struct request *r, const struct rpc_arg *args, struct request_fds *fds)
{
    (void)args;
    (void)fds;
    refuse(r);
}

void handle_kernel(struct request *r, const struct rpc_arg *args, struct request_fds *fds)
{
    (void)args;
    (void)fds;
    refuse(r);
}

void handle_launch(struct request *r, const struct rpc_arg *args, struct request_fds *fds)
{
    (void)args;
    (void)fds;
    refuse(r);
}

void handle_cache(struct request *r, const struct rpc_arg *args, struct request_fds *fds)
{
    (void)args;
    (void)fds;
    refuse(r);
}
