// Where an address belongs, and whether the kernel may use it. Called before the access happens.
#include "host.h"

#include <cstdio>
#include <cstring>
#include <link.h>
#include <vector>

// The variables that say which thread this is.
extern "C" char __start_kops_built_in[], __stop_kops_built_in[];

namespace kops
{

namespace
{

// The kernel's object as it is in memory, and what its variables were when it was loaded.
struct Module {
    const void *entry;
    uintptr_t image, image_end;
    size_t tls_module, tls_size;
    struct Variables {
        char *address;
        std::vector<char> bytes;
    };
    std::vector<Variables> variables;
};

std::vector<Module> modules;

int examine(dl_phdr_info *info, size_t, void *context)
{
    Module &module = *static_cast<Module *>(context);
    uintptr_t entry = reinterpret_cast<uintptr_t>(module.entry), low = UINTPTR_MAX, high = 0, sealed = 0,
              sealed_end = 0;
    for (unsigned i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) &part = info->dlpi_phdr[i];
        uintptr_t start = info->dlpi_addr + part.p_vaddr, end = start + part.p_memsz;
        if (part.p_type == PT_LOAD) {
            low = start < low ? start : low;
            high = end > high ? end : high;
        } else if (part.p_type == PT_GNU_RELRO) {
            sealed = start;
            sealed_end = (end + 4095) & ~uintptr_t(4095);
        }
    }
    if (entry < low || entry >= high)
        return 0;
    module.image = low;
    module.image_end = high;
    for (unsigned i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) &part = info->dlpi_phdr[i];
        uintptr_t start = info->dlpi_addr + part.p_vaddr, end = start + part.p_memsz;
        if (part.p_type == PT_TLS) {
            module.tls_module = info->dlpi_tls_modid;
            module.tls_size = part.p_memsz;
        } else if (part.p_type == PT_LOAD && (part.p_flags & PF_W)) {
            if (start >= sealed && start < sealed_end)
                start = sealed_end;
            if (start < end) {
                char *from = reinterpret_cast<char *>(start);
                module.variables.push_back({from, std::vector<char>(from, from + (end - start))});
            }
        }
    }
    return 1;
}

Module *module_of(const void *entry)
{
    for (Module &module : modules) {
        if (module.entry == entry)
            return &module;
    }
    Module module{};
    module.entry = entry;
    if (!dl_iterate_phdr(examine, &module))
        return nullptr;
    modules.push_back(module);
    return &modules.back();
}

struct TlsIndex {
    size_t module, offset;
};

const Region *nearest(uintptr_t address)
{
    const Launch &launch = *run.launch;
    for (uint32_t i = 0; i < launch.n_regions; i++) {
        if (address >= launch.regions[i].low && address < launch.regions[i].high)
            return &launch.regions[i];
    }
    return nullptr;
}

// `region`: the tensor's, which only one of TENSOR has.
[[noreturn]] void refuse(Kind kind, Where where, uintptr_t address, size_t size, Access access, uintptr_t pc,
                         const Region *region = nullptr)
{
    Report &report = report_start(kind, run.current);
    if (region)
        report.region = int32_t(region - run.launch->regions);
    report.where = where;
    report.address = address;
    report.size = size;
    report.access = access;
    report.pc = pc;
    stop();
}

void check_region(const Region &region, uintptr_t address, size_t size, Access access, uintptr_t pc)
{
    Kind kind = NOTHING;
    if (address < region.start || address > region.end || region.end - address < size)
        kind = OUT_OF_BOUNDS;
    else if (access != READ && !region.writable)
        kind = READ_ONLY;
    if (kind)
        refuse(kind, TENSOR, address, size, access, pc, &region);
}

void check_shared(uintptr_t start, size_t offset, size_t limit, Where where, size_t size, Access access, uintptr_t pc)
{
    if (offset > limit || limit - offset < size)
        refuse(OUT_OF_BOUNDS, where, offset, size, access, pc);
    if (run.launch->checks)
        races_check(reinterpret_cast<const char *>(start + offset), shared_offset(start + offset), size, access, pc);
}

