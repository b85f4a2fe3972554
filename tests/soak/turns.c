/* What the client does: each turn some work, whose answers are checked. */
#include <time.h>

#include "soak.h"

double now_us(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}

/* ---- answers ---- */

static void check(struct soak *s, const struct work *w, const struct kops_error *e)
{
    char told[256];

    s->checked++;
    check_error(s, e);
    if (work_check(w))
        return;
    work_tell(w, told, sizeof(told));
    complain(s, "a wrong answer", told);
}

/* ---- turns ---- */

static void blocking(struct soak *s)
{
    struct work *w = &s->work[0];
    struct kops_result result;
    struct kops_error e;
    double begin;
    bool made;

    if (work_make(w, &s->memory, &made, &e)) {
        refuse_memory(s, &e);
        return;
    }
    if (!made)
        return;
    s->requests++;
    begin = now_us();
    if (w->kind == WORK_SEQUENCE ? kops_sequence_run(s->client, &w->sequence, NULL, &result, &e)
                                 : kops_run(s->client, &w->request, &result, &e)) {
        count_failure(s, work_promise(w), "a run", &e);
        return;
    }
    check(s, w, &e);
    check_times(s, &result, begin);
}

static enum kops_code submit(struct soak *s, struct work *w, kops_ticket *ret_ticket, struct kops_error *e)
{
    struct kops_options options = {.stream = random_below(&s->random, 4)};

    s->requests++;
    if (w->kind == WORK_SEQUENCE)
        return kops_sequence_submit(s->client, &w->sequence, &options, ret_ticket, e);
    w->request.options.stream = options.stream;
    return kops_submit(s->client, &w->request, ret_ticket, e);
}

static void pipelined(struct soak *s)
{
    const unsigned wanted = random_between(&s->random, 2, PIPELINE);
    unsigned order[PIPELINE], n = 0;
    kops_ticket tickets[PIPELINE];
    struct kops_error e, failed = {.code = KOPS_OK};
    bool made = true, done;

    while (n < wanted && made && !failed.code) {
        if (work_make(&s->work[n], &s->memory, &made, &failed) || !made || submit(s, &s->work[n], &tickets[n], &failed))
            break;
        check_error(s, &failed);
        if (random_chance(&s->random, 8) && kops_cancel(s->client, tickets[n], &e))
            complain(s, "cancelling", e.message);
        order[n] = n;
        n++;
    }
    /* Each ends once, in whatever order it is asked for. */
    for (unsigned i = n; i > 0; i--) {
        const unsigned pick = random_below(&s->random, i), k = order[pick];

        order[pick] = order[i - 1];
        if (random_chance(&s->random, 20) && kops_poll(s->client, tickets[k], &done, &e))
            complain(s, "asking for a ticket", e.message);
        if (random_chance(&s->random, 4) && kops_cancel(s->client, tickets[k], &e))
            complain(s, "cancelling", e.message);
        if (!kops_wait(s->client, tickets[k], 0, NULL, &e))
            check(s, &s->work[k], &e);
        else if (e.code == KOPS_ERR_CANCELLED)
            s->errors[e.code]++;
        else
            count_failure(s, EXPECT_TICKET | work_promise(&s->work[k]), "a ticket", &e);
    }
    if (failed.code)
        count_failure(s, EXPECT_AGAIN, "a pipeline", &failed);
}

double kept_value(unsigned tensor, unsigned i)
{
    return (double)((i * 7 + tensor * 3) % 17) - 8;
}

double kept_sum(unsigned i)
{
    return kept_value(0, i) + kept_value(1, i);
}

float *vector_data(const struct kops_tensor *t)
{
    return (float *)(void *)((char *)kops_buffer_data(t->buffer) + t->offset);
}

bool take_vector(struct soak *s, struct kops_tensor *ret)
{
    struct kops_error e;

    *ret = kops_vector(NULL, KOPS_F32, WITNESS);
    if (!memory_take(&s->memory, WITNESS * sizeof(float), &ret->buffer, &ret->offset, &e))
        return ret->buffer;
    refuse_memory(s, &e);
    return false;
}

void check_vector(struct soak *s, const struct kops_tensor *t, double (*right)(unsigned i), const char *what)
{
    const float *data = vector_data(t);

    s->checked++;
    for (unsigned i = 0; i < WITNESS; i++)
        if ((double)data[i] != right(i)) {
            complain(s, "a wrong answer", what);
            return;
        }
}

