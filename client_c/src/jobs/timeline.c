#include "timeline.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fail.h"

enum { RELEASE_FIRST_MS = 1, RELEASE_LAST_MS = 60000, RELEASES = 64 };

/* Writes the far end into every done word. Writes of the daemon's GPU that are under way may set a word back to a
 * smaller value, less and less likely with time, so the pauses between repeats grow. */
static void release(struct timeline *t)
{
    struct pollfd p = {.fd = t->stop, .events = POLLIN};
    int pause_ms = RELEASE_FIRST_MS;

    atomic_store(&t->over, true);
    for (unsigned round = 1;; round++) {
        for (unsigned i = 0; i < TIMELINE_STREAMS; i++)
            atomic_store_explicit(&t->words[TIMELINE_STREAMS + i], INT64_MAX, memory_order_relaxed);
        if (poll(&p, 1, pause_ms) > 0)
            return;
        if (round % RELEASES == 0 && pause_ms < RELEASE_LAST_MS)
            pause_ms *= 2;
    }
}

static void *watch(void *argument)
{
    struct timeline *t = argument;
    struct pollfd p[2] = {{.fd = t->stop, .events = POLLIN}, {.fd = t->socket, .events = POLLRDHUP}};

    while (poll(p, 2, -1) < 0 && errno == EINTR)
        ;
    if (!p[0].revents)
        release(t);
    return NULL;
}

/* Blocks all signals in the watcher: handlers run on the caller's own threads only. */
static int start_watcher(struct timeline *t)
{
    sigset_t all, before;
    int r;

    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    r = pthread_create(&t->watcher, NULL, watch, t);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return r;
}

static bool valid(const struct wire_timelines *made)
{
    int seals = fcntl(made->fd, F_GET_SEALS);
    struct stat st;

    return made->streams == TIMELINE_STREAMS && made->size == TIMELINE_BYTES && seals >= 0 && seals & F_SEAL_SHRINK &&
           fstat(made->fd, &st) == 0 && st.st_size >= TIMELINE_BYTES;
}

/* Unregisters the page, in any thread. A page that the driver fails to unregister stays mapped: nothing else could be
 * registered at its addresses. */
static void unregister(struct timeline *t)
{
    const struct cuda_driver *d = t->driver;
    const bool pushed = d->context_push(t->context) == 0;
    const cuda_status status = d->host_unregister((void *)t->words);

    if (pushed)
        cuda_pop(d);
    if (status == 0 || status == CUDA_ERROR_NOT_REGISTERED)
        munmap((void *)t->words, TIMELINE_BYTES);
}

static enum kops_code map_words(struct timeline *t, const struct wire_timelines *made, struct kops_error *e)
{
    void *words;

    if (!valid(made))
        return fail(e, KOPS_ERR_BAD_REPLY, "the daemon's page of timelines is not of the agreed form");
    words = mmap(NULL, TIMELINE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, made->fd, 0);
    if (words == MAP_FAILED)
        return fail_os(e, errno, "mapping the page of timelines");
    t->words = words;
    return KOPS_OK;
}

enum kops_code timeline_open(const struct cuda_driver *d, const struct wire_timelines *made, int socket,
                             uint32_t generation, struct timeline **ret, struct kops_error *e)
{
    struct timeline *t = calloc(1, sizeof(*t));
    cuda_status status;
    enum kops_code r = t ? map_words(t, made, e) : fail(e, KOPS_ERR_NO_MEMORY, "there is no memory for timelines");

    close(made->fd);
    if (r)
        goto free_timeline;
    t->generation = generation;
    t->driver = d;
    d->context_get(&t->context);
    status = d->host_register((void *)t->words, TIMELINE_BYTES, CUDA_HOST_PORTABLE | CUDA_HOST_DEVICEMAP);
    if (status) {
        r = cuda_fail(d, e, KOPS_ERR_DEVICE_ERROR, status, "cuMemHostRegister of the page of timelines");
        munmap((void *)t->words, TIMELINE_BYTES);
        goto free_timeline;
    }
    t->socket = fcntl(socket, F_DUPFD_CLOEXEC, 0);
    t->stop = eventfd(0, EFD_CLOEXEC);
    if (t->socket < 0 || t->stop < 0) {
        r = fail_os(e, errno, "making a descriptor");
        goto close_descriptors;
    }
    errno = start_watcher(t);
    if (errno) {
        r = fail_os(e, errno, "starting the thread that watches the connection");
        goto close_descriptors;
    }
    *ret = t;
    return KOPS_OK;

close_descriptors:
    timeline_forget(t);
    unregister(t);
free_timeline:
    free(t);
    return r;
}

void timeline_forget(struct timeline *t)
{
    if (t->socket >= 0)
        close(t->socket);
    if (t->stop >= 0)
        close(t->stop);
    t->socket = t->stop = -1;
}

struct timeline *timeline_close(struct timeline *t)
{
    const uint64_t one = 1;

    if (!t)
        return NULL;
    if (write(t->stop, &one, sizeof(one)) == sizeof(one))
        pthread_join(t->watcher, NULL);
    timeline_forget(t);
    unregister(t);
    free(t);
    return NULL;
}
