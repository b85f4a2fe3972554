/* Notes when each kernel of a process ran, by CUPTI. The driver loads this library into a process whose environment
 * names it with CUDA_INJECTION64_PATH. Further variables:
 *
 * | variable | meaning |
 * | --- | --- |
 * | KOPS_BENCH_RECORDS | socket of the program that wants the records |
 * | KOPS_BENCH_CUPTI | path of CUPTI's library; the usual names and places by default |
 *
 * It connects to the socket and writes the process's number in a line. Then each byte that it reads asks for what is
 * new: lines "<number of the call> <begin ns> <end ns> <name>" and an empty line. A graph is one record, named "graph".
 * A process that cannot be recorded says why on stderr and goes on. */
#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "driver/cupti_library.h"
#include "times/cupti.h"

enum { BUFFER_BYTES = 1 << 20, BUFFER_ALIGN = 64, NAME_BYTES = 96, FIRST_ROOM = 4096 };

struct record {
    uint32_t call;
    uint64_t begin_ns, end_ns;
    char name[NAME_BYTES]; /* its beginning */
};

static struct cupti cupti;
static CUpti_SubscriberHandle subscriber;

static pthread_mutex_t lock =
    PTHREAD_MUTEX_INITIALIZER; /* of what follows: CUPTI hands out buffers on its own thread */
static struct record *records;
static size_t n_records, room;
static bool lost; /* there was no memory for one */

/* What the driver calls when it has loaded the library. */
int InitializeInjection(void);

/* ---- what CUPTI calls ---- */

static void CUPTIAPI on_callback(void *context, CUpti_CallbackDomain domain, CUpti_CallbackId id, const void *data)
{
    (void)context, (void)domain, (void)id, (void)data;
}

static void CUPTIAPI on_buffer_wanted(uint8_t **buffer, size_t *size, size_t *max_records)
{
    *buffer = aligned_alloc(BUFFER_ALIGN, BUFFER_BYTES);
    *size = *buffer ? BUFFER_BYTES : 0;
    *max_records = 0;
}

static void keep(uint32_t call, uint64_t begin_ns, uint64_t end_ns, const char *name)
{
    if (n_records == room) {
        const size_t more = room ? 2 * room : FIRST_ROOM;
        struct record *grown = realloc(records, more * sizeof(*records));

        lost = lost || !grown;
        if (!grown)
            return;
        records = grown;
        room = more;
    }
    records[n_records] = (struct record){.call = call, .begin_ns = begin_ns, .end_ns = end_ns};
    snprintf(records[n_records++].name, NAME_BYTES, "%s", name ? name : "unknown");
}

/* The records of later versions of CUPTI begin with the same members. */
static void CUPTIAPI on_buffer_done(CUcontext context, uint32_t stream, uint8_t *buffer, size_t size, size_t valid)
{
    CUpti_Activity *record = NULL;

    (void)context, (void)stream, (void)size;
    pthread_mutex_lock(&lock);
    while (valid && cupti.ActivityGetNextRecord(buffer, valid, &record) == CUPTI_SUCCESS) {
        if (record->kind == CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL) {
            const CUpti_ActivityKernel9 *kernel = (const void *)record;

            keep(kernel->correlationId, kernel->start, kernel->end, kernel->name);
        } else if (record->kind == CUPTI_ACTIVITY_KIND_GRAPH_TRACE) {
            const CUpti_ActivityGraphTrace *graph = (const void *)record;

            keep(graph->correlationId, graph->start, graph->end, "graph");
        }
    }
    pthread_mutex_unlock(&lock);
    free(buffer);
}

/* ---- who asks ---- */

static int tell(FILE *out)
{
    cupti.ActivityFlushAll(0);
    pthread_mutex_lock(&lock);
    for (size_t i = 0; i < n_records; i++)
        fprintf(out, "%" PRIu32 " %" PRIu64 " %" PRIu64 " %s\n", records[i].call, records[i].begin_ns,
                records[i].end_ns, records[i].name);
    n_records = 0;
    if (lost)
        fprintf(out, "lost\n");
    pthread_mutex_unlock(&lock);
    fprintf(out, "\n");
    return fflush(out);
}

static void *answer(void *argument)
{
    FILE *out = argument;
    char byte;

    fprintf(out, "%d\n", (int)getpid());
    if (fflush(out) == 0)
        while (read(fileno(out), &byte, 1) == 1 && tell(out) == 0)
            ;
    fclose(out);
    return NULL;
}

static FILE *connect_to(const char *path)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    const size_t length = strlen(path);
    FILE *out = NULL;
    int fd;

    if (length >= sizeof(address.sun_path))
        return NULL;
    memcpy(address.sun_path, path, length);
    fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return NULL;
    if (connect(fd, (const struct sockaddr *)&address, sizeof(address)) == 0)
        out = fdopen(fd, "r+");
    if (!out)
        close(fd);
    return out;
}

/* The process's signals are for its own threads. */
static int start_thread(FILE *out)
{
    sigset_t all, before;
    pthread_t thread;
    int r;

    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    r = pthread_create(&thread, NULL, answer, out);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (r == 0)
        pthread_detach(thread);
    return r == 0 ? 0 : -1;
}

/* ---- the start ---- */

static int record_all(void)
{
    char why[256] = "CUPTI refused";

    if (cupti_load(&cupti, why, sizeof(why)) < 0 ||
        cupti.Subscribe(&subscriber, (CUpti_CallbackFunc)on_callback, NULL) != CUPTI_SUCCESS ||
        cupti.ActivityRegisterCallbacks(on_buffer_wanted, on_buffer_done) != CUPTI_SUCCESS ||
        cupti.ActivityEnable(CUPTI_ACTIVITY_KIND_GRAPH_TRACE) != CUPTI_SUCCESS ||
        cupti.ActivityEnable(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL) != CUPTI_SUCCESS) {
        fprintf(stderr, "bench: no kernel is recorded: %s\n", why);
        return -1;
    }
    return 0;
}

__attribute__((visibility("default"))) int InitializeInjection(void)
{
    const char *path = getenv("KOPS_BENCH_RECORDS");
    FILE *out;

    cupti_choose(getenv("KOPS_BENCH_CUPTI"), NULL);
    if (!path || record_all() < 0)
        return 1;
    out = connect_to(path);
    if (out && start_thread(out) == 0)
        return 1;
    fprintf(stderr, "bench: nobody is at %s to be told of kernels\n", path);
    if (out)
        fclose(out);
    return 1;
}
