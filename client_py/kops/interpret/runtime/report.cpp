// Ending a run: what is reported, signals of the processor, and text that the kernel prints.
#include "host.h"

#include <csignal>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

namespace kops
{

namespace
{

char output[64 << 10];
size_t n_output;

const int SIGNALS[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGRTMAX - 3};
enum { N_SIGNALS = sizeof SIGNALS / sizeof *SIGNALS, SIGNAL_STACK = 64 << 10, TIMER_SIGNAL = N_SIGNALS - 1 };
struct sigaction before[N_SIGNALS];
stack_t stack_before;
timer_t timer;
bool has_timer;
pid_t run_thread;
char signal_stack[SIGNAL_STACK];

uintptr_t counter_of(const ucontext_t *context)
{
#if defined(__x86_64__)
    return uintptr_t(context->uc_mcontext.gregs[REG_RIP]);
#else
    return uintptr_t(context->uc_mcontext.pc);
#endif
}

Kind kind_of(int signal, bool guard)
{
    switch (signal) {
    case SIGFPE:
        return DIVISION_BY_ZERO;
    case SIGILL:
    case SIGTRAP:
        return TRAP;
    default:
        return guard ? STACK_OVERFLOW : WILD_ACCESS;
    }
}

// What this process did before with a signal that is not for a run.
void hand_on(int number, siginfo_t *info, void *context)
{
    for (unsigned i = 0; i < N_SIGNALS; i++) {
        if (SIGNALS[i] != number)
            continue;
        if (before[i].sa_flags & SA_SIGINFO)
            before[i].sa_sigaction(number, info, context);
        else if (before[i].sa_handler != SIG_DFL && before[i].sa_handler != SIG_IGN)
            before[i].sa_handler(number);
        else
            sigaction(number, &before[i], nullptr); // it happens again
    }
}

// x86-64 cannot divide the least number by -1. A GPU gives that number again, and no rest.
bool passes_division(ucontext_t *context)
{
#if defined(__x86_64__)
    greg_t *registers = context->uc_mcontext.gregs;
    const uint8_t *start = reinterpret_cast<const uint8_t *>(registers[REG_RIP]), *code = start;
    bool is_wide = (*code & 0xf8) == 0x48;
    code += (*code & 0xf0) == 0x40; // REX
    if (code[0] != 0xf7 || (code[1] >> 3 & 7) != 7)
        return false;
    bool is_least = is_wide ? registers[REG_RAX] == INT64_MIN && registers[REG_RDX] == -1
                            : uint32_t(registers[REG_RAX]) == 1u << 31 && uint32_t(registers[REG_RDX]) == ~0u;
    if (!is_least)
        return false;
    unsigned mode = code[1] >> 6, base = code[1] & 7;
    code += 2;
    if (mode != 3 && base == 4)
        base = *code++ & 7;
    code += mode == 1 ? 1 : mode == 2 || (mode == 0 && base == 5) ? 4 : 0;
    registers[REG_RDX] = 0;
    registers[REG_RIP] += code - start;
    return true;
#else
    (void)context;
    return false;
#endif
}

// The kernel did what the processor refuses, or its time is over.
void on_signal(int number, siginfo_t *info, void *context)
{
    bool is_timer = number == SIGNALS[TIMER_SIGNAL];
    if (pid_t(syscall(SYS_gettid)) != run_thread || !run.current) {
        if (!is_timer) // which comes again
            hand_on(number, info, context);
        return;
    }
    if (number == SIGFPE && passes_division(static_cast<ucontext_t *>(context)))
        return;
    uintptr_t counter = counter_of(static_cast<const ucontext_t *>(context)) + 1;
    if (is_timer) {
        report_start(TIMEOUT, run.current).pc = counter;
        stop();
    }
    bool guard = false, is_access = number == SIGSEGV || number == SIGBUS;
    uintptr_t address = reinterpret_cast<uintptr_t>(info->si_addr);
    if (is_access)
        fiber_of_address(address, &guard);
    Report &report = report_start(kind_of(number, guard), run.current);
    report.where = is_access ? NOWHERE : CODE;
    report.address = address;
    report.access = -1;
    report.pc = counter;
    stop();
}

// Ends what never comes to a place where the clock is looked at: a loop without a statement.
void timer_start(double seconds)
{
    sigevent event = {};
    event.sigev_notify = SIGEV_THREAD_ID;
    event.sigev_signo = SIGNALS[TIMER_SIGNAL];
    event._sigev_un._tid = run_thread;
    has_timer = timer_create(CLOCK_MONOTONIC, &event, &timer) == 0;
    if (!has_timer)
        return;
    seconds += 0.2;
    itimerspec when = {};
    when.it_value.tv_sec = time_t(seconds);
    when.it_value.tv_nsec = long((seconds - double(when.it_value.tv_sec)) * 1e9);
    when.it_interval.tv_nsec = 100'000'000;
    timer_settime(timer, 0, &when, nullptr);
}

} // namespace

bool signals_take()
{
    run_thread = pid_t(syscall(SYS_gettid));
    stack_t stack = {};
    stack.ss_sp = signal_stack;
    stack.ss_size = sizeof signal_stack;
    if (sigaltstack(&stack, &stack_before))
        return false;
    struct sigaction action = {};
    action.sa_sigaction = on_signal;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
    sigemptyset(&action.sa_mask);
    for (unsigned i = 0; i < N_SIGNALS; i++)
        sigaction(SIGNALS[i], &action, &before[i]);
    timer_start(run.launch->timeout);
    return true;
}

void signals_give_back()
{
    if (has_timer)
        timer_delete(timer);
    for (unsigned i = 0; i < N_SIGNALS; i++)
        sigaction(SIGNALS[i], &before[i], nullptr);
    sigaltstack(&stack_before, nullptr);
}

void stop()
{
    // What a thread does with a value that nobody has written follows from that.
    if (run.has_unwritten && run.report->kind != RACE && run.report->kind != INTERRUPTED)
        *run.report = run.unwritten;
    run.current = nullptr;
    siglongjmp(run.stopped, 1);
}

Report &report_start(Kind kind, const Fiber *fiber)
{
    Report &report = *run.report;
    report = Report{};
    report.kind = kind;
    report.region = -1;
    memcpy(report.block, &run.block, sizeof report.block);
    if (fiber) {
        report.has_thread = 1;
        memcpy(report.thread, &fiber->thread, sizeof report.thread);
        const Overflow &overflow = run.overflow;
        if (overflow.sign && overflow.fiber == fiber->index) {
            snprintf(report.overflow, sizeof report.overflow, "%lld %c %lld in line %u, which %s cannot hold",
                     static_cast<long long>(overflow.a), overflow.sign, static_cast<long long>(overflow.b),
                     overflow.place.line, overflow.type);
            report.wrapped = overflow.wrapped;
        }
    }
    return report;
}

void report_place(Report &report, const Place &place)
{
    report.line = place.line;
    snprintf(report.file, sizeof report.file, "%s", place.file);
}

void report_other(Report &report, const Fiber &fiber)
{
    report.has_other = 1;
    memcpy(report.other, &fiber.thread, sizeof report.other);
    if (fiber.state == AT_BARRIER || fiber.state == AT_COLLECTIVE) {
        report.other_line = fiber.place.line;
        snprintf(report.other_file, sizeof report.other_file, "%s", fiber.place.file);
    }
}

// In the stack of the caller of the run: Python must not be called on a fiber's.
void output_flush()
{
    size_t n = n_output;
    n_output = 0;
    if (run.launch->progress(output, n) && run.report->kind == NOTHING) {
        report_start(INTERRUPTED, nullptr);
        stop();
    }
}

} // namespace kops