// What is neither of a tensor nor shared: variables of the kernel's object, or nothing that a kernel may touch.
void check_other(uintptr_t address, size_t size, Access access, uintptr_t pc)
{
    if ((address >= run.image && address < run.image_end) || heap_check(address, size, access, pc))
        return;
    bool guard = false;
    int fiber = fiber_of_address(address, &guard);
    if (fiber >= 0 && &run.fibers[fiber] == run.current && !guard)
        return;
    if (fiber >= 0 && !guard) {
        Report &report = report_start(WILD_ACCESS, run.current);
        report.where = OTHER_STACK;
        report.access = access;
        report.size = size;
        report.pc = pc;
        report_other(report, run.fibers[fiber]);
        stop();
    }
    refuse(guard ? STACK_OVERFLOW : WILD_ACCESS, NOWHERE, address, size, access, pc);
}

} // namespace

size_t shared_offset(uintptr_t address)
{
    if (address - run.statics < run.n_statics)
        return address - run.statics;
    size_t dynamic = (run.n_statics + 15) & ~size_t(15);
    return address - run.dynamics < run.launch->shared ? dynamic + (address - run.dynamics) : SIZE_MAX;
}

void check(uintptr_t address, size_t size, Access access, uintptr_t pc)
{
    static const Region *last;
    races_settle();
    if (address - uintptr_t(__start_kops_built_in) < size_t(__stop_kops_built_in - __start_kops_built_in) &&
        access == READ)
        return;
    if (size <= 16 && address & (size - 1) && (size & (size - 1)) == 0)
        refuse(MISALIGNED, NOWHERE, address, size, access, pc);
    if (address - run.statics < run.n_statics) {
        check_shared(run.statics, address - run.statics, run.n_statics, SHARED_STATIC, size, access, pc);
        return;
    }
    const Launch &launch = *run.launch;
    uintptr_t end = uintptr_t(launch.regions + launch.n_regions);
    if (uintptr_t(last) >= uintptr_t(launch.regions) && uintptr_t(last) < end && address >= last->low &&
        address < last->high) {
        check_region(*last, address, size, access, pc);
        return;
    }
    // The gap behind dynamic shared memory is the object's own.
    if (address - run.dynamics < KOPS_HOST_DYNAMIC_BYTES) {
        check_shared(run.dynamics, address - run.dynamics, launch.shared, SHARED_DYNAMIC, size, access, pc);
        return;
    }
    const Region *region = nearest(address);
    if (region) {
        last = region;
        check_region(*region, address, size, access, pc);
        return;
    }
    check_other(address, size, access, pc);
}

} // namespace kops

extern "C" {

void *__tls_get_addr(kops::TlsIndex *);

// Runs a kernel; the kind of what went wrong.
int kops_host_run(const kops::Launch *launch, kops::Report *report)
{
    kops::Module *module = kops::module_of(reinterpret_cast<const void *>(launch->entry));
    *report = kops::Report{};
    if (!module) {
        report->kind = kops::UNSUPPORTED;
        return report->kind;
    }
    for (const kops::Module::Variables &variables : module->variables) {
        if (!launch->keeps)
            memcpy(variables.address, variables.bytes.data(), variables.bytes.size());
    }
    if (!launch->keeps)
        kops::heap_renew();
    kops::TlsIndex index{module->tls_module, 0};
    kops::run.n_statics = module->tls_size;
    kops::run.statics = module->tls_size ? reinterpret_cast<uintptr_t>(__tls_get_addr(&index)) : 0;
    kops::run.dynamics = reinterpret_cast<uintptr_t>(launch->dynamic);
    kops::run.image = module->image;
    kops::run.image_end = module->image_end;
    if (!kops::races_prepare(module->tls_size + 16 + launch->shared)) {
        report->kind = kops::UNSUPPORTED;
        snprintf(report->text, sizeof report->text, "there is no memory to watch shared memory with");
        return report->kind;
    }
    kops::run_launch(launch, report);
    report->image = module->image;
    return report->kind;
}

size_t kops_host_static_bytes(void (*entry)(void **))
{
    kops::Module *module = kops::module_of(reinterpret_cast<const void *>(entry));
    return module ? module->tls_size : 0;
}
}
