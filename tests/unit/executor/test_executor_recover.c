/* What becomes of the jobs of an executor that has ended: done, begun anew, or lost. */
#include "backend/memory.h"
#include "front_fixture.h"
#include "tests/support/unit.h"

enum { A = 0, B = 100, C = 200, D = 300, SIZE = 100 /* bytes of each; all lie in one memory */ };

static void at(struct step_operand *o, unsigned offset, unsigned extent)
{
    *o = (struct step_operand){.memory = 1, .offset = offset, .extent = extent};
}

/* Job `i` squares what lies at `in`. The executor has it; where its operands lie is said after that, for no executor
 * here opens memory. */
static void square(struct front_fixture *f, unsigned i, unsigned in, unsigned out)
{
    struct step *step = &f->steps[i];

    *step = (struct step){.op = OP_SQUARE, .n_inputs = 1, .n_outputs = 1, .in_place = -1};
    front_fixture_submit(f, i, 0);
    assert_int_equal(f->sent[i].kind, RECORD_SUBMIT);
    step->plan.dtype = step->plan.out_dtype = DTYPE_F32;
    step->plan.elementwise.count = SIZE / 4;
    at(&step->operands[0], in, SIZE);
    at(&step->operands[1], out, SIZE);
}

static void kernel(struct front_fixture *f, unsigned i)
{
    square(f, i, A, B);
    f->steps[i].plan.kind = PLAN_KERNEL;
}

/* No other executor can be had, so jobs that are begun anew fail, too. */
static void again(struct front_fixture *f, unsigned i)
{
    assert_int_equal(f->done[i], 1);
    assert_int_equal(f->jobs[i].begun_anew, 1);
}

static void ended(struct front_fixture *f, unsigned i, enum error_code code)
{
    assert_int_equal(f->done[i], 1);
    assert_int_equal(f->jobs[i].begun_anew, 0);
    assert_int_equal(f->jobs[i].failed, code != ERROR_NONE);
    if (code != ERROR_NONE)
        assert_int_equal(f->jobs[i].error.code, code);
}

static void lost(struct front_fixture *f, unsigned i)
{
    ended(f, i, ERROR_DEVICE_LOST);
}

/* Jobs of one stream, what each reads and writes, and what becomes of it when their executor ends. */
struct work {
    unsigned in, out;
    bool in_part; /* not every byte of out from its first to its last */
    char then;    /* 'a': begun anew, 'l': lost, 0: there is no such job */
};

static const struct ending {
    const char *why;
    struct work jobs[4];
} endings[] = {
    {"a chain", {{A, B, .then = 'a'}, {B, C, .then = 'a'}, {C, D, .then = 'a'}}},
    {"a job in place is not repeated", {{A, A, .then = 'l'}, {B, C, .then = 'a'}, {D, D, .then = 'l'}}},
    {"the first would read the byte that the last has written",
     {{A, B, .then = 'l'}, {C, D, .then = 'a'}, {C, A + SIZE - 1, .then = 'a'}}},
    {"what lies beside it is other memory", {{B, D, .then = 'a'}, {D, A, .then = 'a'}, {D, C, .then = 'a'}}},
    {"whatever has run, the first writes b before the second reads it",
     {{A, B, .then = 'a'}, {B, C, .then = 'a'}, {D, B, .then = 'a'}, {B, B, .then = 'a'}}},
    {"an earlier one writes it in part",
     {{A, B, .in_part = true, .then = 'a'}, {B, C, .then = 'l'}, {D, B, .then = 'a'}}},
    {"two outputs side by side are as one",
     {{C, A, .then = 'a'}, {C, B, .then = 'a'}, {A + SIZE / 2, D, .then = 'a'}, {C, B, .then = 'a'}}},
};

TEST(test_what_is_begun_anew)
{
    for (unsigned e = 0; e < sizeof(endings) / sizeof(endings[0]); e++) {
        struct front_fixture *f = front_fixture_new();
        const struct work *jobs = endings[e].jobs;

        print_message("%s\n", endings[e].why);
        for (unsigned i = 0; i < 4 && jobs[i].then; i++) {
            square(f, i, jobs[i].in, jobs[i].out);
            f->steps[i].plan.elementwise.count -= jobs[i].in_part;
        }
        front_fixture_end(f);
        for (unsigned i = 0; i < 4 && jobs[i].then; i++) {
            if (jobs[i].then == 'a')
                again(f, i);
            else
                lost(f, i);
            assert_int_equal(f->order[i], i); /* ends come in the order of the jobs */
        }
        front_fixture_free(f);
    }
}

FRONT(test_a_sum_into_what_is_there)
{
    for (unsigned i = 0; i < 2; i++) {
        square(f, i, i ? C : A, i ? D : B);
        f->steps[i].plan = (struct plan){
            .kind = PLAN_GEMM, .dtype = DTYPE_F32, .out_dtype = DTYPE_F32, .gemm = {.m = 5, .n = 5, .batch_count = 1}};
    }
    f->steps[1].plan.gemm.beta = 1;
    front_fixture_end(f);
    again(f, 0);
    lost(f, 1);
}

