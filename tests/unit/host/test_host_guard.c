/* Pages that vanish under a job: it fails, its neighbours and later jobs do not, and a fault elsewhere still ends the
 * process. */
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "support.h"
#include "tests/unit/memory_id_of.h"

enum { EDGE = 300, PAGE_BYTES = 4096 };

/* Shared memory that the test can cut. */
struct shared {
    struct backend_memory memory;
    int fd;
};

static void shared_init(struct shared *s, size_t size)
{
    s->fd = memfd_create("test", MFD_CLOEXEC);
    assert_true(s->fd >= 0);
    assert_int_equal(ftruncate(s->fd, (off_t)size), 0);
    s->memory = (struct backend_memory){.kind = MEMORY_MEMFD, .size = size, .writable = true};
    s->memory.host = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, s->fd, 0);
    assert_true(s->memory.host != MAP_FAILED);
}

static void shared_deinit(struct shared *s)
{
    munmap(s->memory.host, s->memory.size);
    close(s->fd);
}

/* Three square f32 matrices in shared memory and a job on them. */
struct work {
    struct shared memories[3];
    struct operand operands[3];
    struct backend_job job;
};

static void work_init(struct work *w, enum op_id op, const char *variant)
{
    const int64_t shape[] = {EDGE, EDGE};

    for (unsigned i = 0; i < 3; i++) {
        operand_init(&w->operands[i], DTYPE_F32, 2, shape, CONTIGUOUS);
        shared_init(&w->memories[i], w->operands[i].memory.size);
        memcpy(w->memories[i].memory.host, w->operands[i].memory.host, w->memories[i].memory.size);
    }
    job_init(&w->job, op, (struct operand *[]){&w->operands[0], &w->operands[1]}, &w->operands[2], NULL);
    for (unsigned i = 0; i < 3; i++)
        w->job.steps->operands[i].memory = memory_id_of(&w->memories[i].memory);
    step_copy_variant(w->job.steps->variant, variant);
}

static void work_deinit(struct work *w)
{
    for (unsigned i = 0; i < 3; i++) {
        operand_deinit(&w->operands[i]);
        shared_deinit(&w->memories[i]);
    }
}

static void resubmit(struct fixture *f, struct backend_job *job)
{
    job->impl = NULL;
    job_run(f, job);
}

static void check_fault(struct fixture *f, enum op_id op, const char *variant, unsigned cut, off_t keep)
{
    struct work broken, whole;

    work_init(&broken, op, variant);
    work_init(&whole, op, variant);
    assert_int_equal(ftruncate(broken.memories[cut].fd, keep), 0);
    job_run(f, &broken.job);
    assert_true(broken.job.failed);
    assert_int_equal(broken.job.error.code, ERROR_MEMORY_FAULT);
    /* Every worker goes on; the memory that was cut stays unusable rather than being silently replaced. */
    job_run(f, &whole.job);
    assert_false(whole.job.failed);
    resubmit(f, &broken.job);
    assert_true(broken.job.failed);
    assert_int_equal(broken.job.error.code, ERROR_MEMORY_FAULT);
    resubmit(f, &whole.job);
    assert_false(whole.job.failed);
    work_deinit(&broken);
    work_deinit(&whole);
}

static void test_every_kernel(void **state)
{
    static const enum op_id ops[] = {OP_ADD, OP_GEMM};
    struct fixture f;

    fixture_open(&f, &(struct backend_config){.host_threads = 4});
    for (unsigned i = 0; i < COUNT(ops); i++)
        for (const char *const *v = host_backend.variants(f.device, op_get(ops[i]), DTYPE_F32); *v; v++)
            for (unsigned cut = 0; cut < 3; cut++) {
                check_fault(&f, ops[i], *v, cut, 0);
                check_fault(&f, ops[i], *v, cut, PAGE_BYTES * 40);
            }
    fixture_close(&f);
}

