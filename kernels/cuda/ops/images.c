/* The embedded fatbins and the table of their kernels. KOPS_CUDA_IMAGES is the folder of the built fatbins.
 *
 * The table of images is written in assembly too, since an image's size is known only to the assembler: three words an
 * entry, as struct cuda_ops_image lays them out. */
#include "launch.h"

#include "kernel_list.h"

_Static_assert(sizeof(struct cuda_ops_image) == 24 && offsetof(struct cuda_ops_image, data) == 8 &&
                   offsetof(struct cuda_ops_image, size) == 16,
               "the table below has this layout");

#define NAME(image) "cuda_ops_name_" #image ": .asciz \"" #image "\"\n"
#define DATA(image)                                                                                                    \
    ".balign 64\n"                                                                                                     \
    "cuda_ops_data_" #image ": .incbin \"" KOPS_CUDA_IMAGES "/" #image ".fatbin\"\n"                                   \
    "cuda_ops_end_" #image ":\n"
#define ENTRY(image)                                                                                                   \
    ".quad cuda_ops_name_" #image ", cuda_ops_data_" #image ", cuda_ops_end_" #image " - cuda_ops_data_" #image "\n"

__asm__(".pushsection .rodata.cuda_ops, \"a\", %progbits\n" CUDA_OPS_IMAGES(NAME) CUDA_OPS_IMAGES(
    DATA) ".popsection\n"
          ".pushsection .data.rel.ro.cuda_ops, \"aw\", %progbits\n"
          ".balign 8\n"
          ".globl cuda_ops_images\n"
          ".hidden cuda_ops_images\n"
          ".type cuda_ops_images, %object\n"
          "cuda_ops_images:\n" CUDA_OPS_IMAGES(ENTRY) ".size cuda_ops_images, . - cuda_ops_images\n"
                                                      ".popsection\n");

enum image {
#define X(name) IMAGE_##name,
    CUDA_OPS_IMAGES(X)
#undef X
        IMAGE_COUNT
};

const unsigned cuda_ops_image_count = IMAGE_COUNT;

const struct cuda_ops_kernel cuda_ops_kernels[] = {
#define X(image, symbol) {#symbol, IMAGE_##image},
    CUDA_OPS_KERNELS(X)
#undef X
        {NULL, 0},
};
