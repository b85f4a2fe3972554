# Every dependency, once, with its reason. Debian package names in brackets; nothing is vendored.

find_package(PkgConfig REQUIRED)
find_package(Threads REQUIRED)

# Finds a library by its pkg-config names as kops_dep::<name>, with the static archive where KOPS_STATIC_DEPS asks for it.
function(kops_dependency name archive)
    pkg_search_module(${name} REQUIRED ${ARGN})
    add_library(kops_dep_${name} INTERFACE)
    add_library(kops_dep::${name} ALIAS kops_dep_${name})
    target_include_directories(kops_dep_${name} SYSTEM INTERFACE ${${name}_INCLUDE_DIRS})
    if(KOPS_STATIC_DEPS)
        find_library(${name}_ARCHIVE NAMES ${archive} HINTS ${${name}_LIBRARY_DIRS} ${${name}_LIBDIR} REQUIRED)
        target_link_libraries(kops_dep_${name} INTERFACE ${${name}_ARCHIVE} Threads::Threads ${CMAKE_DL_LIBS})
    else()
        target_link_directories(kops_dep_${name} INTERFACE ${${name}_LIBRARY_DIRS})
        target_link_libraries(kops_dep_${name} INTERFACE ${${name}_LIBRARIES})
    endif()
endfunction()

# The wire format [libmsgpack-dev]: its headers for codec/, the library for tests and benchmarks alone. The name changed with
# each major version.
kops_dependency(msgpack libmsgpackc.a msgpack-c msgpackc msgpack)
add_library(kops_dep_msgpack_headers INTERFACE)
add_library(kops_dep::msgpack_headers ALIAS kops_dep_msgpack_headers)
target_include_directories(kops_dep_msgpack_headers SYSTEM INTERFACE ${msgpack_INCLUDE_DIRS})

if(KOPS_DAEMON)
    # The daemon's event loop and thread pool [libuv1-dev].
    kops_dependency(libuv libuv_a.a libuv)
    # Hashes of sources, seals of cached code, signatures of code that machines share [libsodium-dev].
    kops_dependency(libsodium libsodium.a libsodium)
    # System call filters of the compiling processes [libseccomp-dev].
    kops_dependency(libseccomp libseccomp.a libseccomp)
    # The configuration file's syntax [libinih-dev].
    kops_dependency(inih libinih.a inih)
endif()

# kops_optional(<option> <package> <what> <pkg-config name>): kops_dep::<name> where the option is not OFF and there is one.
function(kops_optional option package what name)
    if(${option} STREQUAL "OFF")
        return()
    endif()
    pkg_check_modules(${name} IMPORTED_TARGET ${name})
    if(${name}_FOUND)
        add_library(kops_dep_${name} INTERFACE)
        add_library(kops_dep::${name} ALIAS kops_dep_${name})
        target_link_libraries(kops_dep_${name} INTERFACE PkgConfig::${name})
    elseif(${option} STREQUAL "ON")
        message(FATAL_ERROR "${option}=ON, but ${name} was not found; on Debian: apt-get install ${package}")
    else()
        message(STATUS "${what}: not built (no ${name}; on Debian: apt-get install ${package})")
    endif()
endfunction()

# Binaries that travel take no libraries along that not every machine has.
if(KOPS_DAEMON AND NOT KOPS_STATIC_DEPS)
    # The live view of kopsctl top [libncurses-dev].
    kops_optional(KOPS_TOP libncurses-dev "kopsctl top's live view" ncursesw)
    # The HTTP server of kopsctl metrics [libmicrohttpd-dev].
    kops_optional(KOPS_HTTP libmicrohttpd-dev "kopsctl metrics' HTTP server" libmicrohttpd)
endif()

if(KOPS_TESTS)
    # Unit tests in C [libcmocka-dev].
    pkg_search_module(cmocka REQUIRED cmocka)
    add_library(kops_dep_cmocka INTERFACE)
    add_library(kops_dep::cmocka ALIAS kops_dep_cmocka)
    target_include_directories(kops_dep_cmocka SYSTEM INTERFACE ${cmocka_INCLUDE_DIRS})
    target_link_libraries(kops_dep_cmocka INTERFACE ${cmocka_LIBRARIES})
    # Functional and conformance tests, the Python client's tests [python3-pytest python3-numpy python3-msgpack].
    find_package(Python3 3.10 COMPONENTS Interpreter REQUIRED)
endif()

# libcurl [libcurl4]: HTTP and TLS for the cache that machines share. Loaded at run time by one helper process
# (daemon/remote/curl.c), so that nothing here is needed to build; without it the helper says so, and kopsd compiles for itself.
# Where its headers are [libcurl4-openssl-dev] a test compares our numbers with theirs.
find_path(KOPS_CURL_INCLUDE curl/curl.h)
mark_as_advanced(KOPS_CURL_INCLUDE)

# CUDA toolkit: nvcc for the kernels, cuda.h and cublasLt.h for types. Never linked: the driver and the
# libraries are loaded at run time, so one binary starts with or without a GPU.
set(KOPS_HAVE_CUDA OFF)
if(NOT KOPS_CUDA STREQUAL "OFF")
    find_program(KOPS_NVCC nvcc HINTS $ENV{CUDACXX} $ENV{CUDA_HOME}/bin $ENV{CUDA_PATH}/bin /usr/local/cuda/bin)
    if(KOPS_NVCC)
        file(REAL_PATH ${KOPS_NVCC} kops_nvcc_real)
        cmake_path(GET kops_nvcc_real PARENT_PATH kops_nvcc_dir)
        find_path(KOPS_CUDA_INCLUDE cuda.h HINTS ${kops_nvcc_dir}/../include ${kops_nvcc_dir}/../targets/x86_64-linux/include)
    endif()
    if(KOPS_NVCC AND KOPS_CUDA_INCLUDE)
        set(KOPS_HAVE_CUDA ON)
    elseif(KOPS_CUDA STREQUAL "ON")
        message(FATAL_ERROR "KOPS_CUDA=ON, but no nvcc with cuda.h was found; set CUDA_HOME or CUDACXX")
    endif()
endif()
if(KOPS_HAVE_CUDA)
    message(STATUS "CUDA backend: ${KOPS_NVCC}, architectures ${KOPS_CUDA_ARCHS}")
else()
    message(STATUS "CUDA backend: not built (no toolkit, or switched off)")
endif()
