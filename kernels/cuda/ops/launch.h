/* Launchers: pure functions from a plan to a kernel launch. They do not call the driver, so they are tested without a
 * GPU. The kernels are the .cu files beside this header, embedded as fatbins. A struct cuda_launch is a plain value;
 * its strings are static. Thread: any. */
#ifndef KOPS_CUDA_OPS_LAUNCH_H
#define KOPS_CUDA_OPS_LAUNCH_H

#include <stddef.h>
#include <stdint.h>

#include "core/op.h"
#include "core/plan.h"
#include "util/error.h"

enum { CUDA_LAUNCH_PARAMS_MAX = 768, CUDA_LAUNCH_MAPS_MAX = 3 };

/* Levels of devices. A device has the kernels of its level and of all lower levels. */
enum cuda_ops_level {
    CUDA_OPS_ANY,
    CUDA_OPS_SM80, /* products of bf16 and tf32 on tensor cores */
    CUDA_OPS_SM90, /* clusters */
    CUDA_OPS_SM90A /* wgmma, and tensor maps; compute capability 9.0 only */
};

/* A device as the launchers see it. */
struct cuda_ops_device {
    unsigned multiprocessors;
    enum cuda_ops_level level;
};

/* Finds the level of a device. `capability`: 10 · major + minor. `architectures`: the build's KOPS_CUDA_ARCHS,
 * separated by commas, and PTX of the first; NULL: the device's own is among them. */
enum cuda_ops_level cuda_ops_level_of(const char *architectures, unsigned capability);

/* A CUtensorMap of our kernels: three dimensions, elements of 16 bits, boxes with 128-byte swizzle, 0 outside. */
struct cuda_launch_map {
    struct plan_map map;
    size_t at; /* offset of the encoded map in params */
};

/* The arguments of a cuLaunchKernel(). `params`: the kernel's only parameter, a struct passed by value (params.h). */
struct cuda_launch {
    const char *kernel;  /* symbol in one of cuda_ops_binaries, extern "C" */
    const char *variant; /* name for clients */
    unsigned grid[3], block[3];
    unsigned shared_bytes; /* dynamic; over 48 KiB needs the function attribute */
    size_t params_size;
    _Alignas(16) unsigned char params[CUDA_LAUNCH_PARAMS_MAX];
    unsigned n_maps; /* maps that cuda_ops_encode() encodes before the launch */
    struct cuda_launch_map maps[CUDA_LAUNCH_MAPS_MAX];
};

/* cuTensorMapEncodeTiled(), which needs no context. */
typedef int cuda_ops_encoder(void *map, int type, unsigned rank, void *address, const uint64_t *extents,
                             const uint64_t *strides, const uint32_t *box, const uint32_t *steps, int interleave,
                             int swizzle, int promotion, int fill);

/* Encodes the launch's maps, once for all its repeats. Returns the encoder's first status that is not 0. */
int cuda_ops_encode(struct cuda_launch *launch, cuda_ops_encoder *encode);

/* Encodes the maps of a user's kernel into `params`, a copy of the plan's with addresses filled in. */
int cuda_ops_encode_params(const struct plan_kernel *plan, unsigned char *params, cuda_ops_encoder *encode);

/* Lists pointers to parameters, for cuLaunchKernel(). NULL: the plan has no list, so pass `params` as a buffer. */
void **cuda_ops_list_params(const struct plan_kernel *plan, unsigned char *params, void *list[KERNELS_PARAMS_MAX]);

/* Lists the variants of our own kernels for the op and dtype on devices of that level, NULL-terminated. One variant
 * runs every plan; for gemm the first. */
const char *const *cuda_ops_variants(enum op_id op, enum dtype dtype, enum cuda_ops_level level);

/* Chooses the kernel and its geometry. `addresses` are the device addresses of the operands' first elements (inputs,
 * then outputs). `variant` forces one of cuda_ops_variants() or is NULL. The plan
 * is not empty. Errors: invalid_argument when the forced variant cannot run this plan (the message says why). */
int cuda_ops_launch(enum op_id op, const struct plan *plan, const uint64_t *addresses, const char *variant,
                    const struct cuda_ops_device *device, struct cuda_launch *ret_launch, struct error *e);

/* Makes a launch that copies elements over plan's shape, from `source` with strides[0] to `target` with strides[1].
 * Bytes between the elements stay unchanged. */
int cuda_ops_copy(const struct plan_elementwise *plan, size_t element_size, uint64_t source, uint64_t target,
                  struct cuda_launch *ret_launch, struct error *e);

/* Makes a launch that copies 1 to CUDA_OPS_MOVE_PIECES (params.h) pieces of memory, each of 1 to CUDA_OPS_MOVE_BYTES
 * bytes. See struct cuda_ops_move for overlaps. */
enum { CUDA_OPS_MOVE_BYTES = 1 << 20 };

struct cuda_ops_range {
    uint64_t from, to; /* addresses on the device */
    uint64_t bytes;
};
void cuda_ops_move(const struct cuda_ops_range *ranges, unsigned count, struct cuda_launch *ret_launch);

/* Makes a launch for out = gelu(out), by erf, over plan's shape with strides[0]; f32 and f64. */
void cuda_ops_gelu(const struct plan_elementwise *plan, enum dtype dtype, uint64_t out, struct cuda_launch *ret_launch);

/* Copies of matrices (params.h): elements of 2, 4 or 8 bytes, unchanged, or f32 split into 2 or 3 pieces of bf16. */
enum cuda_ops_repack_kind {
    CUDA_OPS_REPACK_2,
    CUDA_OPS_REPACK_4,
    CUDA_OPS_REPACK_8,
    CUDA_OPS_REPACK_BF16X2,
    CUDA_OPS_REPACK_BF16X3
};

/* Makes a launch of `params`, and sets its members chunks, height and count. Unused parts have to_rows = 0. With
 * pieces, rows of `to` begin on 16-byte boundaries, and are multiples of 16 bytes. */
struct cuda_ops_repack;
void cuda_ops_launch_repack(enum cuda_ops_repack_kind kind, struct cuda_ops_repack *params,
                            struct cuda_launch *ret_launch);

/* Makes a launch that accesses no memory except its stamp. */
void cuda_ops_nothing(struct cuda_launch *ret_launch);

/* Makes a launch that ends when the u64 at the device address `go` is at least `value`, or after `most_ns`. */
void cuda_ops_gate(struct cuda_launch *ret_launch, uint64_t go, uint64_t value, uint64_t most_ns);

/* Makes the launch write its stamp (params.h); with zeroes it writes none. */
void cuda_ops_stamp(struct cuda_launch *launch, uint64_t times, uint64_t count);

/* The embedded code: fatbins for every architecture of the build. */
struct cuda_ops_binary {
    const char *name;
    const unsigned char *data;
    size_t size;
};
extern const struct cuda_ops_binary cuda_ops_binaries[];
extern const char cuda_ops_architectures[]; /* for cuda_ops_level_of() */

/* Number and names of binaries, in the order of cuda_ops_binaries, also in programs that embed none. */
extern const unsigned cuda_ops_binary_count;
extern const char *const cuda_ops_binary_names[];

/* All kernel symbols with their binaries, for eager loading; NULL-terminated. */
struct cuda_ops_kernel {
    const char *name;
    unsigned binary;
    enum cuda_ops_level level; /* the lowest level that has it */
};
extern const struct cuda_ops_kernel cuda_ops_kernels[];

#endif