/* Memory of the client's own keeps its elements when the daemon starts anew. */
void check_kept(struct soak *s)
{
    const float *data = kops_buffer_data(s->witness);

    s->checked++;
    for (unsigned i = 0; i < 2 * WITNESS; i++)
        if ((double)data[i] != kept_value(i / WITNESS, i % WITNESS)) {
            complain(s, "memory that is kept", "it is not what it was");
            return;
        }
}

/* Adds in place, one after the other in their stream: none is done twice, whatever was lost. */
static void accumulate(struct soak *s)
{
    const unsigned wanted = random_between(&s->random, 1, PIPELINE / 2);
    struct kops_tensor sum, inputs[2];
    const struct kops_request request = {
        .op = "add", .inputs = inputs, .n_inputs = 2, .outputs = &sum, .n_outputs = 1, .options = {.stream = 7}};
    unsigned sent = 0, ended = 0;
    kops_ticket tickets[PIPELINE];
    struct kops_error e, failed = {.code = KOPS_OK};
    float *data;

    if (!take_vector(s, &sum))
        return;
    data = vector_data(&sum);
    for (unsigned i = 0; i < WITNESS; i++)
        data[i] = 0;
    inputs[0] = sum;
    inputs[1] = s->kept[0];
    s->requests += wanted;
    while (sent < wanted && !kops_submit(s->client, &request, &tickets[sent], &failed))
        sent++;
    for (unsigned i = 0; i < sent; i++) {
        if (!kops_wait(s->client, tickets[i], 0, NULL, &e)) {
            check_error(s, &e);
            ended++;
        } else {
            failed = e;
        }
    }
    if (failed.code)
        count_failure(s, EXPECT_TICKET, "a sum", &failed);
    s->checked++;
    for (unsigned i = 0; i < WITNESS; i++) {
        const double one = kept_value(0, i), times = one != 0 ? (double)data[i] / one : ended;

        if (times < ended || times > sent) {
            complain(s, "a wrong answer", "of adds in place");
            break;
        }
    }
}

/* (a + b)² */
static double right_of_program(unsigned i)
{
    return kept_sum(i) * kept_sum(i);
}

static void run_program(struct soak *s)
{
    static const uint32_t places[] = {0, 1, 2, 3};
    const struct kops_step steps[] = {
        {.op = "add", .inputs = places, .n_inputs = 2, .outputs = places + 2, .n_outputs = 1},
        {.op = "square", .inputs = places + 2, .n_inputs = 1, .outputs = places + 3, .n_outputs = 1}};
    const struct kops_sequence sequence = {s->kept, 4, steps, 2};
    struct kops_binding binding = {.tensor = 3};
    struct kops_tensor out;
    struct kops_error e;

    if (!take_vector(s, &out))
        return;
    binding.buffer = out.buffer;
    binding.offset = out.offset;
    s->requests += s->program ? 0 : 1;
    if (!s->program && kops_program_define(s->client, &sequence, NULL, &s->program, &e)) {
        count_failure(s, EXPECT_AGAIN | EXPECT_BEGUN_ANEW, "a program", &e);
        return;
    }
    s->requests++;
    if (kops_program_run(s->program, &binding, 1, NULL, NULL, &e))
        count_failure(s, EXPECT_BEGUN_ANEW, "a program", &e);
    else
        check_vector(s, &out, right_of_program, "of a program");
    check_kept(s);
    if (random_chance(&s->random, 10))
        s->program = kops_program_release(s->program);
}

/* out = 2 a */
static const char source_text[] = "extern \"C\" __global__ void custom_kernel(float *out, const float *in, int n)\n"
                                  "{\n"
                                  "    int i = blockIdx.x * blockDim.x + threadIdx.x;\n"
                                  "    if (i < n)\n"
                                  "        out[i] = 2 * in[i];\n"
                                  "}\n";

