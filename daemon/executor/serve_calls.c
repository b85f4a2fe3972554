/* Takes the daemon's calls, which may block. */
#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "backend/memory.h"
#include "executor/serve.h"
#include "util/log.h"

struct taker {
    struct serving *serving;
    int socket;
    struct call_request request;
    char text[CALL_TEXT_MAX + 1];
    int fds[CALL_FDS_MAX];
    struct call_reply reply;
    int reply_fd;
};

static struct backend_device *device_of(const struct taker *t)
{
    return t->serving->devices[t->request.device];
}

/* Keeps the memory under the request's handle. */
static int keep(struct taker *t, struct backend_memory *memory)
{
    t->reply.size = memory->size;
    t->reply.address = memory->address;
    memory_id_set(t->request.handle, memory);
    return 0;
}

static int import(struct taker *t, struct error *e)
{
    struct backend_memory *memory;

    memcpy(t->request.import.fds, t->fds, sizeof(t->request.import.fds));
    if (t->serving->backend->memory_import(device_of(t), &t->request.import, &memory, e) < 0)
        return -1;
    return keep(t, memory);
}

static int allocate(struct taker *t, struct error *e)
{
    struct backend_memory *memory;

    if (t->serving->backend->memory_alloc(device_of(t), t->request.size, &memory, &t->reply_fd, e) < 0)
        return -1;
    t->reply.n_fds = 1;
    return keep(t, memory);
}

static void detach(const struct serving *p, struct backend_memory *memory)
{
    for (unsigned i = 0; i < p->n_devices; i++)
        if (memory->attached[i])
            p->backend->memory_detach(p->devices[i], memory);
}

static int map_host(struct taker *t, struct error *e)
{
    const struct backend *backend = t->serving->backend;
    struct backend_memory *memory;

    if (t->request.n_fds != 1)
        return error_set(e, ERROR_INTERNAL, "shared memory without a descriptor");
    if (memfd_map(t->fds[0], t->request.size, t->request.import.writable, &memory, e) < 0)
        return -1;
    if (t->request.attach && backend->memory_attach(device_of(t), memory, e) < 0) {
        detach(t->serving, memory);
        memfd_unmap(memory);
        return -1;
    }
    return keep(t, memory);
}

static int extend(struct taker *t, struct error *e)
{
    struct backend_memory *memory = memory_by_id(t->request.handle);

    memcpy(t->request.import.fds, t->fds, sizeof(t->request.import.fds));
    if (t->serving->backend->memory_extend(memory, &t->request.import, &t->reply.size, e) < 0)
        return -1;
    memory->size = t->reply.size;
    return 0;
}

static int close_memory(struct taker *t, struct error *e)
{
    struct backend_memory *memory = memory_by_id(t->request.handle);

    (void)e;
    memory_id_set(t->request.handle, NULL);
    if (memory && memory->kind != MEMORY_MEMFD) {
        t->serving->backend->memory_close(memory);
    } else if (memory) {
        detach(t->serving, memory);
        memfd_unmap(memory);
    }
    return 0;
}

static int load_code(struct taker *t, struct error *e)
{
    struct backend_code *code;
    void *binary;
    int r;

    if (t->request.n_fds != 1 || t->request.code > EXECUTOR_CODES_MAX)
        return error_set(e, ERROR_INTERNAL, "a binary without a descriptor, or without a number");
    binary = mmap(NULL, t->request.size, PROT_READ, MAP_PRIVATE, t->fds[0], 0);
    if (binary == MAP_FAILED)
        return error_set(e, ERROR_OUT_OF_MEMORY, "mapping a binary: %s", strerror(errno));
    r = t->serving->backend->code_load(device_of(t), DOMAIN_COMMON, binary, t->request.size, &code, e);
    munmap(binary, t->request.size);
    if (r == 0)
        t->serving->codes[t->request.code] = code;
    return r;
}

static struct backend_code *code_of(const struct taker *t)
{
    return t->request.code <= EXECUTOR_CODES_MAX ? t->serving->codes[t->request.code] : NULL;
}

