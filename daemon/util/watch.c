#include "util/watch.h"

#include <errno.h>
#include <sys/epoll.h>

/* libuv adds a descriptor when it next waits, and aborts if it cannot. For a descriptor that is watched already it only
 * changes the events, which needs no memory. */
static int add(uv_loop_t *loop, int fd)
{
    struct epoll_event nothing_yet = {.data.fd = fd};

    return epoll_ctl(uv_backend_fd(loop), EPOLL_CTL_ADD, fd, &nothing_yet) < 0 && errno != EEXIST ? -errno : 0;
}

int watch_loop(uv_loop_t *loop)
{
    int r = loop->async_io_watcher.fd >= 0 ? add(loop, loop->async_io_watcher.fd) : 0;

    return r < 0 || loop->signal_pipefd[0] < 0 ? r : add(loop, loop->signal_pipefd[0]);
}

int watch_start(uv_poll_t *poll, int events, uv_poll_cb callback)
{
    uv_os_fd_t fd;
    int r = uv_poll_start(poll, events, callback);

    if (r < 0 || (r = uv_fileno((const uv_handle_t *)poll, &fd)) < 0)
        return r;
    r = add(poll->loop, fd);
    if (r < 0)
        uv_poll_stop(poll);
    return r;
}