static enum kops_code make_kernel(struct soak *s, struct kops_error *e)
{
    static const struct kops_param params[] = {
        {.name = "out", .kind = KOPS_PARAM_OUT, .dtype = KOPS_F32, .rank = 1, .shape = {"n"}},
        {.name = "in", .kind = KOPS_PARAM_IN, .dtype = KOPS_F32, .rank = 1, .shape = {"n"}},
        {.name = "n", .kind = KOPS_PARAM_SCALAR, .dtype = KOPS_I32}};
    static const struct kops_source source = {.text = source_text};
    static const struct kops_signature signature = {.entry = "custom_kernel",
                                                    .params = params,
                                                    .n_params = 3,
                                                    .geometry = {.grid = {"ceil_div(n, 128)"}, .block = {"128"}}};

    s->requests++;
    return kops_kernel_compile(s->client, &source, &signature, &s->kernel, NULL, e);
}

static double right_of_launch(unsigned i)
{
    return 2 * kept_value(0, i);
}

static void launch(struct soak *s)
{
    struct kops_argument arguments[3];
    struct kops_tensor out;
    struct kops_error e;

    if (!s->kernel && make_kernel(s, &e)) {
        if (e.code == KOPS_ERR_COMPILE_FAILED) /* its process may have been killed */
            s->errors[e.code]++;
        else
            count_failure(s, EXPECT_AGAIN, "a kernel", &e);
        return;
    }
    if (!take_vector(s, &out))
        return;
    arguments[0] = kops_arg_tensor(&out);
    arguments[1] = kops_arg_tensor(&s->kept[0]);
    arguments[2] = kops_arg_int(WITNESS);
    s->requests++;
    if (kops_kernel_launch(s->kernel, arguments, 3, NULL, NULL, &e)) {
        count_failure(s, EXPECT_ONCE, "a launch", &e);
        return;
    }
    check_vector(s, &out, right_of_launch, "of a kernel");
    if (random_chance(&s->random, 10))
        s->kernel = kops_kernel_free(s->kernel);
}

static void refused(struct soak *s)
{
    struct kops_tensor t[3] = {s->kept[0], s->kept[1], s->kept[2]};
    struct kops_error e;

    t[1].shape[0] -= 1;
    s->requests++;
    if (kops_add(s->client, &t[0], &t[1], &t[2], NULL, NULL, &e) == KOPS_ERR_SHAPE_MISMATCH)
        s->checked++;
    else if (e.code)
        count_failure(s, EXPECT_AGAIN | EXPECT_BEGUN_ANEW, "a refusal", &e);
    else
        complain(s, "a refusal", "shapes that do not fit were added");
}

static void allocate(struct soak *s)
{
    const size_t bytes = random_between(&s->random, 1, 100000);
    struct kops_error e;
    kops_buffer *buffer;
    const char *data;

    s->requests++;
    if (memory_made(s->client, bytes, &buffer, &e)) {
        count_failure(s, EXPECT_AGAIN | EXPECT_BEGUN_ANEW, "an allocation", &e);
        return;
    }
    s->checked++;
    data = kops_buffer_data(buffer);
    for (size_t i = 0; i < bytes; i++)
        if (data[i]) {
            complain(s, "an allocation", "it is not zeroed");
            break;
        }
    kops_buffer_release(buffer);
}

static void ping(struct soak *s)
{
    struct kops_error e;

    s->requests++;
    if (kops_ping(s->client, 0, &e))
        count_failure(s, EXPECT_AGAIN, "a ping", &e);
}

void turn(struct soak *s)
{
    const unsigned what = random_below(&s->random, 100);
    const double begin_us = now_us();

    s->since = expect_now();
    if (s->stream && random_chance(&s->random, 20))
        stream_turn(s);
    else if (what < 34)
        blocking(s);
    else if (what < 50)
        repeats_turn(s);
    else if (what < 57)
        leave_turn(s);
    else if (what < 70)
        pipelined(s);
    else if (what < 78)
        accumulate(s);
    else if (what < 87)
        run_program(s);
    else if (what < 89)
        refused(s);
    else if (what < 91)
        allocate(s);
    else if (what < 96 && s->kernels)
        launch(s);
    else
        ping(s);
    if (!memory_reuse(&s->memory))
        complain(s, "memory", "something was written outside of a tensor");
    if (s->spoiled)
        memory_drop(&s->memory);
    else if (now_us() - begin_us > s->longest_us)
        s->longest_us = now_us() - begin_us;
    if (s->asks || !s->known || random_chance(&s->random, 2))
        check_connection(s);
    s->asks = false;
    s->spoiled = false;
    if (random_chance(&s->random, 4))
        memory_drop_one(&s->memory);
}