static int find_function(struct taker *t, struct error *e)
{
    struct backend_code *code = code_of(t);

    if (!code || t->request.handle > EXECUTOR_FUNCTIONS_MAX)
        return error_set(e, ERROR_INTERNAL, "the executor has no such code");
    if (t->serving->backend->code_function(device_of(t), code, t->text, &t->reply.function, e) < 0)
        return -1;
    t->serving->functions[t->request.handle] = t->reply.function.id;
    return 0;
}

/* Unloads behind the records that were written before: one of them may free a program that launches the code. */
static int unload_code(struct taker *t, struct error *e)
{
    const struct timespec moment = {.tv_nsec = 50000};

    (void)e;
    while (atomic_load(&t->serving->region->to_executor.read) < t->request.position)
        nanosleep(&moment, NULL);
    if (!code_of(t))
        return 0;
    t->serving->backend->code_unload(device_of(t), code_of(t));
    t->serving->codes[t->request.code] = NULL;
    return 0;
}

static int activate(struct taker *t, struct error *e)
{
    return device_activate(t->serving, t->request.device, e);
}

static int tell_free_memory(struct taker *t, struct error *e)
{
    const struct backend *backend = t->serving->backend;

    if (backend->memory_free && backend->memory_free(device_of(t), &t->reply.size) == 0)
        return 0;
    return error_set(e, ERROR_UNSUPPORTED, "the device does not tell its free memory");
}

static int (*const calls[])(struct taker *t, struct error *e) = {
    [CALL_ACTIVATE] = activate,           [CALL_IMPORT] = import,           [CALL_ALLOC] = allocate,
    [CALL_MAP_HOST] = map_host,           [CALL_EXTEND] = extend,           [CALL_CLOSE] = close_memory,
    [CALL_CODE_LOAD] = load_code,         [CALL_CODE_UNLOAD] = unload_code, [CALL_CODE_FUNCTION] = find_function,
    [CALL_MEMORY_FREE] = tell_free_memory};

/* A call cannot be answered: the process ends, and the daemon hears of that. Where the daemon is gone, the loop ends
 * the process. */
static void give_up(const struct taker *t, const char *why)
{
    char byte;

    if (recv(t->socket, &byte, 1, MSG_PEEK | MSG_DONTWAIT) == 0)
        return;
    log_error("executor", "why=\"%s\"", why);
    _exit(1);
}

static void answer(struct taker *t)
{
    memset(&t->reply, 0, sizeof(t->reply));
    t->reply_fd = -1;
    t->text[t->request.text_size] = '\0';
    if (t->request.device >= t->serving->n_devices)
        t->reply.result = error_set(&t->reply.error, ERROR_INTERNAL, "the executor has no such device");
    else if (t->request.kind != CALL_ACTIVATE && !atomic_load(&t->serving->active[t->request.device]))
        t->reply.result = error_set(&t->reply.error, ERROR_UNSUPPORTED, "nothing has used the device yet");
    else if (t->request.kind >= sizeof(calls) / sizeof(calls[0]))
        t->reply.result = error_set(&t->reply.error, ERROR_INTERNAL, "a call that the executor does not know");
    else
        t->reply.result = calls[t->request.kind](t, &t->reply.error);
    for (unsigned i = 0; i < t->request.n_fds; i++)
        close(t->fds[i]);
    if (call_send(t->socket, &t->reply, sizeof(t->reply), &t->reply_fd, t->reply.n_fds) < 0)
        give_up(t, "a reply cannot be sent");
    if (t->reply_fd >= 0)
        close(t->reply_fd);
}

static void *run(void *argument)
{
    struct taker *t = argument;

    while (call_receive_request(t->socket, &t->request, t->text, t->fds) == 0)
        answer(t);
    give_up(t, "a call cannot be received");
    return NULL;
}

int calls_start(struct serving *p, struct error *e)
{
    static struct taker takers[CALL_CHANNELS];

    for (unsigned i = 0; i < CALL_CHANNELS; i++) {
        pthread_t thread;

        takers[i].serving = p;
        takers[i].socket = p->channels[i];
        if (pthread_create(&thread, NULL, run, &takers[i]) != 0)
            return error_set(e, ERROR_OUT_OF_MEMORY, "an executor's threads cannot be made");
        pthread_detach(thread);
    }
    return 0;
}
