// The heap of a device: malloc, free, new and delete in a kernel. What a kernel has not freed stays until the next run
// of new variables.
//
// Blocks are apart, so that what lies beside one belongs to none. A freed block is given again as late as possible.
#include "host.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <sys/mman.h>

namespace kops
{

namespace
{

enum : size_t { HEAP_BYTES = 8 << 20, APART = 16 }; // as a device has if nobody asks for more

struct Block {
    size_t size;
    bool freed;
};

std::map<uintptr_t, Block> blocks;
uintptr_t heap, next;

bool in_heap(uintptr_t address)
{
    return heap && address - heap < HEAP_BYTES;
}

// The first block that ends behind the address.
std::map<uintptr_t, Block>::iterator after(uintptr_t address)
{
    auto at = blocks.upper_bound(address);
    if (at != blocks.begin()) {
        auto before = std::prev(at);
        if (before->first + before->second.size + APART > address)
            return before;
    }
    return at;
}

// Where so much is free, from `next` to the end; 0: nowhere.
uintptr_t find(size_t size, size_t alignment)
{
    uintptr_t end = heap + HEAP_BYTES;
    uintptr_t at = (next + alignment - 1) & ~(alignment - 1);
    while (at < end && size + APART <= end - at) {
        auto block = after(at);
        if (block == blocks.end() || block->first >= at + size + APART)
            return at;
        if (block->second.freed)
            blocks.erase(block);
        else
            at = (block->first + block->second.size + APART + alignment - 1) & ~(alignment - 1);
    }
    return 0;
}

void *allocate(size_t size, size_t alignment)
{
    if (!run.current)
        return aligned_alloc(alignment, (size + alignment - 1) & ~(alignment - 1));
    if (!heap) {
        void *memory =
            mmap(nullptr, HEAP_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (memory == MAP_FAILED)
            return nullptr;
        heap = next = reinterpret_cast<uintptr_t>(memory);
    }
    if (size > HEAP_BYTES)
        return nullptr;
    size = size ? size : 1;
    uintptr_t at = find(size, alignment);
    if (!at) {
        next = heap;
        at = find(size, alignment);
    }
    if (!at)
        return nullptr;
    blocks[at] = {size, false};
    next = at + size + APART;
    memset(reinterpret_cast<void *>(at), 0xff, size); // anything; as numbers, NaN
    return reinterpret_cast<void *>(at);
}

void release(void *pointer, uintptr_t pc)
{
    uintptr_t address = reinterpret_cast<uintptr_t>(pointer);
    if (!run.current && !in_heap(address))
        free(pointer);
    if (!pointer || !run.current)
        return;
    auto at = blocks.find(address);
    if (at != blocks.end() && !at->second.freed) {
        at->second.freed = true;
        return;
    }
    Report &report = report_start(WILD_ACCESS, run.current);
    report.pc = pc;
    snprintf(report.text, sizeof report.text,
             at == blocks.end() ? "memory is freed that malloc or new has not given" : "memory is freed a second time");
    stop();
}

} // namespace

bool heap_check(uintptr_t address, size_t size, Access access, uintptr_t pc)
{
    if (!in_heap(address))
        return false;
    const char *verb = access == READ ? "read" : access == WRITE ? "write" : "atomic access";
    auto at = blocks.upper_bound(address);
    bool none = at == blocks.begin();
    const Block block = none ? Block{0, false} : (--at)->second;
    size_t offset = none ? 0 : address - at->first;
    if (offset < block.size && size <= block.size - offset && !block.freed)
        return true;
    Report &report = report_start(none || block.freed ? WILD_ACCESS : OUT_OF_BOUNDS, run.current);
    report.address = address;
    report.size = size;
    report.access = access;
    report.pc = pc;
    if (none)
        snprintf(report.text, sizeof report.text, "%s of %zu bytes that malloc or new has not given", verb, size);
    else
        snprintf(report.text, sizeof report.text, "%s of %zu bytes at byte %zu of a heap block of %zu bytes%s", verb,
                 size, offset, block.size, block.freed ? ", which is freed" : "");
    stop();
}

void heap_renew()
{
    blocks.clear();
    next = heap;
}

} // namespace kops

extern "C" {

void *__wrap_malloc(size_t size)
{
    return kops::allocate(size, 16);
}

void *__wrap_calloc(size_t n, size_t size)
{
    size_t bytes = 0;
    void *memory = __builtin_mul_overflow(n, size, &bytes) ? nullptr : kops::allocate(bytes, 16);
    return memory ? memset(memory, 0, bytes) : nullptr;
}

void __wrap_free(void *pointer)
{
    kops::release(pointer, KOPS_PC);
}

// What `new` and `delete` call, by their symbols: of single things and arrays, with an alignment, with a size.
#define NEW(SYMBOL)                                                                                                    \
    void *__wrap_##SYMBOL(size_t size)                                                                                 \
    {                                                                                                                  \
        return kops::allocate(size, 16);                                                                               \
    }
#define NEW_ALIGNED(SYMBOL)                                                                                            \
    void *__wrap_##SYMBOL(size_t size, size_t alignment)                                                               \
    {                                                                                                                  \
        return kops::allocate(size, alignment);                                                                        \
    }
#define DELETE(SYMBOL)                                                                                                 \
    void __wrap_##SYMBOL(void *pointer, size_t, size_t)                                                                \
    {                                                                                                                  \
        kops::release(pointer, KOPS_PC);                                                                               \
    }

NEW(_Znwm)
NEW(_Znam)
NEW(_ZnwmRKSt9nothrow_t)
NEW(_ZnamRKSt9nothrow_t)
NEW_ALIGNED(_ZnwmSt11align_val_t)
NEW_ALIGNED(_ZnamSt11align_val_t)
DELETE(_ZdlPv)
DELETE(_ZdaPv)
DELETE(_ZdlPvm)
DELETE(_ZdaPvm)
DELETE(_ZdlPvSt11align_val_t)
DELETE(_ZdaPvSt11align_val_t)
DELETE(_ZdlPvmSt11align_val_t)
DELETE(_ZdaPvmSt11align_val_t)
}
