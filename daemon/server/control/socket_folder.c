#include "server/control/socket_folder.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "server/control/room.h"
#include "server/control/server.h"
#include "server/control/shutdown.h"
#include "server/peer/peers.h"
#include "util/log.h"

/* A folder is made, gets its mode and its owner: one look for all of that. */
enum { GATHER_MS = 50 };

static void on_gathered(uv_timer_t *timer)
{
    struct server *s = timer->data;

    if (s->admission.stopping)
        return;
    if (s->control->reading_settings) /* the reading under way may have looked before the change */
        uv_timer_start(timer, on_gathered, GATHER_MS, 0);
    else
        server_read_settings(s, true);
}

static void on_change(uv_fs_event_t *folder, const char *name, int events, int status)
{
    struct server *s = folder->data;

    (void)name;
    (void)events;
    (void)status;
    if (uv_is_active((uv_handle_t *)&s->control->socket_folder.timer))
        return;
    uv_update_time(&s->loop);
    uv_timer_start(&s->control->socket_folder.timer, on_gathered, GATHER_MS, 0);
}

void socket_folder_init(struct server *s)
{
    uv_fs_event_init(&s->loop, &s->control->socket_folder.watch);
    uv_timer_init(&s->loop, &s->control->socket_folder.timer);
    s->control->socket_folder.watch.data = s->control->socket_folder.timer.data = s;
}

void socket_folder_close(struct server *s)
{
    uv_close((uv_handle_t *)&s->control->socket_folder.watch, NULL);
    uv_close((uv_handle_t *)&s->control->socket_folder.timer, NULL);
}

void socket_folder_free(struct server *s)
{
    if (s->control)
        free(s->control->socket_folder.path);
}

static bool is_watched(const struct server *s, const char *path, const struct stat *st)
{
    const char *now = s->control->socket_folder.path;

    return path && now && !strcmp(path, now) && st->st_dev == s->control->socket_folder.device &&
           st->st_ino == s->control->socket_folder.inode;
}

/* A path may be another folder's by now. */
static void watch_folder(struct server *s, const char *path)
{
    struct stat st = {0};
    char *copy;
    int r = 0;

    if (path && stat(path, &st) < 0)
        r = uv_translate_sys_error(errno);
    if (is_watched(s, path, &st))
        return;
    copy = path ? strdup(path) : NULL;
    uv_fs_event_stop(&s->control->socket_folder.watch);
    free(s->control->socket_folder.path);
    s->control->socket_folder.path = copy;
    s->control->socket_folder.device = st.st_dev;
    s->control->socket_folder.inode = st.st_ino;
    if (!path)
        return;
    if (r == 0)
        r = copy ? uv_fs_event_start(&s->control->socket_folder.watch, on_change, copy, 0) : UV_ENOMEM;
    if (r == 0) /* once more: a folder may have come before the watch */
        on_change(&s->control->socket_folder.watch, NULL, 0, 0);
    else
        log_warning("socket", "folder=%s why=\"it cannot be watched, so that new sockets come at a reload only: %s\"",
                    path, uv_strerror(r));
}

void server_serve_sockets(struct server *s, const struct server_socket *sockets, unsigned n, const char *watched)
{
    peers_set_sockets(s, sockets, n);
    watch_folder(s, watched);
}