/* On the loop thread, where tiny jobs run. */
static void test_tiny_job(void **state)
{
    const int64_t shape[] = {10};
    struct operand o;
    struct shared s;
    struct backend_job job;
    struct fixture f;

    fixture_open(&f, NULL);
    operand_init(&o, DTYPE_F32, 1, shape, CONTIGUOUS);
    shared_init(&s, PAGE_BYTES);
    job_init(&job, OP_ADD, (struct operand *[]){&o, &o}, &o, NULL);
    job.steps->operands[2].memory = memory_id_of(&s.memory);
    job_run(&f, &job);
    assert_false(job.failed);
    assert_int_equal(ftruncate(s.fd, 0), 0);
    resubmit(&f, &job);
    assert_int_equal(job.error.code, ERROR_MEMORY_FAULT);
    operand_deinit(&o);
    shared_deinit(&s);
    fixture_close(&f);
}

/* While it runs, whenever that may be. */
static void test_cut_while_running(void **state)
{
    struct work w;
    struct fixture f;

    fixture_open(&f, NULL);
    work_init(&w, OP_ADD, NULL);
    w.job.repeat = 1000000000;
    w.job.timing = false;
    host_backend.submit(f.stream, &w.job);
    assert_int_equal(ftruncate(w.memories[1].fd, 0), 0);
    fixture_wait(&f, &w.job);
    assert_true(w.job.failed);
    assert_int_equal(w.job.error.code, ERROR_MEMORY_FAULT);
    work_deinit(&w);
    fixture_close(&f);
}

/* Two streams on the same broken memory, one after the other having patched it, both fail. */
static void test_shared_by_streams(void **state)
{
    struct work first, second;
    struct backend_stream *other;
    struct fixture f;
    struct error e;

    for (unsigned round = 0; round < 20; round++) {
        fixture_open(&f, NULL);
        assert_int_equal(host_backend.stream_new(f.device, PRIORITY_NORMAL, &other, &e), 0);
        work_init(&first, OP_ADD, NULL);
        work_init(&second, OP_ADD, NULL);
        second.job.steps->operands[0] = first.job.steps->operands[0];
        second.job.steps->plan.elementwise.count = second.job.steps->plan.elementwise.shape[0] =
            5000; /* for a worker, not the loop thread */
        assert_int_equal(ftruncate(first.memories[0].fd, 0), 0);
        first.job.repeat = second.job.repeat = 50;
        first.job.timing = second.job.timing = false;
        host_backend.submit(f.stream, &first.job);
        host_backend.submit(other, &second.job);
        fixture_wait(&f, NULL);
        assert_int_equal(first.job.error.code, ERROR_MEMORY_FAULT);
        assert_int_equal(second.job.error.code, ERROR_MEMORY_FAULT);
        work_deinit(&first);
        work_deinit(&second);
        host_backend.stream_free(other);
        fixture_close(&f);
    }
}

static void test_fault_elsewhere(void **state)
{
    struct fixture f;
    struct shared s;
    int status;
    pid_t child;

    signal(SIGBUS, SIG_DFL);
    fixture_open(&f, NULL); /* the guard is installed over that */
    shared_init(&s, PAGE_BYTES);
    assert_int_equal(ftruncate(s.fd, 0), 0);
    child = fork();
    if (child == 0) {
        setrlimit(RLIMIT_CORE, &(struct rlimit){0, 0});
        _exit(*(volatile unsigned char *)s.memory.host);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    /* A sanitizer's own handler, which was there before, exits instead. */
    assert_true((WIFSIGNALED(status) && WTERMSIG(status) == SIGBUS) || (WIFEXITED(status) && WEXITSTATUS(status) != 0));
    shared_deinit(&s);
    fixture_close(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_kernel),      cmocka_unit_test(test_tiny_job),
        cmocka_unit_test(test_cut_while_running), cmocka_unit_test(test_shared_by_streams),
        cmocka_unit_test(test_fault_elsewhere),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
