/* Embeds the fatbins of the folder KOPS_CUDA_BINARIES, for KOPS_CUDA_ARCHITECTURES. The table of binaries is written in
 * assembly, since only the assembler knows a binary's size. An entry is three words: struct cuda_ops_binary. */
#include "launch.h"

#include "kernel_list.h"

_Static_assert(sizeof(struct cuda_ops_binary) == 24 && offsetof(struct cuda_ops_binary, data) == 8 &&
                   offsetof(struct cuda_ops_binary, size) == 16,
               "the table below has this layout");

const char cuda_ops_architectures[] = KOPS_CUDA_ARCHITECTURES;

#define NAME(binary) "cuda_ops_name_" #binary ": .asciz \"" #binary "\"\n"
#define DATA(binary)                                                                                                   \
    ".balign 64\n"                                                                                                     \
    "cuda_ops_data_" #binary ": .incbin \"" KOPS_CUDA_BINARIES "/" #binary ".fatbin\"\n"                               \
    "cuda_ops_end_" #binary ":\n"
#define ENTRY(binary)                                                                                                  \
    ".quad cuda_ops_name_" #binary ", cuda_ops_data_" #binary ", cuda_ops_end_" #binary " - cuda_ops_data_" #binary "\n"

__asm__(".pushsection .rodata.cuda_ops, \"a\", %progbits\n" CUDA_OPS_BINARIES(NAME) CUDA_OPS_BINARIES(
    DATA) ".popsection\n"
          ".pushsection .data.rel.ro.cuda_ops, \"aw\", %progbits\n"
          ".balign 8\n"
          ".globl cuda_ops_binaries\n"
          ".hidden cuda_ops_binaries\n"
          ".type cuda_ops_binaries, %object\n"
          "cuda_ops_binaries:\n" CUDA_OPS_BINARIES(ENTRY) ".size cuda_ops_binaries, . - cuda_ops_binaries\n"
                                                          ".popsection\n");