extern "C" {

// Text stays here until the scheduler hands it to Python; when there is no room the thread waits for that.
int __wrap_vprintf(const char *format, va_list arguments)
{
    using namespace kops;
    for (int attempt = 0;; attempt++) {
        va_list copy;
        va_copy(copy, arguments);
        int n = vsnprintf(output + n_output, sizeof output - n_output, format, copy);
        va_end(copy);
        if (n < 0)
            return n;
        if (size_t(n) < sizeof output - n_output || attempt) {
            size_t room = sizeof output - n_output - 1;
            n_output += size_t(n) < room ? size_t(n) : room;
            return n;
        }
        run.full = true;
        fiber_spin();
    }
}

int __wrap_printf(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    int n = __wrap_vprintf(format, arguments);
    va_end(arguments);
    return n;
}

int __wrap_puts(const char *text)
{
    return __wrap_printf("%s\n", text);
}

int __wrap_putchar(int c)
{
    __wrap_printf("%c", c);
    return c;
}

void kops_host_trap(const char *text, const char *file, unsigned line)
{
    kops::Report &report = kops::report_start(text ? kops::ASSERTION : kops::TRAP, kops::run.current);
    kops::report_place(report, {file, line, 0});
    if (text)
        snprintf(report.text, sizeof report.text, "%s", text);
    kops::stop();
}

void kops_host_misaligned(size_t size, const char *file, unsigned line)
{
    kops::Report &report = kops::report_start(kops::MISALIGNED, kops::run.current);
    kops::report_place(report, {file, line, 0});
    snprintf(report.text, sizeof report.text, "a copy of %zu bytes from or to an address that is no multiple of %zu",
             size, size);
    kops::stop();
}

void kops_host_unsupported(const char *text, const char *file, unsigned line)
{
    kops::Report &report = kops::report_start(kops::UNSUPPORTED, kops::run.current);
    kops::report_place(report, {file, line, 0});
    snprintf(report.text, sizeof report.text, "%s", text);
    kops::stop();
}

void __wrap___assert_fail(const char *text, const char *file, unsigned line, const char *)
{
    kops_host_trap(text, file, line);
}

void __wrap_abort()
{
    kops::Report &report = kops::report_start(kops::TRAP, kops::run.current);
    report.pc = KOPS_PC;
    kops::stop();
}
}
