#include "support.h"

#include <poll.h>
#include <sched.h>
#include <stdio.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

#include "gpu.h"

enum { PATIENCE_MS = 60000 };

const struct backend *backend = &cuda_backend.base;
struct backend_device *device;
struct standin_control *control;

static int wake_fd = -1;

/* ---- fixtures ---- */

static void wake(void *context)
{
    uint64_t one = 1;
    ssize_t written = write(wake_fd, &one, sizeof(one));

    (void)written;
}

struct backend_host test_host = {.wake = wake};
struct backend_config test_config = {.cuda_driver = KOPS_STANDIN};

static void map_control(void)
{
    static char path[64];
    int fd = memfd_create("standin-control", 0);

    assert_true(fd >= 0);
    assert_int_equal(ftruncate(fd, sizeof(*control)), 0);
    control = mmap(NULL, sizeof(*control), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    assert_ptr_not_equal(control, MAP_FAILED);
    snprintf(path, sizeof(path), "/proc/%d/fd/%d", getpid(), fd);
    setenv("KOPS_STANDIN_CONTROL", path, 1);
}

void describe_devices(const char *blaslt, struct backend_device **ret_devices, unsigned wanted)
{
    unsigned count = 0;

    test_config.cuda_blaslt = blaslt;
    if (!control)
        map_control();
    if (wake_fd < 0)
        wake_fd = eventfd(0, EFD_CLOEXEC);
    MUST(backend->open(&test_config, &test_host, ret_devices, wanted, &count, &e));
    assert_int_equal(count, wanted);
    for (unsigned i = 0; i < wanted; i++)
        ret_devices[i]->index = 3 + i; /* after another backend's */
}

int open_device(const char *blaslt)
{
    describe_devices(blaslt, &device, 1);
    MUST(cuda_backend.activate(device, &e));
    return 0;
}

int setup(void **state)
{
    return open_device("none");
}

void expect_nothing_lives(void)
{
    for (unsigned id = STANDIN_COUNTER_live_contexts; id <= STANDIN_COUNTER_live_captures; id++)
        if (counter(id) != 0)
            fail_msg("counter %u is %lld", id, (long long)counter(id));
    assert_int_equal(counter(STANDIN_COUNTER_misuse), 0);
}

static const enum standin_counter_id memory_counters[] = {
    STANDIN_COUNTER_live_allocations,      STANDIN_COUNTER_live_host_registrations, STANDIN_COUNTER_live_ipc_mappings,
    STANDIN_COUNTER_live_vmm_reservations, STANDIN_COUNTER_live_vmm_handles,        STANDIN_COUNTER_live_vmm_maps};

enum { MEMORY_COUNTERS = sizeof(memory_counters) / sizeof(memory_counters[0]) };

static int64_t memory_at_begin[MEMORY_COUNTERS];

void begin_tests(void)
{
    keep_opened();
    for (unsigned i = 0; i < MEMORY_COUNTERS; i++)
        memory_at_begin[i] = counter(memory_counters[i]);
}

void expect_memory_as_at_begin(void)
{
    for (unsigned i = 0; i < MEMORY_COUNTERS; i++)
        if (counter(memory_counters[i]) != memory_at_begin[i])
            fail_msg("counter %u is %lld, not %lld", memory_counters[i], (long long)counter(memory_counters[i]),
                     (long long)memory_at_begin[i]);
}

int end_test(void **state)
{
    for (unsigned gate = 0; gate < STANDIN_N_GATES; gate++) /* which a test that failed may have left closed */
        gate_open(gate);
    close_opened(state);
    if (!device->lost)
        expect_memory_as_at_begin();
    return 0;
}

int teardown(void **state)
{
    const bool lost = device->lost; /* its driver takes nothing back */

    close_kept();
    backend->close(device);
    device = NULL;
    assert_int_equal(counter(STANDIN_COUNTER_misuse), 0);
    if (!lost)
        expect_nothing_lives();
    return 0;
}

/* ---- the control page ---- */

static struct standin_row *own_row(void)
{
    for (unsigned i = 0; i < STANDIN_ROWS; i++)
        if (control->rows[i].pid == getpid())
            return &control->rows[i];
    fail_msg("the stand-in driver took no row");
    return NULL;
}

int64_t counter(enum standin_counter_id id)
{
    return own_row()->counters[id];
}

uint64_t calls(const char *function)
{
    const struct standin_row *row = own_row();

    for (unsigned i = 0; i < STANDIN_CALLS; i++)
        if (strcmp(row->calls[i].function, function) == 0)
            return row->calls[i].count;
    return 0;
}

void gate_close(enum standin_gate_id gate)
{
    control->gates[gate].tickets = 0;
    control->gates[gate].closed = 1;
}

void gate_open(enum standin_gate_id gate)
{
    control->gates[gate].closed = 0;
}

void gate_pass_one(enum standin_gate_id gate)
{
    atomic_fetch_add(&control->gates[gate].tickets, 1);
}

void wait_at_gate(enum standin_gate_id gate, uint64_t waiting)
{
    while (own_row()->gate_waiting[gate] < waiting)
        sched_yield();
}

void inject(const char *function, int error, bool sticky)
{
    inject_later(function, 1, error, sticky);
}

void inject_later(const char *function, unsigned countdown, int error, bool sticky)
{
    struct standin_fault *fault = &control->faults[0];

    snprintf(fault->function, sizeof(fault->function), "%s", function);
    fault->countdown = countdown;
    fault->times = 1;
    fault->error = error;
    fault->sticky = sticky;
    fault->pid = getpid();
    fault->armed = 1;
}

/* ---- memory ---- */

static void close_memory(void *object)
{
    struct backend_memory *memory = object;

    if (memory->kind == MEMORY_MEMFD) {
        backend->memory_detach(device, memory);
        memfd_unmap(memory);
    } else {
        backend->memory_close(memory);
    }
}

struct backend_memory *device_memory(uint64_t size)
{
    struct backend_memory *memory;
    int fd;

    MUST(backend->memory_alloc(device, size, &memory, &fd, &e));
    close(fd);
    return opened(memory, close_memory);
}

struct backend_memory *host_memory(uint64_t size)
{
    struct backend_memory *memory;
    int fd;

    MUST(memfd_new(size, &memory, &fd, &e));
    close(fd);
    return opened(memory, close_memory);
}

float value(unsigned index, unsigned seed)
{
    return (float)((index * 2654435761U + seed * 40503U) % 61U) - 30.0f;
}

void fill(struct backend_memory *m, unsigned count, unsigned seed)
{
    for (unsigned i = 0; i < count; i++)
        floats(m)[i] = value(i, seed);
}

/* ---- jobs ---- */

void job_done(struct backend_job *job)
{
    struct test_job *t = (struct test_job *)(void *)job;

    assert_false(t->done);
    t->done = true;
}

static void set_tensor(struct tensor *t, const struct view *v, enum dtype dtype)
{
    *t = (struct tensor){.dtype = dtype, .rank = v->rank, .offset = v->offset * dtype_size(dtype)};
    memcpy(t->shape, v->shape, sizeof(t->shape));
    if (v->strided)
        memcpy(t->strides, v->strides, sizeof(t->strides));
    else
        tensor_set_contiguous(t);
    MUST(tensor_measure(t, "tensor", &e));
}

static void plan_job(struct test_job *t, struct op_call *call, const struct view *views)
{
    unsigned n = call->op->n_inputs + call->op->n_outputs;
    struct tensor tensors[STEP_MAX_OPERANDS];

    *t = (struct test_job){.job = {.n_steps = 1, .repeat = 1, .timing = true, .done = job_done},
                           .step = {.in_place = -1}};
    step_set_op(&t->step, call->op);
    t->job.steps = &t->step;
    t->job.samples = t->samples;
    /* A server leaves there what an earlier run had. */
    for (unsigned i = n; i < STEP_MAX_OPERANDS; i++)
        t->step.operands[i].memory = 8;
    for (unsigned i = 0; i < n; i++) {
        set_tensor(&tensors[i], &views[i], views[i].dtype ? views[i].dtype : DTYPE_F32);
        call->tensors[i] = &tensors[i];
        t->step.operands[i] = (struct step_operand){
            .memory = memory_id_of(views[i].memory), .offset = tensors[i].offset, .extent = tensors[i].extent};
        if (i < call->op->n_inputs && views[i].memory == views[n - 1].memory &&
            views[i].offset == views[n - 1].offset && call->op->id != OP_GEMM)
            t->step.in_place = (int8_t)i;
    }
    MUST(op_plan(call, &t->step.plan, &e));
    backend_job_begin(&t->job);
}

static struct op_call call_of(enum op_id op)
{
    struct op_call call = {.op = op_get(op)};

    for (unsigned i = 0; i < call.op->n_attrs; i++)
        call.attrs[i] = call.op->attrs[i].fallback;
    return call;
}

void make_job(struct test_job *t, enum op_id op, const struct view *views)
{
    struct op_call call = call_of(op);

    plan_job(t, &call, views);
}

void make_gemm(struct test_job *t, const struct view *views, double alpha, double beta)
{
    struct op_call call = call_of(OP_GEMM);

    call.attrs[GEMM_ALPHA].f = alpha;
    call.attrs[GEMM_BETA].f = beta;
    plan_job(t, &call, views);
}

void make_linear(struct test_job *t, const struct view *views, unsigned activation)
{
    struct op_call call = call_of(OP_LINEAR);

    call.attrs[LINEAR_ACTIVATION].choice = activation;
    plan_job(t, &call, views);
}

static void close_stream(void *stream)
{
    backend->stream_free(stream);
}

struct backend_stream *stream_open(void)
{
    struct backend_stream *stream;

    MUST(backend->stream_new(device, PRIORITY_NORMAL, &stream, &e));
    return opened(stream, close_stream);
}

bool needs_prepare(const struct test_job *t)
{
    return cuda_needs_prepare(&cuda_gpu(device)->executor, &t->job);
}

static bool is_prepared_by_a_thread(const struct backend_job *base)
{
    const struct cuda_job *job = base->impl;

    return job && job->state == JOB_PREPARING;
}

void start_job(struct backend_stream *stream, struct test_job *t)
{
    struct error e;

    backend_job_begin(&t->job);
    if (backend->check(device, &t->step, &e) < 0)
        fail_msg("check: %s", e.message);
    backend->submit(stream, &t->job);
    while (is_prepared_by_a_thread(&t->job)) {
        sched_yield();
        backend->poll(device);
    }
}

void wait_for_wake(void)
{
    struct pollfd p = {.fd = wake_fd, .events = POLLIN};
    uint64_t times;

    assert_int_equal(poll(&p, 1, PATIENCE_MS), 1);
    assert_int_equal(read(wake_fd, &times, sizeof(times)), sizeof(times));
}

void finish(struct test_job *t)
{
    while (!t->done && backend->poll(device) > 0) {
        if (t->done)
            return;
        backend->arm(device);
        wait_for_wake();
    }
    assert_true(t->done);
}

void run_failing(struct backend_stream *stream, struct test_job *t, enum error_code code)
{
    start_job(stream, t);
    finish(t);
    assert_true(t->job.failed);
    assert_int_equal(t->job.error.code, code);
}

void run_job(struct backend_stream *stream, struct test_job *t)
{
    start_job(stream, t);
    finish(t);
    if (t->job.failed)
        fail_msg("job: %s", t->job.error.message);
}

/* ---- users' kernels ---- */

unsigned char *read_file(const char *path, size_t *ret_size)
{
    FILE *f = fopen(path, "rb");
    unsigned char *bytes;
    long size;

    assert_non_null(f);
    fseek(f, 0, SEEK_END);
    size = ftell(f);
    rewind(f);
    bytes = malloc((size_t)size);
    assert_non_null(bytes);
    assert_int_equal(fread(bytes, 1, (size_t)size, f), size);
    fclose(f);
    *ret_size = (size_t)size;
    return bytes;
}

static void unload(void *code)
{
    backend->code_unload(device, code);
}

struct backend_code *load_code(void)
{
    struct backend_code *code;
    unsigned char *image;
    size_t size;

    image = read_file(KOPS_TEST_CUBIN, &size);
    MUST(backend->code_load(device, DOMAIN_COMMON, image, size, &code, &e));
    free(image); /* the driver has a copy */
    return opened(code, unload);
}

const struct backend_function *load_function(struct backend_code *code, const char *name)
{
    static struct backend_function functions[64];
    static unsigned n;

    assert_true(n < 64);
    MUST(backend->code_function(device, code, name, &functions[n], &e));
    return &functions[n++];
}

static unsigned count(const struct arg *args, unsigned n_args, unsigned kind)
{
    unsigned n = 0;

    for (unsigned i = 0; i < n_args; i++)
        n += args[i].kind == kind;
    return n;
}

void make_kernel_job(struct test_job *t, const struct backend_function *function, unsigned threads,
                     const struct arg *args, unsigned n_args)
{
    struct step *step = &t->step;
    unsigned inputs = count(args, n_args, ARG_IN), next[2] = {0, inputs};
    struct plan_kernel *k = &step->plan.kernel;
    uint16_t at = 0;

    *t = (struct test_job){.job = {.n_steps = 1, .repeat = 1, .timing = true, .done = job_done}};
    t->job.steps = step;
    t->job.samples = t->samples;
    *step = (struct step){.op = OP_COUNT,
                          .n_inputs = (uint8_t)inputs,
                          .n_outputs = (uint8_t)count(args, n_args, ARG_OUT),
                          .plan = {.kind = PLAN_KERNEL, .dtype = DTYPE_F32},
                          .in_place = -1};
    k->function = function->id;
    k->grid[0] = (threads + 255) / 256;
    k->grid[1] = k->grid[2] = 1;
    k->block[0] = 256;
    k->block[1] = k->block[2] = 1;
    for (unsigned i = 0; i < n_args; i++) {
        const struct arg *a = &args[i];
        uint16_t size = a->kind == ARG_INT ? 4 : 8;

        at = (uint16_t)((at + size - 1) / size * size);
        if (a->kind == ARG_INT) {
            memcpy(k->params + at, &a->number, size);
        } else {
            unsigned operand = next[a->kind]++;

            k->pointers[operand] = at;
            k->n_pointers++;
            k->sparse |= (uint16_t)(a->sparse << operand);
            step->operands[operand] =
                (struct step_operand){.memory = memory_id_of(a->memory), .offset = a->offset, .extent = a->bytes};
        }
        at = (uint16_t)(at + size);
    }
    k->param_bytes = at;
}
