#include <dlfcn.h>
#include <sched.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ordered_fake.h"

/* ---- the driver ---- */

struct cu_calls cu;

void *context, *stream;

_Atomic uint64_t *words;
uint64_t words_address;

static struct standin_control *control;
static char control_path[] = "/tmp/test-kops-control-XXXXXX";

int open_control(void **state)
{
    int fd = mkstemp(control_path);

    if (fd < 0 || ftruncate(fd, sizeof(*control)) || fchmod(fd, 0666)) /* executors are another user */
        abort();
    control = mmap(NULL, sizeof(*control), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (control == MAP_FAILED)
        abort();
    close(fd);
    return setenv("KOPS_STANDIN_CONTROL", control_path, 1);
}

int close_control(void **state)
{
    return unlink(control_path);
}

struct standin_fault *fail_next(const char *function, unsigned times, int error, bool sticky)
{
    struct standin_fault *fault = control->faults;

    while (fault->armed)
        fault++;
    snprintf(fault->function, sizeof(fault->function), "%s", function);
    fault->countdown = 1;
    fault->times = times;
    fault->error = error;
    fault->sticky = sticky;
    fault->pid = 0;
    fault->armed = 1;
    return fault;
}

void load(void)
{
    static const struct {
        const char *name;
        void *into;
    } functions[] = {
#define X(name, symbol, parameters) {#symbol, &cu.name},
        CU_CALLS(X)
#undef X
    };
    void *library = dlopen(getenv("KOPS_CUDA_DRIVER"), RTLD_NOW);
    int device;

    for (size_t i = 0; library && i < sizeof(functions) / sizeof(functions[0]); i++) {
        void *symbol = dlsym(library, functions[i].name);

        memcpy(functions[i].into, &symbol, sizeof(symbol));
    }
    if (!library || cu.init(0) || cu.device_get(&device, 0) || cu.retain(&context, device) || cu.set(context) ||
        cu.stream_create(&stream, 1))
        fail_msg("no driver: %s", dlerror());
    words = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(words != MAP_FAILED && !cu.host_register((void *)words, 4096, 2) &&
                !cu.device_pointer(&words_address, (void *)words, 0));
}

int load_for_all(void **state)
{
    load();
    return 0;
}

uint64_t allocate(size_t size)
{
    uint64_t memory;

    assert_int_equal(cu.mem_alloc(&memory, size), 0);
    return memory;
}

void finish(void *on)
{
    assert_int_equal(cu.stream_synchronize(on), 0);
}

void launch_graph(void *graph, void *on)
{
    void *ready = NULL;

    assert_int_equal(cu.instantiate(&ready, graph, 0), 0);
    assert_int_equal(cu.graph_launch(ready, on), 0);
    finish(on);
}

void close_gate(void)
{
    atomic_store(&words[0], 0);
    assert_int_equal(cu.wait(stream, words_address, 1, 0), 0);
}

void open_gate(void)
{
    atomic_store(&words[0], 1);
}

/* ---- with a real daemon ---- */

uint64_t launches_here(kops_client *client)
{
    struct kops_stats *stats;
    uint64_t n = 0;

    assert_ok(kops_stats_get(client, NULL, &stats, NULL));
    for (const struct kops_stats_row *const *row = stats->rows; *row; row++)
        n += strcmp((*row)->variant, "here") == 0 ? (*row)->count : 0;
    kops_stats_free(stats);
    return n;
}

static const char twice_source[] = "extern \"C\" __global__ void custom_kernel(float *out, const float *in, int n)\n"
                                   "{\n"
                                   "    int i = blockIdx.x * blockDim.x + threadIdx.x;\n"
                                   "    if (i < n)\n"
                                   "        out[i] = 2 * in[i];\n"
                                   "}\n";

enum kops_code compile_twice(kops_client *client, const char *size, kops_kernel **ret, struct kops_error *error)
{
    const struct kops_param params[] = {
        {.name = "out", .kind = KOPS_PARAM_OUT, .dtype = KOPS_F32, .rank = 1, .shape = {size}},
        {.name = "in", .kind = KOPS_PARAM_IN, .dtype = KOPS_F32, .rank = 1, .shape = {size}},
        {.name = "n", .kind = KOPS_PARAM_SCALAR, .dtype = KOPS_I32}};
    const struct kops_source source = {.text = twice_source};
    const struct kops_signature signature = {.entry = "custom_kernel",
                                             .params = params,
                                             .n_params = 3,
                                             .geometry = {.grid = {"ceil_div(n, 128)"}, .block = {"128"}}};

    return kops_kernel_compile(client, &source, &signature, ret, NULL, error);
}

/* ---- the daemon ---- */

static void wait_for_word(_Atomic int64_t *word, int64_t value)
{
    while (atomic_load(word) - value < 0)
        sched_yield();
}

/* One stream at a time, in order: what a test needs of a daemon. False: it dies. */
static bool work(struct fake_connection *c, struct daemon *d, const struct fake_request *r)
{
    const msgpack_object *ready = fake_param(&r->params, "ready"), *done = fake_param(&r->params, "done"),
                         *index = fake_param(&r->params, "stream"), *ops = fake_param(&r->params, "ops");
    uint64_t s = index ? index->via.u64 : 0;
    bool failing = d->fail_tag && (ops || !strcmp(r->tag, d->fail_tag));
    enum death death = atomic_fetch_add(&d->requests, 1) + 1 == d->die_at ? d->die : NEVER;

    atomic_fetch_add(&d->ops, ops ? ops->via.array.size : 1);
    atomic_fetch_add(&d->sequences, ops != NULL);
    atomic_fetch_add(&d->streams[s], 1);
    if (death == BEFORE_READY)
        return false;
    if (ready)
        wait_for_word(&c->words[s], (int64_t)ready->via.u64);
    if (d->hold)
        sem_wait(&d->permits);
    if (death == BEFORE_DONE)
        return false;
    if (done)
        atomic_store(&c->words[256 + s], (int64_t)done->via.u64);
    if (death == BEFORE_REPLY)
        return false;
    if (failing) {
        char details[32] = "{}";

        if (ops)
            snprintf(details, sizeof(details), "{op_index: %d}", d->fail_index);
        fake_reply_error(c, r->msgid, d->fail_code ? d->fail_code : "device_error", "it broke", details);
    } else {
        fake_reply_run(c, r->msgid, "simple");
    }
    return death != AFTER_REPLY;
}

static void serve(struct fake_connection *c, void *context_)
{
    struct daemon *d = context_;
    struct fake_request r;
    bool alive = true;

    while (alive && fake_next(c, &r)) {
        if (!strcmp(r.method, "release"))
            atomic_store(&d->released, atomic_load(&d->ops) + 1);
        if (fake_is_work(r.method))
            alive = work(c, d, &r);
        else
            fake_answer(c, &r);
    }
}

struct setting *start(enum kops_transport transport, int64_t timeout_ms)
{
    struct setting *s = calloc(1, sizeof(*s));
    struct kops_connect_options options = {.transport = transport, .timeout_ms = timeout_ms};

    sem_init(&s->d.permits, 0, 0);
    s->f = fake_start(serve, &s->d);
    options.socket = fake_path(s->f);
    assert_ok(kops_connect(&options, &s->client, &s->error));
    return s;
}

void stop(struct setting *s)
{
    kops_close(s->client);
    fake_stop(s->f);
    sem_destroy(&s->d.permits);
    free(s);
}

enum kops_code enqueue(struct setting *s, const char *tag)
{
    return kops_enqueue(s->client, tagged_run(&s->t, tag), stream, &s->error);
}

int begin_by_ring(void **state)
{
    *state = start(KOPS_TRANSPORT_SHM, 0);
    return 0;
}

int begin_by_socket(void **state)
{
    *state = start(KOPS_TRANSPORT_SOCKET, 0);
    return 0;
}

/* The stream has ended, too. */
int end_setting(void **state)
{
    finish(stream);
    stop(*state);
    return 0;
}

void expect_end(struct setting *s, enum kops_code code)
{
    if (kops_synchronize(s->client, stream, 0, &s->error) != code)
        fail_msg("not %s: %s", kops_code_name(code), s->error.message);
}