FRONT(test_it_said_that_it_was_done)
{
    square(f, 0, A, A);
    square(f, 1, B, B);
    front_fixture_put_done(f, 0, 0);
    front_fixture_end(f);
    ended(f, 0, ERROR_NONE);
    lost(f, 1);
}

/* Nor does it count what a job would have written that never began. */
FRONT(test_it_said_what_had_not_begun)
{
    kernel(f, 0);
    square(f, 1, C, D);
    square(f, 2, C, C);
    kernel(f, 3);
    front_fixture_put_lost(f, 0, 7);
    front_fixture_put_lost(f, 1, 7);
    front_fixture_put_lost(f, 2, 0);
    front_fixture_put_lost(f, 3, 0);
    front_fixture_end(f);
    ended(f, 0, ERROR_DEVICE_FAULT);
    assert_non_null(strstr(f->jobs[0].error.message, "ILLEGAL_ADDRESS"));
    for (unsigned i = 1; i < 4; i++)
        again(f, i);
}

/* A word that is reached tells of all before it, too. */
FRONT(test_a_signal)
{
    _Alignas(8) unsigned char words[64] = {0};
    struct backend_memory page = {.kind = MEMORY_MEMFD, .host = words};

    square(f, 0, A, A);
    kernel(f, 1);
    kernel(f, 2);
    square(f, 3, B, C);
    for (unsigned i = 1; i < 4; i++)
        f->jobs[i].signal = (struct backend_signal){.page = &page, .offset = 8, .value = i};
    words[8] = 1;
    front_fixture_end(f);
    ended(f, 0, ERROR_NONE);
    ended(f, 1, ERROR_NONE);
    assert_int_equal(f->jobs[1].ended, REPEAT);
    assert_int_equal(f->jobs[1].n_samples, 0);
    ended(f, 2, ERROR_DEVICE_FAULT);
    again(f, 3);
}

/* The client can write the word, but that does not make its kernel's fault undone. */
FRONT(test_a_forged_signal)
{
    _Alignas(8) unsigned char words[8] = {9};
    struct backend_memory page = {.kind = MEMORY_MEMFD, .host = words};

    kernel(f, 0);
    f->jobs[0].signal = (struct backend_signal){.page = &page, .value = 1};
    front_fixture_put_lost(f, 0, 7);
    front_fixture_end(f);
    ended(f, 0, ERROR_DEVICE_FAULT);
}

/* What takes too long to look at, steps or places, is lost, but not the few jobs of another stream. */
TEST(test_very_many_steps)
{
    for (unsigned places = 0; places < 2; places++) {
        const unsigned n = places ? 1 << 14 : (1 << 16) + 1;
        struct front_fixture *f = front_fixture_new();
        struct step *many = calloc(n, sizeof(*many));

        assert_non_null(many);
        square(f, 0, A, B);
        for (unsigned i = 0; i < n; i++) {
            many[i] = f->steps[0];
            if (places)
                at(&many[i].operands[1], 1000 + 8 * i, 4);
        }
        if (places)
            square(f, 1, C, D);
        f->jobs[places].steps = many;
        f->jobs[places].n_steps = n;
        front_fixture_submit(f, 2, 1);
        front_fixture_end(f);
        for (unsigned i = 0; i <= places; i++)
            lost(f, i);
        again(f, 2);
        front_fixture_free(f);
        free(many);
    }
}

/* An allocation can be registered several times, as if it were several. What the daemon allocated is known. */
TEST(test_memory_that_may_be_the_same)
{
    enum { MADE, MADE_TOO, FOREIGN, FOREIGN_TOO, N_MEMORIES };
    static const struct {
        unsigned in, out;
        bool again;
    } cases[] = {{MADE, MADE_TOO, true},
                 {MADE, FOREIGN, false},
                 {FOREIGN, MADE, false},
                 {FOREIGN, FOREIGN, true},
                 {FOREIGN, FOREIGN_TOO, false}};
    struct backend_memory memory[N_MEMORIES];
    uint32_t ids[N_MEMORIES];
    struct error e;

    for (unsigned i = 0; i < N_MEMORIES; i++) {
        memory[i] = (struct backend_memory){.kind = MEMORY_CUDA_VMM, .made = i < FOREIGN};
        ids[i] = memory_id_new(&e);
        memory_id_set(ids[i], &memory[i]);
    }
    for (unsigned i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct front_fixture *f = front_fixture_new();

        square(f, 0, A, B);
        f->steps[0].operands[0].memory = ids[cases[i].in];
        f->steps[0].operands[1].memory = ids[cases[i].out];
        front_fixture_end(f);
        if (cases[i].again)
            again(f, 0);
        else
            lost(f, 0);
        front_fixture_free(f);
    }
    for (unsigned i = 0; i < N_MEMORIES; i++) {
        memory_id_set(ids[i], NULL);
        memory_id_free(ids[i]);
    }
}
