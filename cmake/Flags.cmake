# Options of the build, and the flags that every target of ours gets through `kops_flags`.

option(KOPS_DAEMON "Build the daemon and kopsctl (needs libuv, inih)" ON)
option(KOPS_TESTS "Build tests and benchmarks (needs cmocka)" ON)
option(KOPS_DEMO "Build the demo without the tests" OFF)
option(KOPS_WERROR "Treat warnings in our code as errors" OFF)
option(KOPS_STATIC_DEPS "Link libuv, msgpack-c and inih statically, for binaries that travel" OFF)
option(KOPS_FUZZ "Build libFuzzer targets (clang)" OFF)
option(KOPS_POINTS "Let a simulation change threads at every basic block (tests/simulation)" OFF)
set(KOPS_CUDA_FATBINS "" CACHE PATH "Build folder whose compiled kernels, of the same sources, this one takes instead of compiling")
set(KOPS_SANITIZE "" CACHE STRING "Sanitizers, as in -fsanitize=: address,undefined or thread")
set(KOPS_CUDA "AUTO" CACHE STRING "CUDA backend: AUTO (when a toolkit is found), ON, OFF")
set_property(CACHE KOPS_CUDA PROPERTY STRINGS AUTO ON OFF)
set(KOPS_TOP "AUTO" CACHE STRING "Live view of kopsctl top: AUTO (when ncurses is found), ON, OFF")
set_property(CACHE KOPS_TOP PROPERTY STRINGS AUTO ON OFF)
set(KOPS_HTTP "AUTO" CACHE STRING "HTTP server of kopsctl metrics: AUTO (when libmicrohttpd is found), ON, OFF")
set_property(CACHE KOPS_HTTP PROPERTY STRINGS AUTO ON OFF)
set(kops_all_archs 75 80 86 89 90a 100 120)
set(KOPS_CUDA_ARCHS "${kops_all_archs}" CACHE STRING
    "Architectures of the embedded kernels; PTX of the first is added. native: this machine's, and no CUDA backend without a GPU")
if(KOPS_CUDA_ARCHS STREQUAL "native")
    execute_process(COMMAND ${PROJECT_SOURCE_DIR}/tools/gpu-architectures ${kops_all_archs}
        OUTPUT_VARIABLE KOPS_CUDA_ARCHS OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
    if(NOT KOPS_CUDA_ARCHS AND KOPS_CUDA STREQUAL "AUTO")
        set(KOPS_CUDA OFF)
    endif()
endif()

if(NOT CMAKE_BUILD_TYPE)
    set(CMAKE_BUILD_TYPE Release CACHE STRING "" FORCE)
endif()
set(CMAKE_C_STANDARD 11)
set(CMAKE_C_STANDARD_REQUIRED ON)
set(CMAKE_C_EXTENSIONS ON) # gnu11: memfd_create, pidfd and accept4 are Linux's own
set(CMAKE_C_VISIBILITY_PRESET hidden)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)

add_library(kops_flags INTERFACE)
target_compile_definitions(kops_flags INTERFACE _GNU_SOURCE KOPS_VERSION="${PROJECT_VERSION}")
target_compile_options(kops_flags INTERFACE
    -Wall -Wextra -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wpointer-arith -Wvla -Wformat=2
    -Wno-missing-field-initializers -fno-strict-aliasing -fno-omit-frame-pointer)
if(KOPS_WERROR)
    target_compile_options(kops_flags INTERFACE -Werror)
endif()
if(KOPS_SANITIZE)
    target_compile_options(kops_flags INTERFACE -fsanitize=${KOPS_SANITIZE} -fno-sanitize-recover=all)
    target_link_options(kops_flags INTERFACE -fsanitize=${KOPS_SANITIZE})
elseif(NOT CMAKE_BUILD_TYPE STREQUAL "Debug" AND NOT KOPS_POINTS) # a simulation sees no call of __poll_chk() and its kin
    target_compile_definitions(kops_flags INTERFACE _FORTIFY_SOURCE=2)
    target_compile_options(kops_flags INTERFACE -fstack-protector-strong)
endif()
if(KOPS_FUZZ)
    target_compile_options(kops_flags INTERFACE -fsanitize=fuzzer-no-link)
endif()
if(KOPS_POINTS)
    target_compile_options(kops_flags INTERFACE $<$<NOT:$<BOOL:$<TARGET_PROPERTY:KOPS_NO_POINTS>>>:-fsanitize-coverage=trace-pc>)
    # What C leaves undefined ends the process: a sanitizer without a runtime, whose calls would be no part of a simulation.
    target_compile_options(kops_flags INTERFACE -fsanitize=undefined -fsanitize-undefined-trap-on-error
        $<$<C_COMPILER_ID:GNU>:-Wno-maybe-uninitialized>) # warns of what is checked
    target_link_libraries(kops_flags INTERFACE kops_points)
endif()
