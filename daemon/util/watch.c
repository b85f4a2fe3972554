#include "util/watch.h"

#include <errno.h>
#include <sys/epoll.h>

int watch_start(uv_poll_t *poll, int events, uv_poll_cb callback)
{
    struct epoll_event nothing_yet = {0};
    uv_os_fd_t fd;
    int r = uv_poll_start(poll, events, callback);

    if (r < 0 || (r = uv_fileno((const uv_handle_t *)poll, &fd)) < 0)
        return r;
    /* libuv adds it when it next waits, and aborts if it cannot. What is there already it only changes, and that needs
     * no memory. */
    nothing_yet.data.fd = fd;
    if (epoll_ctl(uv_backend_fd(poll->loop), EPOLL_CTL_ADD, fd, &nothing_yet) < 0 && errno != EEXIST) {
        r = -errno;
        uv_poll_stop(poll);
        return r;
    }
    return 0;
}
